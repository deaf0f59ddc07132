"""OLMo 2: Llama's blocks with norms after each half and over all heads of queries and keys."""

from types import MappingProxyType

from trivium.families.common.llama_like import llama_like

FAMILY = llama_like(
    "Olmo2ForCausalLM",
    "olmo2",
    MappingProxyType({"qk_norm": "all_heads", "norm_position": "after"}),
    unsaid=MappingProxyType({"rms_norm_eps": 1e-5}),
    said=MappingProxyType({"attention_bias": False}),
)
