"""Overlap of compute and communication, and products whose result is reduced in parts while the rest is computed: in
chunks by Trivium, or tile by tile by simulated hardware.

T3 (Pati et al., ASPLOS 2024, arXiv 2401.16677) triggers the reduce-scatter of each tile of a product when the tile is
stored, and adds what arrives in the memory itself. Its authors simulate a speed-up of communication-heavy sublayers of
30 % (geometric mean; 47 % at most) and 22 % less data movement. The figures computed here are simulated, too.
"""

from typing import NamedTuple

import numpy as np

from trivium.plan.layers.part import Number

TILE = 128  # rows and columns of a product's tile


def pipelined_seconds(work: Number, moving: Number, parts: Number) -> Number:
    """Return the seconds of `parts` equal parts, each computed for `work` seconds and then moved for `moving` seconds.

    This is a flow shop of two machines: one part is computed at a time, and one is moved. One part takes work + moving;
    infinitely many small parts take the longer of the two sums.
    """
    parts = np.asarray(parts, dtype=float)
    seconds: Number = work + moving + (parts - 1) * np.maximum(work, moving)
    return seconds


def ring_seconds(work: Number, moving: Number, ranks: Number) -> Number:
    """Return the seconds of a product in a ring: one piece for each rank is computed for `work` seconds, and all but
    one move for `moving` seconds, each while another is computed."""
    seconds: Number = work + (np.asarray(ranks) - 1) * np.maximum(work, moving)
    return seconds


def added_seconds(work: Number, moving: Number, overlap: float) -> Number:
    """Return the exposed communication time: max(work, moving) + (1 - overlap) min(work, moving) - work."""
    together: Number = np.maximum(work, moving) + (1 - overlap) * np.minimum(work, moving)
    return together - work


def tiled_seconds(product: Number, reduction: Number, start: Number, tiles: Number) -> Number:
    """Return the seconds of a product whose result is reduced tile by tile, with one start-up of the reduction."""
    flowing = np.maximum(reduction - start, 0.0)
    together: Number = start + pipelined_seconds(product / tiles, flowing / tiles, tiles)
    return np.minimum(together, product + reduction)


def tiles_of(rows: Number, columns: Number) -> Number:
    """Return the number of tiles of a product's result."""
    tiles: Number = np.ceil(np.asarray(rows) / TILE) * np.ceil(np.asarray(columns) / TILE)
    return tiles


class Moved(NamedTuple):
    """Bytes that one device reads and writes for a product, the ring reduce-scatter of its result, and the following
    all-gather."""

    product: Number
    reduction: Number
    gather: Number

    @property
    def total(self) -> Number:
        return self.product + self.reduction + self.gather


def moved_by_kernels(operands: Number, result: Number, degree: Number) -> Moved:
    """Return the bytes with separate kernels on a ring of `degree` slices. The first hop reads one slice, each other
    hop reads the received slice and its own, and the last writes the sum. Every received slice is a write."""
    d = np.asarray(degree, dtype=float)
    slices = result / d
    return Moved(operands + result, (3 * d - 1) * slices, 2 * (d - 1) * slices)


def moved_when_triggered(operands: Number, result: Number, degree: Number) -> Moved:
    """Return the bytes with triggered collectives. The first slice is stored into the neighbour's memory. The other
    slices and all received ones are added in memory (one write each), and a slice is read once to be sent."""
    d = np.asarray(degree, dtype=float)
    slices = result / d
    return Moved(operands + (d - 1) * slices, (2 * d - 3) * slices, 2 * (d - 1) * slices)
