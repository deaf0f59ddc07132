"""Qwen 3: Llama's blocks with norms of each head of queries and keys."""

from types import MappingProxyType

from trivium.families.common.llama_like import llama_like

FAMILY = llama_like(
    "Qwen3ForCausalLM",
    "qwen3",
    MappingProxyType({"qk_norm": "each_head"}),
    windows="used",
    unsaid=MappingProxyType({"num_key_value_heads": 32, "sliding_window": 4096, "head_dim": 128}),
    said=MappingProxyType({"attention_bias": False}),
)
