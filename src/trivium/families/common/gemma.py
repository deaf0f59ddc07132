"""Gemma's blocks: what its versions share.

Legend: B sequences, S positions, V vocabulary, N heads, G key-value heads, D columns of a head.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F

from trivium.errors import ConfigError
from trivium.families.common.attention import rotated
from trivium.families.common.family import Config, Family, Names, Tensors, Tree
from trivium.families.common.llama_like import ENDS, MODULES, SETTINGS, SIZES
from trivium.families.common.windows import ALL, WINDOW, windows_config, windows_of
from trivium.plan.model_shape import ModelShape

NORMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "attention.after_norm": ("post_attention_layernorm",),
        "mlp.norm": ("pre_feedforward_layernorm",),
        "mlp.after_norm": ("post_feedforward_layernorm",),
    }
)
NAMES = Names("model.", "model.layers.{}", ENDS, MappingProxyType({**MODULES, **NORMS}))
MUST: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "hidden_activation": ("gelu_pytorch_tanh",),
        "attention_bias": (False,),
        "use_bidirectional_attention": (False, None),
        "quantization_config": (None,),
    }
)
FREE = ("activation", "embedding_scale", "score_scale", "logits_cap")
RELATIVE_ERROR = 1e-6  # tolerance for numbers that config.json has in another form


def gemma(
    architecture: str,
    model_type: str,
    *,
    qk_norm: str,
    every: Callable[[Config], int],
    rope: Callable[[Config, str, Tree], Tree],
    rope_config: Callable[[ModelShape], Tree],
    unsaid: Mapping[str, Any],
    free: tuple[str, ...],
) -> Family:
    """Return a version of Gemma.

    every: n of a config.json without `layer_types`, in whose model each n-th layer attends to all positions and the
    others have a window. rope: settings of rotary positions from a config.json, where messages say that it is, and the
    settings of windows, which it may change. rope_config: the fields of config.json.
    """
    settings = {
        **SETTINGS,
        "norm": "rms_norm_offset",
        "feed_forward": "gated_gelu",
        "wiring": "sandwich",
        "qk_norm": qk_norm,
    }
    return Family(
        architecture=architecture,
        settings=MappingProxyType(settings),
        sizes=(*SIZES, "query_pre_attn_scalar"),
        must=MUST,
        read=partial(_read, every=every, rope=rope),
        write=partial(_write, architecture=architecture, model_type=model_type, rope_config=rope_config),
        names=lambda model: NAMES,
        logits=logits,
        can_say=lambda model: len({model.form_of(n).window for n in range(model.layers)} - {None}) <= 1,
        unsaid=unsaid,
        tied=True,
        free=(*FREE, *free),
    )


def _read(
    config: Config, where: str, *, every: Callable[[Config], int], rope: Callable[[Config, str, Tree], Tree]
) -> Tree:
    layers, period = config["num_hidden_layers"], every(config)
    types = [WINDOW if (n + 1) % period else ALL for n in range(layers)]
    windows = windows_of({**config, "layer_types": config.get("layer_types") or types}, "typed", where)
    return {
        "layers": layers,
        "hidden": config["hidden_size"],
        "heads": config["num_attention_heads"],
        "kv_heads": config["num_key_value_heads"],
        "head_width": config["head_dim"],
        "ffn": config["intermediate_size"],
        "sequence": config["max_position_embeddings"],
        "norm_epsilon": config["rms_norm_eps"],
        "embedding_scale": math.sqrt(config["hidden_size"]),
        "score_scale": config["query_pre_attn_scalar"] ** -0.5,
        "score_cap": config.get("attn_logit_softcapping"),
        "logits_cap": config.get("final_logit_softcapping"),
        **rope(config, where, windows),
    }


def _write(model: ModelShape, *, architecture: str, model_type: str, rope_config: Callable[[ModelShape], Tree]) -> Tree:
    if not math.isclose(model.embedding_scale, math.sqrt(model.hidden), rel_tol=RELATIVE_ERROR):
        raise ConfigError(
            f"plan.model.embedding_scale is {model.embedding_scale:g}, and {architecture} multiplies by "
            f"sqrt(hidden) = {math.sqrt(model.hidden):g}; train with that for a model that is to be exported"
        )
    inverse = model.head_columns if model.score_scale is None else model.score_scale**-2
    if not math.isclose(inverse, round(inverse), rel_tol=RELATIVE_ERROR):
        raise ConfigError(
            f"plan.model.score_scale is {model.score_scale:g}, which is 1 / sqrt({inverse:g}), and {architecture} "
            f"needs 1 / sqrt of a whole number; train with such a scale for a model that is to be exported"
        )
    windows = windows_config(model, "typed")
    return {
        "model_type": model_type,
        "max_position_embeddings": model.sequence,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn_width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv,
        "head_dim": model.head_columns,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": model.norm_epsilon,
        "query_pre_attn_scalar": round(inverse),
        "attn_logit_softcapping": model.score_cap,
        "final_logit_softcapping": model.logits_cap,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "layer_types": [ALL] * model.layers,
        **windows,
        "sliding_window": windows["sliding_window"] or model.sequence,  # transformers need one
        **rope_config(model),
    }


def logits(config: Config, tensors: Tensors, tokens: torch.Tensor) -> torch.Tensor:
    """tokens [B, S] -> logits [B, S, V]."""
    get, (B, S) = tensors.get, tokens.shape
    N, G, D = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    ago = torch.arange(S)[:, None] - torch.arange(S)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        unit = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + config["rms_norm_eps"])
        return unit * (1 + get(f"{name}.weight"))

    def capped(x: torch.Tensor, cap: float | None) -> torch.Tensor:
        return x if cap is None else cap * torch.tanh(x / cap)

    def attention(x: torch.Tensor, at: str, kind: str) -> torch.Tensor:
        q, k, v = (
            (x @ get(f"{at}.{name}_proj.weight").T).view(B, S, heads, D).transpose(1, 2)
            for name, heads in (("q", N), ("k", G), ("v", G))
        )
        if f"{at}.q_norm.weight" in tensors.names:
            q, k = norm(q, f"{at}.q_norm"), norm(k, f"{at}.k_norm")
        rope = config["rope_parameters"].get(kind, config["rope_parameters"])
        q, k = rotated(q, rope), rotated(k, rope)
        k, v = (y.repeat_interleave(N // G, 1) for y in (k, v))
        scores = q @ k.transpose(-1, -2) * config["query_pre_attn_scalar"] ** -0.5
        reach = config["sliding_window"] if kind == WINDOW else S
        hidden = (ago < 0) | (ago >= reach)
        shares = capped(scores, config["attn_logit_softcapping"]).masked_fill(hidden, -math.inf).softmax(-1)
        return (shares @ v).transpose(1, 2).reshape(B, S, N * D) @ get(f"{at}.o_proj.weight").T

    x = get("model.embed_tokens.weight")[tokens] * math.sqrt(config["hidden_size"])
    for n, kind in enumerate(config["layer_types"]):
        at = f"model.layers.{n}"
        y = attention(norm(x, f"{at}.input_layernorm"), f"{at}.self_attn", kind)
        x = x + norm(y, f"{at}.post_attention_layernorm")
        y = norm(x, f"{at}.pre_feedforward_layernorm")
        gate, up = (y @ get(f"{at}.mlp.{name}_proj.weight").T for name in ("gate", "up"))
        y = (F.gelu(gate, approximate="tanh") * up) @ get(f"{at}.mlp.down_proj.weight").T
        x = x + norm(y, f"{at}.post_feedforward_layernorm")
    table = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return capped(norm(x, "model.norm") @ get(table).T, config["final_logit_softcapping"])
