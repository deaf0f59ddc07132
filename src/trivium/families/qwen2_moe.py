"""Qwen 2 with experts (also Qwen1.5-MoE): Qwen 2's blocks with experts and a gated shared one in most layers."""

from types import MappingProxyType

from trivium.errors import ConfigError
from trivium.families.common.experts import MODULES, Mixture, with_experts
from trivium.families.common.family import Tree
from trivium.families.common.llama_like import llama_like
from trivium.families.common.qwen_moe import DENSE, UNSAID
from trivium.plan.experts import Experts

SHARED = MappingProxyType(
    {
        "mlp.shared.up": ("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
        "mlp.shared.down": ("mlp.shared_expert.down_proj",),
        "mlp.shared_gate": ("mlp.shared_expert_gate",),
    }
)


def _write(experts: Experts) -> Tree:
    if not experts.shared:
        raise ConfigError(
            "plan.model.experts.shared is 0, and Qwen2MoeForCausalLM has a shared expert; train with one, or with "
            "plan.model.bias=none for Mixtral, for a model that is to be exported"
        )
    return {}


FAMILY = with_experts(
    llama_like(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        MappingProxyType({"bias": "qkv"}),
        windows="used_in_turn",
        must=MappingProxyType({"qkv_bias": (True,)}),
        unsaid=MappingProxyType(
            {
                **UNSAID,
                "num_key_value_heads": 16,
                "num_experts_per_tok": 4,
                "moe_intermediate_size": 1408,
                "shared_expert_intermediate_size": 5632,
            }
        ),
        said=MappingProxyType({"qkv_bias": True}),
    ),
    Mixture(
        "num_experts",
        modules=MappingProxyType({**MODULES, **SHARED}),
        columns="moe_intermediate_size",
        fields=MappingProxyType({"normalized": "norm_topk_prob", "shared": "shared_expert_intermediate_size"}),
        must=MappingProxyType({"shared_gate": True}),
        dense=DENSE,
        write=_write,
    ),
)
