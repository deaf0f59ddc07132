"""Logits of a folder of Llama or of an architecture derived from it, from their definitions.

Legend: B sequences, S positions, H hidden, N heads, G key-value heads, D head width, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from trivium.families.common.attention import attend, rotated
from trivium.families.common.experts_logits import mixture
from trivium.families.common.family import Config, Tensors

Tensor = torch.Tensor


def logits(config: Config, tensors: Tensors, tokens: Tensor) -> Tensor:
    """tokens [B, S] -> logits [B, S, V]. Which norms and biases there are, the names of the tensors say."""
    (get, names), (B, S) = tensors, tokens.shape
    N, G, D = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    after = "model.layers.0.input_layernorm.weight" not in names  # halves end with their norms

    def norm(x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + config["rms_norm_eps"]) * get(f"{name}.weight")

    def linear(x: Tensor, name: str) -> Tensor:
        y = x @ get(f"{name}.weight").T
        return y + get(f"{name}.bias") if f"{name}.bias" in names else y

    def heads_of(y: Tensor, n: str, at: str) -> Tensor:  # [B, heads, S, D] of queries, keys or values
        heads = N if n == "q" else G
        found, of_heads = linear(y, f"{at}.{n}_proj"), f"{at}.{n}_norm"
        normed = f"{of_heads}.weight" in names
        if normed and len(get(f"{of_heads}.weight")) == heads * D:  # over all heads at once
            return norm(found, of_heads).view(B, S, heads, D).transpose(1, 2)
        found = found.view(B, S, heads, D)
        found = norm(found, of_heads) if normed else found
        return found.transpose(1, 2)

    x = get("model.embed_tokens.weight")[tokens]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        y = x if after else norm(x, f"{at}.input_layernorm")
        q, k, v = (heads_of(y, n, f"{at}.self_attn") for n in ("q", "k", "v"))
        q, k = (rotated(z, _rope(config, layer)) for z in (q, k))
        k, v = (z.repeat_interleave(N // G, dim=1) for z in (k, v))
        y = attend(q, k, v, _window(config, layer)).transpose(1, 2).reshape(B, S, N * D)
        y = linear(y, f"{at}.self_attn.o_proj")
        x = x + (norm(y, f"{at}.post_attention_layernorm") if after else y)
        y = x if after else norm(x, f"{at}.post_attention_layernorm")
        if f"{at}.mlp.down_proj.weight" in names:
            y = F.silu(linear(y, f"{at}.mlp.gate_proj")) * linear(y, f"{at}.mlp.up_proj")
            y = linear(y, f"{at}.mlp.down_proj")
        else:
            y = mixture(config, tensors, y, at)
        x = x + (norm(y, f"{at}.post_feedforward_layernorm") if after else y)
    table = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return norm(x, "model.norm") @ get(table).T


def _rope(config: Mapping[str, Any], layer: int) -> Mapping[str, Any]:
    """Return the rotary parameters of a layer: those of all layers, or of its type."""
    given: Mapping[str, Any] = config["rope_parameters"]
    if "rope_type" in given:
        return given
    found: Mapping[str, Any] = given[config["layer_types"][layer]]
    return found


def _window(config: Mapping[str, Any], layer: int) -> int | None:
    """Return the attention window of a layer in positions, including the query's own; None without a window."""
    if config.get("layer_types", ["sliding_attention"] * (layer + 1))[layer] == "full_attention":
        return None
    window: int | None = config.get("sliding_window")
    return window
