"""Attention of bf16 activations where the processor multiplies them slowly: in fp32, some heads at a time.

What stays for the backward is in bf16, as it would be of PyTorch's kernel, and the copies in fp32 of some heads are
gone before those of the next are made.

Legend: B sequences, N heads, G key-value heads, S positions, D head width.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from trivium.parallel import processor_kernel
from trivium.parallel.wide_attention import empty_gradient

Tensor = torch.Tensor
Part = tuple[slice, slice]  # of sequences, and of their heads

# Numbers of some heads' queries, for each thread: in fp32 these and what goes with them are in a cache.
AT_ONCE = 1 << 17


def suits(q: Tensor) -> bool:
    """Whether queries [B, N, S, D] are attended faster here; the same on every rank."""
    return processor_kernel.widens(q)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """q [B, N, S, D], k and v [B, G, S, D] -> [B, N, S, D], where no position sees a later one, or each sees the keys
    for which the mask [B or 1, 1, S, S] is true.

    In memory the result has its positions first, as what goes on to the next product."""
    # In the dtype of the queries, as torch's attention keeps it.
    hiding = None if mask is None else q.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf)
    found: Tensor = _Apart.apply(q, k, v, hiding)
    return found


def attend_joined(qkv: Tensor) -> Tensor:
    """Queries, keys and values of as many heads, [3, B, N, S, D] -> [B, N, S, D]; as `attend`."""
    found: Tensor = _Joined.apply(qkv)
    return found


class _Apart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, hiding: Tensor | None) -> Tensor:
        out, log_sums = _attend(q, k, v, hiding)
        ctx.save_for_backward(q, k, v, out, log_sums, hiding)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, *found, hiding = ctx.saved_tensors
        d_q, d_k, d_v = (torch.empty_like(x) for x in (q, k, v))
        _gradients((d_q, d_k, d_v), grads[0], (q, k, v), found, hiding)
        return d_q, d_k, d_v, None


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor) -> Tensor:
        q, k, v = qkv.unbind(0)
        out, log_sums = _attend(q, k, v, None)
        ctx.save_for_backward(qkv, out, log_sums)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        qkv, *found = ctx.saved_tensors
        d_qkv = empty_gradient(qkv)
        _gradients(d_qkv.unbind(0), grads[0], qkv.unbind(0), found, None)
        return d_qkv


def _attend(q: Tensor, k: Tensor, v: Tensor, hiding: Tensor | None) -> tuple[Tensor, Tensor]:
    B, N, S, D = q.shape
    out = q.new_empty(S, B, N, D).permute(1, 2, 0, 3)
    # In one tensor: small ones that stay leave holes between large ones that go.
    log_sums = q.new_empty(B, N, S, dtype=torch.float32)
    for mine, theirs in _parts(q, k):
        out[mine], log_sums[mine] = processor_kernel.attend(
            q[mine], k[theirs], v[theirs], causal=hiding is None, hiding=_of(hiding, mine)
        )
    return out, log_sums


def _gradients(
    into: Sequence[Tensor],
    grad: Tensor,
    qkv: Sequence[Tensor],
    found: Sequence[Tensor],
    hiding: Tensor | None,
) -> None:
    """Into those of q, k and v."""
    (q, k, v), (out, log_sums), (d_q, d_k, d_v) = qkv, found, into
    for mine, theirs in _parts(q, k):
        d_q[mine], d_k[theirs], d_v[theirs] = processor_kernel.gradients(
            *(grad[mine], q[mine], k[theirs], v[theirs], out[mine], log_sums[mine]),
            causal=hiding is None,
            hiding=_of(hiding, mine),
        )


def _parts(q: Tensor, k: Tensor) -> Iterator[tuple[Part, Part]]:
    """Of queries, and of the keys that these heads share: whole sequences, or of one some groups of heads."""
    (B, N, S, D), G = q.shape, k.shape[1]
    room = AT_ONCE * _threads()
    sequences, groups = max(1, room // (N * S * D)), max(1, room // (N // G * S * D))
    for b in range(0, B, sequences):
        for g in range(0, G, groups):
            rows, heads = slice(b, b + sequences), slice(g * (N // G), (g + groups) * (N // G))
            yield (rows, heads), (rows, slice(g, g + groups))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _threads() -> int:
    return torch.get_num_threads()


def _of(hiding: Tensor | None, part: Part) -> Tensor | None:
    return hiding if hiding is None or hiding.shape[0] == 1 else hiding[part[0]]
