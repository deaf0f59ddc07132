"""Causal attention of bf16 activations on a processor, by batched products of some heads and queries at a time.

PyTorch's fused kernel takes twice as long there: its products are of small tiles. As in it, scores, probabilities and
their gradient are fp32 and only rounded to bf16 as operands of the next product. Where the processor multiplies tiles
itself (Intel's AMX), that kernel's forward takes 40 % of this one's time, and its backward is the slower one still.
Where it multiplies bf16 numbers slowly, or MKL runs its fast kernels on another maker's processor, block_attention.py
is for them.

Legend: B sequences, N heads, S positions, D head width, h heads and s queries of a block, K keys it sees.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from trivium.kernels.cpu.block_attention import empty_gradient
from trivium.kernels.cpu.processor import mkl_multiplies_faster, multiplies_bf16_slowly, multiplies_tiles

Tensor = torch.Tensor

# Fewer scores than these, and calling the products takes longer than they do.
MIN_SCORES = 1 << 19
# Scores of a block: in fp32 no more than a cache holds.
BLOCK_SCORES = 1 << 19
MAX_SHORT_POSITIONS, BLOCK_QUERIES, BLOCK_QUERIES_IN_LONG = 1024, 128, 256
LOG2_E = math.log2(math.e)  # powers of two take a processor a quarter of those of e


def suits(qkv: Tensor) -> bool:
    """Whether queries, keys and values [3, B, N, S, D] are attended faster here; the same on every rank."""
    scores = qkv.shape[1] * qkv.shape[2] * qkv.shape[3] ** 2
    return (
        qkv.dtype == torch.bfloat16
        and scores >= MIN_SCORES
        and not (
            multiplies_tiles() and qkv.shape[3] >= MAX_SHORT_POSITIONS
        )  # there all of the fused kernel is the faster
        and hasattr(torch.backends.mkldnn, "matmul")
        and not multiplies_bf16_slowly()
        and (multiplies_tiles() or not mkl_multiplies_faster())
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def attend(qkv: Tensor) -> Tensor:
    """Return causal attention of queries, keys and values [3, B, N, S, D] as [B, N, S, D].

    In memory the result has its positions first, as the next product needs it.
    """
    return _Attention.apply(qkv)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor) -> Tensor:
        out, log_sums = _fused(qkv) if multiplies_tiles() else _by_blocks(qkv)
        ctx.save_for_backward(qkv, out, log_sums)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        qkv, out, log_sums = ctx.saved_tensors
        d_qkv = empty_gradient(qkv)
        into, grad = d_qkv.flatten(1, 2), grads[0].flatten(0, 1)
        out, log_sums = out.flatten(0, 1), log_sums.flatten(0, 1)
        with _exact_scores():
            for heads, (q, k, v) in _in_blocks(qkv.flatten(1, 2)):
                _gradients(into[:, heads], (q, k, v), grad[heads].contiguous(), (out[heads], log_sums[heads]))
        return d_qkv


def _fused(qkv: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the same as `_by_blocks` with PyTorch's kernel."""
    attend_fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, log_sums = attend_fused(*qkv.unbind(0), is_causal=True)
    return out, log_sums.mul(LOG2_E)


def _by_blocks(qkv: Tensor) -> tuple[Tensor, Tensor]:
    """Return the attention [B, N, S, D] and the binary logarithms [B, N, S] of the sums of exponentials."""
    B, N, S, D = qkv.shape[1:]
    out = qkv.new_empty(S, B, N, D).permute(1, 2, 0, 3)
    log_sums = torch.empty(B, N, S, dtype=torch.float32)
    rows, log_sums_of = out.flatten(0, 1), log_sums.flatten(0, 1)
    with _exact_scores():
        for heads, (q, k, v) in _in_blocks(qkv.flatten(1, 2)):
            wide = _Wide.of(q, k)
            for a, b in _queries(S):
                scores = wide.scores(a, b)
                largest = scores.amax(-1)
                p = torch.softmax(scores, -1, out=scores)
                log_sums_of[heads, a:b] = (largest - p.amax(-1).log_()) * LOG2_E
                rows[heads, a:b] = torch.bmm(p.to(v.dtype), v[:, :b])
    return out, log_sums


