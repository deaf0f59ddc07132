"""Causal attention and rotary positions from their definitions, for the readings of exported folders."""

import math
from collections.abc import Mapping
from typing import Any

import torch

Tensor = torch.Tensor


def attend(q: Tensor, k: Tensor, v: Tensor, window: int | None = None) -> Tensor:
    """Causal attention, [B, N, S, D]."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    place = torch.arange(q.shape[2])
    ago = place[:, None] - place
    hidden = (ago < 0) | (ago >= (window or len(place)))
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


def rotated(x: Tensor, rope: Mapping[str, Any]) -> Tensor:
    """Rotate x [..., S, D] by its positions S. A pair is a column of the first half and the same one of the second.

    rope: `rope_parameters` of a config.json.
    """
    cos, sin = (y.to(x) for y in rotation(rope, *x.shape[-2:]))
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def rotation(rope: Mapping[str, Any], S: int, D: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [S, D/2] in fp64, multiplied by the attention factor. D: rotated columns of a head."""
    speeds, factor = _speeds(rope, D)
    angles = torch.arange(S).double()[:, None] * speeds
    return factor * angles.cos(), factor * angles.sin()


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

    def pair(turns: float) -> float:  # the pair that turns `turns` times over the span
        return D * math.log(span / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(pair(rope["beta_fast"])), 0), min(math.ceil(pair(rope["beta_slow"])), D - 1)
    kept = 1 - ((torch.arange(D // 2) - low) / (high - low if high != low else 0.001)).clamp(0, 1)
    unsaid = 0.1 * math.log(rope["factor"]) + 1 if rope["factor"] > 1 else 1.0
    return slow * (1 - kept) + speeds * kept, rope.get("attention_factor", unsaid)
