"""Seconds of single operations on one device; numbers, or arrays with one entry per plan.

Matrix products follow a roofline whose ceiling is lower for shapes that fill tiles and waves badly and for short inner
lengths. All other operations are bound by memory bandwidth.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from trivium.cost.constants import Constants
from trivium.cost.hardware import Machine
from trivium.plan.layers.part import Number

# Rows and columns of a tile, and the speed of a kernel with such tiles over the best one's.
TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (64, 128, 0.8), (64, 64, 0.6))
FLASH_WIDTH = 128  # head width for which the constants give the speed
FLASH_ROWS = 128  # rows per block of fused attention
ALIGNED_ELEMENTS = 8  # multiple that tensor cores require


@dataclass(frozen=True)
class Device:
    """The rates of one device (on a CPU: one core) for operands of `width` bytes. fp16: 1 if 16-bit operands are fp16,
    0 if they are bf16."""

    machine: Machine
    constants: Constants
    width: Number
    fp16: Number = 0

    @cached_property
    def peak(self) -> Number:
        """FLOP/s."""
        peak, width = self.machine.peak, np.asarray(self.width)
        narrow = np.where(np.asarray(self.fp16) > 0, peak.fp16, peak.bf16)
        found = np.where(width <= 2, narrow, np.where(width <= 4, peak.fp32, peak.fp64))
        return found if peak.float8 is None else np.where(width <= 1, peak.float8, found)

    @cached_property
    def gemm(self) -> Number:
        """Fraction of peak that the best product reaches."""
        share: Number = getattr(self.constants, f"gemm_{self.machine.generation}")
        return share

    @cached_property
    def flash(self) -> Number:
        """Fraction of peak that fused attention reaches."""
        share: Number = getattr(self.constants, f"flash_{self.machine.generation}")
        return share

    @cached_property
    def memory(self) -> Number:
        """Bytes per second that element-wise operations reach."""
        return self.machine.memory_bandwidth * self.constants.memory

    def widened(self, width: Number) -> "Device":
        """Return the device for operands of at least `width` bytes."""
        return replace(self, width=np.maximum(self.width, width))

    def of_float8(self) -> "Device":
        """Return the device for products of 8-bit numbers; itself where it has none."""
        return self if self.machine.peak.float8 is None else replace(self, width=1)

    def moved(self, moved_bytes: Number, operations: Number = 1.0) -> Number:
        """Return the seconds of memory-bound operations."""
        return moved_bytes / self.memory + operations * self.constants.operation_seconds

    def attention(self, flops: Number, heads: Number, rows: Number, width: Number) -> Number:
        """Return the seconds of one fused attention over `heads` heads of all sequences. Each score costs `width`
        products and one exponential."""
        narrowness = self.constants.flash_width
        speed: Number = self.peak * self.flash * (1 + narrowness / FLASH_WIDTH) / (1 + narrowness / width)
        if self.machine.multiprocessors:
            blocks = heads * rows / FLASH_ROWS / self.machine.multiprocessors
            speed = speed * blocks / (blocks + self.constants.flash_ramp)
        return flops / speed + self.constants.operation_seconds

    def product(self, m: Number, n: Number, k: Number, batch: Number = 1) -> Number:
        """Return the seconds of `batch` products of m x k by k x n."""
        speed = self.peak * self.gemm * self._filled(m, n, batch) * k / (k + self.constants.gemm_ramp)
        if self.machine.multiprocessors:
            aligned = (np.mod(k, ALIGNED_ELEMENTS) == 0) & (np.mod(n, ALIGNED_ELEMENTS) == 0)
            plain = self.machine.peak.fp32 * self.constants.misaligned  # without tensor cores
            speed = np.where(aligned, speed, np.minimum(speed, plain))
        moved = self.width * batch * (m * k + k * n + m * n)
        seconds: Number = np.maximum(2.0 * m * n * k * batch / speed, moved / self.memory)
        return seconds + self.constants.operation_seconds

    def weight_gradient(self, m: Number, n: Number, k: Number, batch: Number = 1) -> Number:
        """Return the seconds of the gradients of `batch` weights n x k for m rows each. A CPU first transposes the rows
        of gradients."""
        seconds = self.product(n, k, m, batch)
        if self.machine.generation != "cpu":
            return seconds
        moved: Number = 2 * self.width * m * n * batch / self.memory
        return seconds + moved

    def _filled(self, m: Number, n: Number, batch: Number) -> Number:
        """Return the fraction of the device that the best tiling keeps busy."""
        if not self.machine.multiprocessors:
            return 1.0
        best: Number = 0.0
        for rows, columns, speed in TILES:
            tiles = np.ceil(m / rows) * np.ceil(n / columns) * batch
            used = m * n * batch / (tiles * rows * columns)
            waves = tiles / self.machine.multiprocessors
            best = np.maximum(best, speed * used * (waves / np.ceil(waves)) ** self.constants.gemm_wave)
        return best
