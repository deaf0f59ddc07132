"""Gemma 2 (arXiv 2408.00118)."""

from types import MappingProxyType

from trivium.families.common.gemma import gemma
from trivium.families.common.rope import rope_config, rope_of

FAMILY = gemma(
    "Gemma2ForCausalLM",
    "gemma2",
    qk_norm="none",
    every=lambda config: 2,
    rope=lambda config, where, windows: {**windows, **rope_of(config, where)},
    rope_config=rope_config,
    unsaid=MappingProxyType(
        {
            "num_key_value_heads": 4,
            "head_dim": 256,
            "rms_norm_eps": 1e-6,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        }
    ),
    free=("score_cap",),
)
