"""Llama."""

from types import MappingProxyType

from trivium.families.common.llama_like import llama_like

FAMILY = llama_like(
    "LlamaForCausalLM",
    "llama",
    said=MappingProxyType({"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1}),
)
