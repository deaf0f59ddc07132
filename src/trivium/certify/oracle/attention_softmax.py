"""Softmax attention with a scale and soft caps, with all scores.

Legend: B sequences, S positions, H hidden, N heads, G key-value heads, D columns of a head.
"""

import math
from collections.abc import Iterator

import torch

from trivium.certify.oracle.norms import rms
from trivium.certify.oracle.positions import enlarged, rotated
from trivium.certify.oracle.terms import Order, Rule, Settings, Tensor, Twin, Weights, linear


def _sizes(s: Settings) -> tuple[int, int, int]:
    form = s.form
    D = form.head_width if form.head_width is not None else form.hidden // form.heads
    return form.heads, form.kv_heads if form.kv_heads is not None else form.heads, D


def _rules(s: Settings, at: str) -> Iterator[tuple[str, Rule]]:
    (N, G, D), H = _sizes(s), s.form.hidden
    yield f"{at}.qkv.weight", s.matrix((N + 2 * G) * D, H)
    yield f"{at}.out.weight", s.matrix(H, N * D, residual=True)
    if s.form.bias in ("qkv", "all"):
        yield f"{at}.qkv.bias", Rule(((N + 2 * G) * D,))
    if s.form.bias == "all":
        yield f"{at}.out.bias", Rule((H,))
    if s.form.qk_norm != "none":
        queries, keys = (D, D) if s.form.qk_norm == "each_head" else (N * D, G * D)
        yield f"{at}.query_norm.weight", Rule((queries,), mean=1.0 - _offset(s))
        yield f"{at}.key_norm.weight", Rule((keys,), mean=1.0 - _offset(s))


def _offset(s: Settings) -> float:
    """Return what is added to the weights of the norms of queries and keys."""
    return 1.0 if s.form.norm == "rms_norm_offset" else 0.0


def _compute(weights: Weights, s: Settings, x: Tensor, at: str, order: Order) -> Tensor:
    (B, S, _), f = x.shape, s.form
    N, G, D = _sizes(s)
    rows = linear(weights, x, f"{at}.qkv")
    q, k, v = torch.split(rows.view(B, S, G, N // G + 2, D), [N // G, 1, 1], dim=3)
    if f.qk_norm != "none":
        q, k = (_normed(s, y, _offset(s) + weights[f"{at}.{n}_norm.weight"]) for y, n in ((q, "query"), (k, "key")))
    if f.positions == "rotary":
        n = f.rope_columns if f.rope_columns is not None else D
        q, k = (torch.cat([rotated(f, y[..., :n], order.numbers), y[..., n:]], dim=-1) for y in (q, k))
    scores = torch.einsum("bsgnd,btgd->bgnst", q, k.squeeze(3))
    scores = scores * (f.score_scale if f.score_scale is not None else 1 / math.sqrt(D)) * enlarged(f)
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


ATTENTION_SOFTMAX = Twin(_rules, _compute)
