"""Causal attention on a CPU: PyTorch's fused kernel, called for some queries at a time with the keys that they attend
to.

If the kernel is called once for all queries, it skips keys in steps of 512, and with a mask it skips none: at 256
positions it computes every score and then hides half of them. With packed documents a block has the keys from the first
one that any of its queries attends to, and only that block is masked. Blocks are longer on Intel CPUs. If MKL
multiplies faster and positions are far apart in memory, as after a product of several sequences, the kernel reads a
copy in which the positions of each head are contiguous (this saves 15 to 25 % of its time on an Intel Xeon, 3 to 12 %
on a Zen 3).

If the CPU multiplies bf16 numbers slowly, the kernel reads fp32 copies of some heads at a time; what is kept for the
backward stays in bf16. If it multiplies them fast but has no tiles, only the backward reads copies: on a Zen 4 the
kernel's backward takes 1.1 to 2.4 times as long on bf16 numbers of heads with 32 or 64 columns, and as long with 128.

Legend: B sequences, N heads, G key-value heads, S positions, D head width, V head width of values, Q queries of a
block, K keys in its reach.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from trivium.kernels.cpu import fused_attention as processor_kernel
from trivium.kernels.cpu.processor import is_intel, mkl_multiplies_faster, multiplies_tiles
from trivium.kernels.sight import Sight

Tensor = torch.Tensor
Part = tuple[slice, slice]  # slices of sequences and of their heads

BLOCK_QUERIES, BLOCK_QUERIES_ON_INTEL, BLOCK_QUERIES_IN_WINDOW = 64, 128, 128
# With fewer scores or positions the calls take longer than they save; with more positions the kernel saves as much.
MIN_SCORES, MIN_POSITIONS = 1 << 18, 192
MAX_POSITIONS, MAX_POSITIONS_ON_INTEL, MAX_POSITIONS_WITHOUT_AVX512 = 1024, 768, 640
MIN_FAR_STRIDE_BYTES = 4096  # from a position to the next: a page, which maps to the same sets of a cache
# Elements of the queries that a thread processes at once: in fp32 these, keys and scores fit into a cache.
BLOCK_ELEMENTS = 1 << 17
# Columns of heads up to which a backward in fp32 is the faster one, and the positions up to which it is without a mask.
MAX_WIDENED_COLUMNS, MAX_WIDENED_POSITIONS = 128, 640

ALL_BEFORE = Sight((), None)


class Block(NamedTuple):
    """Queries of some positions, and the keys that one of them sees. triangle: they are the same positions. masked: of
    these keys some query does not see all up to its own."""

    queries: slice
    keys: slice
    triangle: bool
    masked: bool = False


def suits(q: Tensor, *, joined: bool = False) -> bool:
    """Whether queries [B, N, S, D] that see all before them are attended faster here; the same on every rank."""
    B, N, S, _ = q.shape
    if processor_kernel.widens(q) or (_widens_backward(q, ALL_BEFORE) and B * N * S * S >= MIN_SCORES):
        return True
    wide = q.dtype in (torch.float32, torch.float64) and B * N * S * S >= MIN_SCORES
    return wide and (_rows(S) < S or (joined and mkl_multiplies_faster()))


def attend(q: Tensor, k: Tensor, v: Tensor, sight: Sight = ALL_BEFORE) -> Tensor:
    """Return the attention [B, N, S, V] of q [B, N, S, D] to k [B, G, S, D] and v [B, G, S, V], of all positions in
    order.

    The result has its positions first in memory, as the next product reads it. It keeps the same tensors for the
    backward as torch's attention, whatever the mask.
    """
    found: Tensor = _Apart.apply(q, k, v, sight)
    return found


def attend_joined(qkv: Tensor) -> Tensor:
    """Return the causal attention [B, N, S, D] of joined queries, keys and values [3, B, N, S, D] with equally many
    heads. The memory layouts of the result and of the joined gradient are those of `attend`."""
    found: Tensor = _Joined.apply(qkv)
    return found


def empty_gradient(qkv: Tensor) -> Tensor:
    """Allocate the gradient of queries, keys and values in the memory layout of the product that made them, so that the
    gradient of that product needs no copy."""
    _, B, N, S, D = qkv.shape
    return qkv.new_empty(S, B, N, 3, D).permute(3, 1, 2, 0, 4)


class _Apart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
        out, log_sums = _attend((q, k, v), sight)
        ctx.save_for_backward(q, k, v, out, log_sums)
        ctx.sight = sight
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, *found = ctx.saved_tensors
        d_q, d_k, d_v = (torch.empty_like(x) for x in (q, k, v))
        _gradients((d_q, d_k, d_v), grads[0], (q, k, v), found, ctx.sight)
        return d_q, d_k, d_v, None


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor) -> Tensor:
        far = qkv.stride(3) * qkv.element_size() >= MIN_FAR_STRIDE_BYTES
        if far and mkl_multiplies_faster() and not processor_kernel.widens(qkv[0]):
            qkv = qkv.contiguous()
        out, log_sums = _attend(qkv.unbind(0), ALL_BEFORE)
        ctx.save_for_backward(qkv, out, log_sums)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        qkv, *found = ctx.saved_tensors
        d_qkv = empty_gradient(qkv)
        _gradients(d_qkv.unbind(0), grads[0], qkv.unbind(0), found, ALL_BEFORE)
        return d_qkv


def _attend(qkv: Sequence[Tensor], sight: Sight) -> tuple[Tensor, Tensor]:
    """The result [B, N, S, V], and the logarithms [B, N, S] of the sums of exponentials."""
    q, k, v = qkv
    B, N, S, _ = q.shape
    out = q.new_empty(S, B, N, v.shape[-1]).permute(1, 2, 0, 3)
    # In one tensor: small ones that stay leave holes between large ones that go.
    log_sums = q.new_empty(B, N, S, dtype=torch.promote_types(q.dtype, torch.float32))
    blocks = _blocks(S, sight)
    hiding = _Hiding.of(blocks, sight, q)
    widens = processor_kernel.widens(q)
    for mine, theirs in _parts(q, k, widens):
        some_q, some_k, some_v = _operands(widens, q[mine], k[theirs], v[theirs])
        into, sums = out[mine], log_sums[mine]
        for block in blocks:
            here, there, triangle, _ = block
            into[:, :, here], sums[:, :, here] = processor_kernel.attend(
                *(some_q[:, :, here], some_k[:, :, there], some_v[:, :, there]),
                causal=triangle,
                hiding=hiding.of_block(block, mine),
            )
    return out, log_sums


def _gradients(
    into: Sequence[Tensor], grad: Tensor, qkv: Sequence[Tensor], found: Sequence[Tensor], sight: Sight
) -> None:
    """Write the gradients of queries, keys and values into `into`, from the results of `_attend`."""
    (q, k, v), (out, log_sums), (d_q, d_k, d_v) = qkv, found, into
    blocks = _blocks(q.shape[2], sight)
    hiding = _Hiding.of(blocks, sight, q)
    widens = processor_kernel.widens(q) or _widens_backward(q, sight)
    for mine, theirs in _parts(q, k, widens):
        some_q, some_k, some_v = _operands(widens, q[mine], k[theirs], v[theirs])
        some_grad, some_out = _operands(widens, grad[mine], out[mine])
        of_q, sums = d_q[mine], log_sums[mine]
        totals: list[Tensor] = []
        for block in reversed(blocks):
            here, there, triangle, _ = block
            of_q[:, :, here], *of_kv = processor_kernel.gradients(
                *(some_grad[:, :, here], some_q[:, :, here], some_k[:, :, there], some_v[:, :, there]),
                *(some_out[:, :, here], sums[:, :, here]),
                causal=triangle,
                hiding=hiding.of_block(block, mine),
            )
            if not totals and there.start == 0:  # the last block comes first, and sees all keys
                totals = [x.to(sums.dtype) for x in of_kv]
                continue
            # A key's gradient comes from several blocks: added in fp32 at least.
            totals = totals or [torch.zeros_like(x, dtype=sums.dtype) for x in (some_k, some_v)]
            for total, part in zip(totals, of_kv, strict=True):
                total[:, :, there] += part
        d_k[theirs], d_v[theirs] = totals


def _blocks(S: int, sight: Sight) -> list[Block]:
    rows = _rows(S, sight)
    starts, reach = range(0, S, rows), S if sight.window is None else sight.window
    if sight.starts is None:
        spans = [(a, min(a + rows, S), max(0, a - reach + 1)) for a in starts]
        return [Block(slice(a, b), slice(first, b), a == 0 and b <= reach) for a, b, first in spans]
    seen = sight.first_seen(np.arange(S))
    firsts, lasts = (by.reduceat(by.reduce(seen, 1), starts).tolist() for by in (np.minimum, np.maximum))
    return [
        Block(slice(a, min(a + rows, S)), slice(first, min(a + rows, S)), a == first == last, last > first)
        for a, first, last in zip(starts, firsts, lasts, strict=True)
    ]


def _rows(S: int, sight: Sight = ALL_BEFORE) -> int:
    """Queries of a block."""
    if sight.starts is None and sight.window is not None:
        return BLOCK_QUERIES_IN_WINDOW
    if MIN_POSITIONS > S:
        return S
    if sight.starts is not None:
        return BLOCK_QUERIES_ON_INTEL if is_intel() else BLOCK_QUERIES
    rows, most = _rows_and_positions(S)
    return rows if most >= S else S


def _rows_and_positions(S: int) -> tuple[int, int]:
    """Queries of a block that sees all before, and the most positions that are cut into blocks."""
    if is_intel():
        return BLOCK_QUERIES_ON_INTEL, MAX_POSITIONS_ON_INTEL
    if mkl_multiplies_faster():
        return max(BLOCK_QUERIES, min(S // 4, BLOCK_QUERIES_ON_INTEL)), MAX_POSITIONS_WITHOUT_AVX512
    return BLOCK_QUERIES, MAX_POSITIONS


def _later(blocks: Sequence[Block], window: int | None, q: Tensor) -> Tensor | None:
    """[Q, K], minus infinity where a key is later than the query or behind its window, both counted from the last: its
    last columns are what is added to the scores of a block that sees fewer keys, its last rows of one of fewer
    queries. None where every block is a triangle."""
    reaches = [there.stop - there.start for _, there, triangle, _ in blocks if not triangle]
    if not reaches:
        return None
    rows, keys = blocks[0].queries.stop, max(reaches)
    seen = torch.ones(rows, keys, dtype=torch.bool, device=q.device).tril(keys - rows)
    if window is not None:
        seen = seen.triu(keys - rows - window + 1)
    return q.new_zeros(seen.shape).masked_fill_(~seen, -math.inf)


class _Hiding(NamedTuple):
    """later: of `_later`. Where packed documents start within a block: first [B or 1, 1, S, 1], the first key that a
    query sees, and keys [S], their numbers."""

    later: Tensor | None
    first: Tensor | None
    keys: Tensor | None

    @classmethod
    def of(cls, blocks: Sequence[Block], sight: Sight, q: Tensor) -> "_Hiding":
        if sight.starts is None:
            return cls(_later(blocks, sight.window, q), None, None)
        # A window is part of what is first seen.
        later = _later(blocks, None, q)
        if not any(block.masked for block in blocks):
            return cls(later, None, None)
        keys = torch.arange(q.shape[2], dtype=torch.int32, device=q.device)
        return cls(later, sight.first_seen_on(q.device), keys)

    def of_block(self, block: Block, part: Part) -> Tensor | None:
        """Return the mask that is added to the scores of some heads, or None if only later keys are hidden."""
        here, there, triangle, masked = block
        if triangle or self.later is None:
            return None
        queries, keys = here.stop - here.start, there.stop - there.start
        later = self.later[-queries:, -keys:]
        if not masked:
            return later
        assert self.first is not None and self.keys is not None, "a document starts in it"
        first = self.first if self.first.shape[0] == 1 else self.first[part[0]]
        return torch.where(self.keys[there] < first[:, :, here], -math.inf, later)


def _widens_backward(q: Tensor, sight: Sight) -> bool:
    """Whether the backward of queries [B, N, S, D] is computed in fp32 although their products are fast in bf16."""
    return (
        q.dtype == torch.bfloat16
        and q.shape[3] <= MAX_WIDENED_COLUMNS
        and (sight.starts is not None or sight.window is not None or q.shape[2] <= MAX_WIDENED_POSITIONS)
        and not multiplies_tiles()
    )


def _parts(q: Tensor, k: Tensor, widens: bool) -> Iterator[tuple[Part, Part]]:
    """Yield parts of the queries and of the keys that their heads share. A part is everything or, if operands are
    converted to fp32 (widens), some sequences, or some groups of heads of one sequence."""
    (B, N, S, D), G = q.shape, k.shape[1]
    # A compiler cannot ask for the threads.
    threads = 1 if torch.compiler.is_compiling() else torch.get_num_threads()
    room = BLOCK_ELEMENTS * threads if widens else q.numel()
    sequences, groups = max(1, room // (N * S * D)), max(1, room // (N // G * S * D))
    for b in range(0, B, sequences):
        for g in range(0, G, groups):
            rows, heads = slice(b, b + sequences), slice(g * (N // G), (g + groups) * (N // G))
            yield (rows, heads), (rows, slice(g, g + groups))


def _operands(widens: bool, *given: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors in the dtype that the kernel reads."""
    return tuple(processor_kernel.wide(x) for x in given) if widens else given
