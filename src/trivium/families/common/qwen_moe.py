"""What the config.json files of Qwen2-MoE and Qwen3-MoE share."""

from types import MappingProxyType

from trivium.families.common.experts import Dense
from trivium.families.common.family import Config, Tree


def _is_dense(config: Config, layer: int) -> bool:
    return layer in (config["mlp_only_layers"] or ()) or (layer + 1) % (config["decoder_sparse_step"] or 1) != 0


def _fields(layers: list[int]) -> Tree:
    return {"mlp_only_layers": layers, "decoder_sparse_step": 1}


DENSE = Dense(_is_dense, _fields)
UNSAID = MappingProxyType(
    {
        "sliding_window": 4096,
        "norm_topk_prob": False,
        "router_aux_loss_coef": 0.001,
        "mlp_only_layers": None,
        "decoder_sparse_step": 1,
    }
)
