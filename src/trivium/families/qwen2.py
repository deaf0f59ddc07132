"""Qwen 2 and 2.5: Llama's blocks with biases of queries, keys and values."""

from types import MappingProxyType

from trivium.families.common.llama_like import llama_like

FAMILY = llama_like(
    "Qwen2ForCausalLM",
    "qwen2",
    MappingProxyType({"bias": "qkv"}),
    windows="used",
    unsaid=MappingProxyType({"num_key_value_heads": 32, "sliding_window": 4096}),
)