def _gradients(into: Tensor, qkv: tuple[Tensor, Tensor, Tensor], grad: Tensor, kept: tuple[Tensor, Tensor]) -> None:
    """Write the gradients of some heads into `into` [3, h, S, D]. grad: [h, S, D]. kept: the result [h, S, D] and the
    binary logarithms [h, S] of the sums of exponentials."""
    (q, k, v), (out, log_sums) = qkv, kept
    wide, wide_grad, values = _Wide.of(q, k), grad.float(), v.float().transpose(1, 2)
    # The sum of a row's probabilities times their gradients.
    along = (wide_grad * out).sum(-1, keepdim=True)
    d_k, d_v = (torch.zeros_like(wide.q) for _ in range(2))
    for a, b in _queries(q.shape[1]):
        p = wide.scores(a, b, LOG2_E).sub_(log_sums[:, a:b, None]).exp2_()
        d_scores = torch.bmm(wide_grad[:, a:b], values[:, :, :b]).sub_(along[:, a:b]).mul_(p).to(q.dtype)
        d_v[:, :b] += torch.bmm(p.to(q.dtype).transpose(1, 2), grad[:, a:b])
        d_k[:, :b] += torch.bmm(d_scores.transpose(1, 2), q[:, a:b])
        into[0, :, a:b] = torch.bmm(d_scores, k[:, :b]).mul_(wide.scale)
    into[1], into[2] = d_k.mul_(wide.scale), d_v


class _Wide(NamedTuple):
    """Queries [h, S, D] and keys [h, D, S] in fp32, and what is added to the scores of a block on the diagonal."""

    q: Tensor
    k: Tensor
    later: Tensor
    scale: float

    @classmethod
    def of(cls, q: Tensor, k: Tensor) -> "_Wide":
        later = torch.full((BLOCK_QUERIES_IN_LONG, BLOCK_QUERIES_IN_LONG), -math.inf).triu_(1)
        return cls(q.float(), k.float().transpose(1, 2), later, 1 / math.sqrt(q.shape[-1]))

    def scores(self, a: int, b: int, unit: float = 1.0) -> Tensor:
        """Return the scores of queries a to b with the keys before b, [h, s, K]; minus infinity for later keys."""
        found = torch.bmm(self.q[:, a:b], self.k[:, :, :b]).mul_(self.scale * unit)
        found[:, :, a:b].add_(self.later[: b - a, : b - a])
        return found


def _in_blocks(qkv: Tensor) -> Iterator[tuple[slice, tuple[Tensor, Tensor, Tensor]]]:
    """Yield q, k and v, some heads of [3, heads, S, D] at a time, contiguous."""
    heads, S = qkv.shape[1:3]
    step = max(1, BLOCK_SCORES // (min(S, _rows(S)) * S))
    for start in range(0, heads, step):
        which = slice(start, start + step)
        q, k, v = qkv[:, which].contiguous().unbind(0)
        yield which, (q, k, v)


def _queries(S: int) -> Iterator[tuple[int, int]]:
    for start in range(0, S, _rows(S)):
        yield start, min(start + _rows(S), S)


def _rows(S: int) -> int:
    return BLOCK_QUERIES if S <= MAX_SHORT_POSITIONS else BLOCK_QUERIES_IN_LONG


@contextmanager
def _exact_scores() -> Iterator[None]:
    """Products of fp32 tensors by the processor's bf16 instructions: exact but for the order of sums where the
    numbers are bf16's, and the only products that take bf16 numbers and give fp32 ones."""
    settings = torch.backends.mkldnn.matmul  # pyrefly: ignore[missing-attribute]
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before
