"""Latent attention, with all scores.

Legend: B sequences, S positions, H hidden, N heads, L columns of the latent of keys and values, R rotated columns of a
head, P the others, V columns of a head of values.
"""

import math
from collections.abc import Iterator

import torch

from trivium.certify.oracle.norms import rms
from trivium.certify.oracle.positions import enlarged, rotated
from trivium.certify.oracle.terms import Order, Rule, Settings, Tensor, Twin, Weights, linear
from trivium.plan.latent import Latent


def _latent(s: Settings) -> Latent:
    assert s.form.latent is not None, "the form is of latent attention"
    return s.form.latent


def _rules(s: Settings, at: str) -> Iterator[tuple[str, Rule]]:
    a, N, H = _latent(s), s.form.heads, s.form.hidden
    queries = N * (a.plain_columns + a.rotated_columns)
    if a.query_rank is None:
        yield f"{at}.query.weight", s.matrix(queries, H)
    else:
        yield f"{at}.query_down.weight", s.matrix(a.query_rank, H)
        yield f"{at}.query_norm.weight", Rule((a.query_rank,), mean=1.0)
        yield f"{at}.query_up.weight", s.matrix(queries, a.query_rank)
    yield f"{at}.kv_down.weight", s.matrix(a.kv_rank + a.rotated_columns, H)
    yield f"{at}.kv_norm.weight", Rule((a.kv_rank,), mean=1.0)
    yield f"{at}.kv_up.weight", s.matrix(N * (a.plain_columns + a.value_columns), a.kv_rank)
    yield f"{at}.out.weight", s.matrix(H, N * a.value_columns, residual=True)


def _compute(weights: Weights, s: Settings, x: Tensor, at: str, order: Order) -> Tensor:
    a, N, (B, S, _) = _latent(s), s.form.heads, x.shape
    P, R, V = a.plain_columns, a.rotated_columns, a.value_columns

    def normed(latent: Tensor, name: str) -> Tensor:
        return rms(latent, a.norm_epsilon) * weights[f"{at}.{name}.weight"]

    if a.query_rank is None:
        q = linear(weights, x, f"{at}.query")
    else:
        q = linear(weights, normed(linear(weights, x, f"{at}.query_down"), "query_norm"), f"{at}.query_up")
    q_plain, q_rotated = torch.split(q.view(B, S, N, P + R), [P, R], dim=-1)
    latent, k_rotated = torch.split(linear(weights, x, f"{at}.kv_down"), [a.kv_rank, R], dim=-1)
    kv = linear(weights, normed(latent, "kv_norm"), f"{at}.kv_up").view(B, S, N, P + V)
    k_plain, v = torch.split(kv, [P, V], dim=-1)
    q_rotated = rotated(s.form, q_rotated.unsqueeze(3), order.numbers).squeeze(3)
    k_rotated = rotated(s.form, k_rotated.view(B, S, 1, 1, R), order.numbers).view(B, S, R)
    scores = torch.einsum("bsnp,btnp->bnst", q_plain, k_plain) + torch.einsum("bsnr,btr->bnst", q_rotated, k_rotated)
    scale = s.form.score_scale if s.form.score_scale is not None else 1 / math.sqrt(P + R)
    scores = scores * scale * enlarged(s.form)
    sees = order.sees if s.form.window is None else order.sees.triu(1 - s.form.window)
    shares = scores.masked_fill(~sees[:, None], float("-inf")).softmax(-1)
    y = torch.einsum("bnst,btnv->bsnv", shares, v)
    return linear(weights, y.reshape(B, S, N * V), f"{at}.out")


ATTENTION_LATENT = Twin(_rules, _compute)
