"""Mistral: Llama's blocks with a window in every layer."""

from types import MappingProxyType

from trivium.families.common.llama_like import llama_like

FAMILY = llama_like(
    "MistralForCausalLM",
    "mistral",
    windows="sized",
    unsaid=MappingProxyType({"num_key_value_heads": 8, "sliding_window": 4096}),
)
