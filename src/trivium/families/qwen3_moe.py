"""Qwen 3 with experts: Qwen 3's blocks with experts in most layers (arXiv 2505.09388)."""

from types import MappingProxyType

from trivium.families.common.experts import Mixture, with_experts
from trivium.families.common.llama_like import llama_like
from trivium.families.common.qwen_moe import DENSE, UNSAID

FAMILY = with_experts(
    llama_like(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        MappingProxyType({"qk_norm": "each_head"}),
        windows="used_in_all",
        unsaid=MappingProxyType(
            {**UNSAID, "num_key_value_heads": 4, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
        ),
        said=MappingProxyType({"attention_bias": False}),
    ),
    Mixture(
        "num_experts",
        columns="moe_intermediate_size",
        fields=MappingProxyType({"normalized": "norm_topk_prob"}),
        dense=DENSE,
    ),
)
