"""Softmax attention with a scale of its own and soft caps, with all scores.

Legend: B sequences, S positions, N heads, G key-value heads, D columns of a head.
"""

import math
from collections.abc import Iterator

import torch

from trivium.certify.oracle.attention_softmax import ATTENTION_SOFTMAX
from trivium.certify.oracle.norms import rms
from trivium.certify.oracle.positions import rotated
from trivium.certify.oracle.terms import Order, Rule, Settings, Tensor, Twin, Weights, linear


def _rules(s: Settings, at: str) -> Iterator[tuple[str, Rule]]:
    for name, rule in ATTENTION_SOFTMAX.rules(s, at):
        offset = s.form.norm == "rms_norm_offset" and "_norm." in name
        yield name, rule._replace(mean=0.0) if offset else rule


def _compute(weights: Weights, s: Settings, x: Tensor, at: str, order: Order) -> Tensor:
    (B, S, _), f = x.shape, s.form
    D = f.head_width if f.head_width is not None else f.hidden // f.heads
    N, G = f.heads, f.kv_heads if f.kv_heads is not None else f.heads
    rows = linear(weights, x, f"{at}.qkv")
    q, k, v = torch.split(rows.view(B, S, G, N // G + 2, D), [N // G, 1, 1], dim=3)
    if f.qk_norm != "none":
        offset = 1.0 if f.norm == "rms_norm_offset" else 0.0
        q, k = (_normed(s, y, offset + weights[f"{at}.{n}_norm.weight"]) for y, n in ((q, "query"), (k, "key")))
    if f.positions == "rotary":
        n = f.rope_columns if f.rope_columns is not None else D
        q, k = (torch.cat([rotated(f, y[..., :n], order.numbers), y[..., n:]], dim=-1) for y in (q, k))
    scores = torch.einsum("bsgnd,btgd->bgnst", q, k.squeeze(3))
    scores = scores * (f.score_scale if f.score_scale is not None else 1 / math.sqrt(D))
    if f.score_cap is not None:
        scores = f.score_cap * torch.tanh(scores / f.score_cap)
    sees = order.sees if f.window is None else order.sees.triu(1 - f.window)
    shares = scores.masked_fill(~sees[:, None, None], float("-inf")).softmax(-1)
    y = torch.einsum("bgnst,btgd->bsgnd", shares, v.squeeze(3))
    return linear(weights, y.reshape(B, S, N * D), f"{at}.out")


def _normed(s: Settings, x: Tensor, weight: Tensor) -> Tensor:
    """x [B, S, G, n, D]: each head by itself, or one row of all of them."""
    rows = x if s.form.qk_norm == "each_head" else x.flatten(2)
    return (rms(rows, s.form.norm_epsilon) * weight).view(x.shape)


ATTENTION_SCALED = Twin(_rules, _compute)
