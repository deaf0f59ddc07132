"""Causal attention from its definition, for the readings of exported folders."""

import math

import torch

Tensor = torch.Tensor


def attend(q: Tensor, k: Tensor, v: Tensor, window: int | None = None) -> Tensor:
    """Causal attention, [B, N, S, D]."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    place = torch.arange(q.shape[2])
    ago = place[:, None] - place
    hidden = (ago < 0) | (ago >= (window or len(place)))
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
