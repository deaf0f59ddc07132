"""Llama's blocks, and a function for families that are variants of them with a few other settings."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from trivium.families.common.family import NOTHING, Config, Family, Names, Tree
from trivium.families.common.llama_logits import logits
from trivium.families.common.rope import Rope, rope_apart, rope_config, rope_of
from trivium.families.common.windows import Windows, can_say, windows_config, windows_of
from trivium.plan.model_shape import ModelShape

SETTINGS = MappingProxyType(
    {
        "norm": "rms_norm",
        "feed_forward": "gated",
        "positions": "rotary",
        "bias": "none",
        "qk_norm": "none",
        "norm_position": "before",
        "wiring": "sequential",
        "rope_columns": None,
    }
)
SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "max_position_embeddings")
MUST: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {"hidden_act": ("silu", "swish"), "attention_bias": (False,), "mlp_bias": (False,), "quantization_config": (None,)}
)
ENDS = MappingProxyType(
    {
        "embedding.tokens.weight": "model.embed_tokens.weight",
        "head.norm.weight": "model.norm.weight",
        "head.weight": "lm_head.weight",
    }
)
MODULES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "attention.norm": ("input_layernorm",),
        "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attention.query_norm": ("self_attn.q_norm",),
        "attention.key_norm": ("self_attn.k_norm",),
        "attention.out": ("self_attn.o_proj",),
        "mlp.norm": ("post_attention_layernorm",),
        "mlp.up": ("mlp.gate_proj", "mlp.up_proj"),
        "mlp.down": ("mlp.down_proj",),
    }
)
# For norms after each half; otherwise `post_attention_layernorm` is before the second half.
NORMS_AFTER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"attention.norm": ("post_attention_layernorm",), "mlp.norm": ("post_feedforward_layernorm",)}
)
RANKS: Mapping[Windows, int] = MappingProxyType({"none": 0, "sized": 1})  # others: 2


def llama_like(
    architecture: str,
    model_type: str,
    settings: Mapping[str, Any] = NOTHING,
    *,
    windows: Windows = "none",
    rope: Rope = "alike",
    must: Mapping[str, tuple[Any, ...]] = NOTHING,
    unsaid: Mapping[str, Any] = NOTHING,
    said: Mapping[str, Any] = NOTHING,
) -> Family:
    """Return a family with Llama's blocks.

    settings: those that differ from Llama's. windows: how config.json says which layers have a window. rope: whether it
    has separate RoPE settings for layers with and without a window. must: fields that may only have these values, in
    addition to MUST. said: additional fields of an export.
    """
    decided = {**SETTINGS, **settings}
    modules = {**MODULES, **(NORMS_AFTER if decided["norm_position"] == "after" else {})}
    names = Names("model.", "model.layers.{}", ENDS, MappingProxyType(modules))

    def read(config: Config, where: str) -> Tree:
        found = windows_of(config, windows, where)
        apart = rope == "apart"
        return {
            "layers": config["num_hidden_layers"],
            "hidden": config["hidden_size"],
            "heads": config["num_attention_heads"],
            "kv_heads": config.get("num_key_value_heads") or config["num_attention_heads"],
            "head_width": _head_width(config),
            "ffn": config["intermediate_size"],
            "sequence": config["max_position_embeddings"],
            "norm_epsilon": config.get("rms_norm_eps", 1e-6),
            **(rope_apart(config, where, window="window" in found) if apart else rope_of(config, where)),
            **found,
        }

    def write(model: ModelShape) -> Tree:
        return {
            "model_type": model_type,
            "max_position_embeddings": model.sequence,
            "hidden_size": model.hidden,
            "intermediate_size": model.ffn_width,
            "num_hidden_layers": model.layers,
            "num_attention_heads": model.heads,
            "num_key_value_heads": model.kv,
            "head_dim": model.head_columns,
            "hidden_act": "silu",
            "rms_norm_eps": model.norm_epsilon,
            **rope_config(model, rope),
            **windows_config(model, windows),
            "attention_dropout": 0.0,
            **said,
        }

    return Family(
        architecture=architecture,
        settings=MappingProxyType(decided),
        sizes=SIZES,
        must=MappingProxyType({**MUST, **must}),
        read=read,
        write=write,
        names=lambda model: names,
        logits=logits,
        can_say=lambda model: can_say(model, windows),
        unsaid=unsaid,
        rank=RANKS.get(windows, 2),
        free=("activation",),  # a half without a gate may have any activation
    )


def _head_width(config: Config) -> int | None:
    """Return the columns of a head; None if they are hidden / heads."""
    width, hidden, heads = config.get("head_dim"), config["hidden_size"], config["num_attention_heads"]
    return None if width is None or width * heads == hidden else width
