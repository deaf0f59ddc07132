"""OLMo 3: OLMo 2's blocks with a window in three of four layers."""

from types import MappingProxyType

from trivium.families.common.llama_like import llama_like

FAMILY = llama_like(
    "Olmo3ForCausalLM",
    "olmo3",
    MappingProxyType({"qk_norm": "all_heads", "norm_position": "after"}),
    windows="mixed",
    rope="apart",
    unsaid=MappingProxyType({"rms_norm_eps": 1e-5, "sliding_window": 4096}),
    said=MappingProxyType({"attention_bias": False}),
)
