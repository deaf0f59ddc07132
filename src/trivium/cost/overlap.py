"""Work and traffic side by side; and a product whose result is reduced part by part while the rest is computed: in
chunks by our runtime, or tile by tile by hardware that does not exist.

T3 (Pati et al., ASPLOS 2024, arXiv 2401.16677) triggers the reduce-scatter of each tile of a product when the tile is
stored, and adds what arrives in the memory itself. Its authors simulate a speed-up of communication-heavy sublayers of
30 % (geometric mean; 47 % at most) and 22 % less data movement. What is computed here is simulated too.
"""

from typing import NamedTuple

import numpy as np

from trivium.plan.layers.part import Number

TILE = 128  # rows and columns of a product's tile


def pipelined_seconds(work: Number, moving: Number, parts: Number) -> Number:
    """Seconds until `parts` equal parts, each worked on for `work` and then moved for `moving`, are all done.

    Work is one after another, moving is too, and a part moves once it was worked on: a flow shop of two machines.
    Its limits: one part takes work + moving; infinitely many small ones take the longer of the two sums.
    """
    parts = np.asarray(parts, dtype=float)
    seconds: Number = work + moving + (parts - 1) * np.maximum(work, moving)
    return seconds


def added_seconds(work: Number, moving: Number, overlap: float) -> Number:
    """What traffic adds to the work beside it: the longer of the two counts, and 1 - overlap of the shorter."""
    together: Number = np.maximum(work, moving) + (1 - overlap) * np.minimum(work, moving)
    return together - work


def tiled_seconds(product: Number, reduction: Number, start: Number, tiles: Number) -> Number:
    """A product and the reduction of its result, tile by tile: the reduction starts once, its bytes flow in parts."""
    flowing = np.maximum(reduction - start, 0.0)
    together: Number = start + pipelined_seconds(product / tiles, flowing / tiles, tiles)
    return np.minimum(together, product + reduction)


def tiles_of(rows: Number, columns: Number) -> Number:
    """Tiles of a product's result."""
    tiles: Number = np.ceil(np.asarray(rows) / TILE) * np.ceil(np.asarray(columns) / TILE)
    return tiles


class Moved(NamedTuple):
    """Bytes that one device reads and writes for a product, the ring reduce-scatter of its result, and the all-gather
    that follows it."""

    product: Number
    reduction: Number
    gather: Number

    @property
    def total(self) -> Number:
        return self.product + self.reduction + self.gather


def moved_by_kernels(operands: Number, result: Number, degree: Number) -> Moved:
    """A ring of kernels: of `degree` slices the first hop reads one; each other reads what arrived and its own; the
    last writes the sum; every hop's arrival is a write."""
    d = np.asarray(degree, dtype=float)
    slices = result / d
    return Moved(operands + result, (3 * d - 1) * slices, 2 * (d - 1) * slices)


def moved_when_triggered(operands: Number, result: Number, degree: Number) -> Moved:
    """The first slice is stored straight into the neighbour's memory; the others, and all that arrives, are added in
    memory (one write each), and a slice is read once to be sent on."""
    d = np.asarray(degree, dtype=float)
    slices = result / d
    return Moved(operands + (d - 1) * slices, (2 * d - 3) * slices, 2 * (d - 1) * slices)
