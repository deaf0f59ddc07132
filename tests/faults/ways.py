"""Faults that a small fp64 model on one host does not show: blocks and pieces, loss scale, clipping, network."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from faults.context import APART, PACKED
from faults.mutant import fault, plan
from trivium.certify.ways import FAR, LARGE, NARROW
from trivium.comms import transports
from trivium.kernels import attention
from trivium.kernels.attention import Known
from trivium.kernels.cpu import block_attention, gelu
from trivium.kernels.cpu.block_attention import Block
from trivium.kernels.sight import Sight, Tile
from trivium.parallel.context import ring as ring_attention
from trivium.parallel.sharding.zero import ShardedOptimizer
from trivium.parallel.tensor import regions as tensor

Tensor = torch.Tensor

PACKED_RING = plan(context=2, model={**APART, "sequence": 12})  # half of a rank's part has three positions, a block two


@fault(gelu, "_by_pieces", plan(), way=LARGE)
def last_piece_left_out(original, mesh):
    """A function that is computed in pieces leaves out the last, shorter one."""

    def by_pieces(x: Tensor, y: Tensor, slope: Tensor | None) -> None:
        original(x, y, slope)
        y.view(-1)[y.numel() // gelu.PIECE_ELEMENTS * gelu.PIECE_ELEMENTS :] = 0

    return by_pieces


@fault(block_attention, "_later", plan(), way=LARGE)
def block_sees_a_later_key(original, mesh):
    """The causal mask of a block of queries lets each see the key after its own."""

    def later(blocks: Sequence[Block], window: int | None, q: Tensor) -> Tensor | None:
        found: Tensor | None = original(blocks, window, q)
        return None if found is None else found.roll(1, dims=1)

    return later


@fault(block_attention, "_blocks", plan(model={"window": 3}), PACKED, way=LARGE)
def reach_of_the_last_query(original, mesh):
    """A block of queries gets the keys that are visible to its last query; its first query should see earlier ones."""

    def blocks(S: int, sight: Sight) -> list[Block]:
        first = sight.first_seen(np.arange(S)).min(1)
        found: list[Block] = original(S, sight)
        return [each._replace(keys=slice(max(0, int(first[each.queries].max())), each.keys.stop)) for each in found]

    return blocks


@fault(block_attention, "_blocks", PACKED, way=LARGE)
def block_of_one_document(original, mesh):
    """A block of queries in which a document starts has no mask, so that all see what its first query sees."""

    def blocks(S: int, sight: Sight) -> list[Block]:
        return [each._replace(masked=False) for each in original(S, sight)]

    return blocks


@fault(tensor, "_some_rows", plan(tensor=2), way=LARGE)
def first_rows_only(original, mesh):
    """A loop over blocks of rows ends after the first block."""
    return lambda *tensors: list(original(*tensors))[:1]


@fault(ring_attention, "_tiles", PACKED_RING, way=NARROW)
def block_reaches_into_the_next_half(original, mesh):
    """A ring's last block of queries is as long as the others although fewer are left: queries of the next half are
    computed twice."""

    def tiles(sight: Sight, here: int, there: int, *, has_kernel: bool) -> Iterator[Tile]:
        for tile in original(sight, here, there, has_kernel=has_kernel):
            start = tile.here.start
            yield tile._replace(here=slice(start, start + ring_attention.BLOCK_QUERIES))

    return tiles


@fault(attention, "gradients_by_scores", plan(context=2), PACKED_RING, way=NARROW)
def row_sums_left_out(original, mesh):
    """Where a ring materialises its scores, the gradient of the softmax omits the sum over the row."""

    def gradients(grad: Tensor, qkv: Any, known: Known, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return original(grad, qkv, known._replace(wide=torch.zeros_like(known.wide)), mask)

    return gradients


@fault(ShardedOptimizer, "_factor", plan(), plan(data=2))
def small_gradients_raised_to_the_clip(original, mesh):
    """Gradients are divided by their norm even if it is below the clip; Adam hides this if it holds at all steps."""

    def factor(self: ShardedOptimizer, square: Tensor, loss_scale: float) -> float:
        clip = self.rule.clip
        return original(self, square, loss_scale) if clip == 0 else clip / (float(square.sqrt()) + 1e-6)

    return factor


@fault(ShardedOptimizer, "_factor", plan(), way=NARROW)
def clipped_in_scaled_units(original, mesh):
    """The norm of the gradients with the loss scale is compared with the clip."""
    return lambda self, square, loss_scale: original(self, square * loss_scale**2, loss_scale)


@fault(ShardedOptimizer, "_clear", plan(), plan(data=2), way=NARROW)
def refused_gradients_stay(original, mesh):
    """A step whose gradients overflowed is skipped without clearing them, so that the next step adds to them."""
    updates: dict[int, int] = {}

    def clear(self: ShardedOptimizer) -> None:
        refused = updates.get(id(self), 0) == self.steps_done
        updates[id(self)] = self.steps_done
        if not refused:
            original(self)

    return clear


@fault(ShardedOptimizer, "_clear", plan(), plan(data=2), way=NARROW)
def refused_steps_counted(original, mesh):
    """A skipped step counts for the bias correction of Adam's moments, which it did not change."""
    updates: dict[int, int] = {}

    def clear(self: ShardedOptimizer) -> None:
        self.steps_done += updates.get(id(self), 0) == self.steps_done
        updates[id(self)] = self.steps_done
        original(self)

    return clear


@fault(transports, "combine", plan(data=2, zero=1), way=FAR)
def own_slice_at_the_first_place(original, mesh):
    """Values that are received directly are added up as if every rank were the first of its group."""
    return lambda parts, own, index, out, **more: original(parts, own, 0, out, **more)
