"""Logits of an exported folder, read and computed as Hugging Face's architectures define them.

Written from their definitions and from the folder alone: it shares nothing with the engine or the exporter, whose
work it checks.

Legend: B sequences, S positions, H hidden, N heads, G key-value heads, D head width.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open

from trivium.untrusted import read_json

Tensor = torch.Tensor
Get = Callable[[str], Tensor]


def logits(folder: Path, tokens: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """tokens [B, S] -> logits [B, S, vocabulary], computed in `dtype`, whatever that of the files."""
    config = read_json(folder / "config.json")
    with torch.no_grad():
        if config["architectures"] == ["GPT2LMHeadModel"]:
            return _gpt2(config, _reader(folder, dtype), tokens)
        return _llama(config, _reader(folder, dtype), tokens)


def _reader(folder: Path, dtype: torch.dtype) -> Get:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        where = read_json(index)["weight_map"]
    else:
        with safe_open(str(folder / "model.safetensors"), framework="pt") as file:
            where = dict.fromkeys(file.keys(), "model.safetensors")

    def get(name: str) -> Tensor:
        with safe_open(str(folder / where[name]), framework="pt") as file:
            found: Tensor = file.get_tensor(name)
        return found.to(dtype)

    return get


def _gpt2(config: Mapping[str, Any], get: Get, tokens: Tensor) -> Tensor:
    B, S = tokens.shape
    N, H, epsilon = config["n_head"], config["n_embd"], config["layer_norm_epsilon"]

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (H,), get(f"{name}.weight"), get(f"{name}.bias"), epsilon)

    def conv(x: Tensor, name: str) -> Tensor:  # weight [inputs, outputs]
        return x @ get(f"{name}.weight") + get(f"{name}.bias")

    x = get("transformer.wte.weight")[tokens] + get("transformer.wpe.weight")[:S]
    for layer in range(config["n_layer"]):
        at = f"transformer.h.{layer}"
        qkv = conv(norm(x, f"{at}.ln_1"), f"{at}.attn.c_attn")
        q, k, v = (y.view(B, S, N, H // N).transpose(1, 2) for y in qkv.chunk(3, dim=-1))
        y = _attend(q, k, v).transpose(1, 2).reshape(B, S, H)
        x = x + conv(y, f"{at}.attn.c_proj")
        up = conv(norm(x, f"{at}.ln_2"), f"{at}.mlp.c_fc")
        gelu_new = 0.5 * up * (1 + torch.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
        x = x + conv(gelu_new, f"{at}.mlp.c_proj")
    table = "transformer.wte.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return norm(x, "transformer.ln_f") @ get(table).T


def _llama(config: Mapping[str, Any], get: Get, tokens: Tensor) -> Tensor:
    B, S = tokens.shape
    N, G, D = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    (kind,) = config["architectures"]
    olmo = kind in ("Olmo2ForCausalLM", "Olmo3ForCausalLM")  # whose half blocks end with their norms

    def norm(x: Tensor, name: str) -> Tensor:
        return (
            x
            * torch.rsqrt(x.square().mean(-1, keepdim=True) + config["rms_norm_eps"])
            * get(f"{name}.weight")
        )

    def linear(x: Tensor, name: str, *, biased: bool = False) -> Tensor:
        y = x @ get(f"{name}.weight").T
        return y + get(f"{name}.bias") if biased else y

    def heads_of(y: Tensor, n: str, at: str) -> Tensor:  # [B, heads, S, D] of queries, keys or values
        heads = N if n == "q" else G
        found = linear(y, f"{at}.{n}_proj", biased=kind == "Qwen2ForCausalLM")
        if olmo and n != "v":  # over all heads at once
            found = norm(found, f"{at}.{n}_norm")
        found = found.view(B, S, heads, D)
        if kind == "Qwen3ForCausalLM" and n != "v":
            found = norm(found, f"{at}.{n}_norm")
        return found.transpose(1, 2)

    def turn(x: Tensor, layer: int) -> Tensor:
        speeds, length = _speeds(_rope(config, layer), D)
        angles = torch.arange(S).double()[:, None] * speeds
        cos, sin = (torch.cat([length * f(angles)] * 2, dim=-1).to(x) for f in (torch.cos, torch.sin))
        a, b = x[..., : D // 2], x[..., D // 2 :]
        return x * cos + torch.cat([-b, a], dim=-1) * sin

    x = get("model.embed_tokens.weight")[tokens]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        y = x if olmo else norm(x, f"{at}.input_layernorm")
        q, k, v = (heads_of(y, n, f"{at}.self_attn") for n in ("q", "k", "v"))
        k, v = (z.repeat_interleave(N // G, dim=1) for z in (turn(k, layer), v))
        y = _attend(turn(q, layer), k, v, _window(config, layer)).transpose(1, 2).reshape(B, S, N * D)
        y = linear(y, f"{at}.self_attn.o_proj")
        x = x + (norm(y, f"{at}.post_attention_layernorm") if olmo else y)
        y = x if olmo else norm(x, f"{at}.post_attention_layernorm")
        y = F.silu(linear(y, f"{at}.mlp.gate_proj")) * linear(y, f"{at}.mlp.up_proj")
        y = linear(y, f"{at}.mlp.down_proj")
        x = x + (norm(y, f"{at}.post_feedforward_layernorm") if olmo else y)
    table = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return norm(x, "model.norm") @ get(table).T


def _rope(config: Mapping[str, Any], layer: int) -> Mapping[str, Any]:
    """How a layer turns queries and keys: as all do, or as those of its type."""
    given: Mapping[str, Any] = config["rope_parameters"]
    if "rope_type" in given:
        return given
    found: Mapping[str, Any] = given[config["layer_types"][layer]]
    return found


def _speeds(rope: Mapping[str, Any], D: int) -> tuple[Tensor, float]:
    """Radians for each position of every pair of columns [D/2], and what sines and cosines are multiplied by."""
    kind, base = rope["rope_type"], rope["rope_theta"]
    speeds = base ** (-torch.arange(0, D, 2).double() / D)
    if kind == "default":
        return speeds, 1.0
    slow = speeds / rope["factor"]
    if kind == "linear":
        return slow, 1.0
    span = rope["original_max_position_embeddings"]
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        smooth = (span * speeds / (2 * math.pi) - low) / (high - low)
        between = (1 - smooth) * slow + smooth * speeds
        return torch.where(smooth > 1, speeds, torch.where(smooth < 0, slow, between)), 1.0

    def pair(turns: float) -> float:  # that turns so often over the span
        return D * math.log(span / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(pair(rope["beta_fast"])), 0), min(math.ceil(pair(rope["beta_slow"])), D - 1)
    kept = 1 - ((torch.arange(D // 2) - low) / (high - low if high != low else 0.001)).clamp(0, 1)
    unsaid = 0.1 * math.log(rope["factor"]) + 1 if rope["factor"] > 1 else 1.0
    return slow * (1 - kept) + speeds * kept, rope.get("attention_factor", unsaid)


def _window(config: Mapping[str, Any], layer: int) -> int | None:
    """How many positions a layer's queries see, themselves included; None for all before."""
    if config.get("layer_types", ["sliding_attention"] * (layer + 1))[layer] == "full_attention":
        return None
    window: int | None = config.get("sliding_window")
    return window


def _attend(q: Tensor, k: Tensor, v: Tensor, window: int | None = None) -> Tensor:
    """Causal attention, [B, N, S, D]."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    place = torch.arange(q.shape[2])
    ago = place[:, None] - place
    hidden = (ago < 0) | (ago >= (window or len(place)))
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
