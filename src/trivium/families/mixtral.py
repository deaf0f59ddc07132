"""Mixtral: Mistral's blocks with experts in all layers (arXiv 2401.04088)."""

from types import MappingProxyType

from trivium.families.common.experts import Mixture, with_experts
from trivium.families.common.llama_like import llama_like

MODULES = MappingProxyType(
    {
        "mlp.router": ("block_sparse_moe.gate",),
        "mlp.experts.up": ("block_sparse_moe.experts.{}.w1", "block_sparse_moe.experts.{}.w3"),
        "mlp.experts.down": ("block_sparse_moe.experts.{}.w2",),
    }
)
UNSAID = MappingProxyType(
    {
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "num_experts_per_tok": 2,
        "router_aux_loss_coef": 0.001,
    }
)
FAMILY = with_experts(
    llama_like(
        "MixtralForCausalLM",
        "mixtral",
        windows="sized",
        must=MappingProxyType({"router_jitter_noise": (0.0,)}),
        unsaid=UNSAID,
    ),
    Mixture("num_local_experts", MODULES),
)
