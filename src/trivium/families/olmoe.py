"""OLMoE: Llama's blocks with norms over all heads of queries and keys, and experts (arXiv 2409.02060)."""

from types import MappingProxyType

from trivium.errors import ConfigError
from trivium.families.common.experts import Mixture, with_experts
from trivium.families.common.family import Tree
from trivium.families.common.llama_like import llama_like
from trivium.plan.model_shape import ModelShape

UNSAID = MappingProxyType(
    {"rms_norm_eps": 1e-5, "num_experts_per_tok": 8, "norm_topk_prob": False, "router_aux_loss_coef": 0.01}
)
_ANY_WIDTH = with_experts(
    llama_like(
        "OlmoeForCausalLM",
        "olmoe",
        MappingProxyType({"qk_norm": "all_heads"}),
        must=MappingProxyType({"clip_qkv": (None,)}),
        unsaid=UNSAID,
        said=MappingProxyType({"attention_bias": False, "clip_qkv": None}),
    ),
    Mixture("num_experts", fields=MappingProxyType({"normalized": "norm_topk_prob"})),
)


def _write(model: ModelShape) -> Tree:
    if model.head_columns * model.heads != model.hidden:
        raise ConfigError(
            f"plan.model.head_width is {model.head_width}, and heads of OlmoeForCausalLM have hidden / heads = "
            f"{model.hidden // model.heads} columns; train with that for a model that is to be exported"
        )
    return _ANY_WIDTH.write(model)


FAMILY = _ANY_WIDTH._replace(write=_write)
