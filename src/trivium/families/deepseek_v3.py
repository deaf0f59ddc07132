"""DeepSeek-V3 (arXiv 2412.19437). Published folders also have modules that predict several tokens, behind the last
layer of the model; these are left out."""

from types import MappingProxyType

from trivium.families.common.deepseek import deepseek
from trivium.families.common.experts import Mixture
from trivium.families.common.family import Config


def _besides(config: Config) -> range:
    first, more = config["num_hidden_layers"], config["num_nextn_predict_layers"] or 0
    return range(first, first + more)


FAMILY = deepseek(
    "DeepseekV3ForCausalLM",
    "deepseek_v3",
    Mixture(
        "n_routed_experts",
        fields=MappingProxyType(
            {
                "scale": "routed_scaling_factor",
                "normalized": "norm_topk_prob",
                "groups": "n_group",
                "chosen_groups": "topk_group",
            }
        ),
        must=MappingProxyType({"scores": "sigmoid", "group_score": "two_largest", "bias_rate": 0.0}),
        write=lambda experts: {"num_nextn_predict_layers": 0, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    ),
    unsaid=MappingProxyType(
        {
            "first_k_dense_replace": 3,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": True,
            "n_group": 8,
            "topk_group": 4,
            "num_nextn_predict_layers": 1,
        }
    ),
    must=MappingProxyType({"scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",)}),
    interleaves=True,
    besides=_besides,
)
