"""Seconds of single operations on one device; numbers, or arrays with one entry per plan.

Matrix products follow a roofline whose ceiling falls with shapes that fill tiles and waves badly and with short
inner lengths. Everything else is bound by the bytes it moves.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trivium.cost.constants import Constants
from trivium.cost.hardware import Machine
from trivium.plan.layers.part import Number

# Rows and columns of a tile, and the speed of a kernel with such tiles over the best one's.
TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (64, 128, 0.8), (64, 64, 0.6))
FLASH_WIDTH = 128  # of heads whose speed is that of the constants
FLASH_ROWS = 128  # of a block of fused attention
ALIGNED = 8  # elements that tensor cores want side by side


@dataclass(frozen=True)
class Device:
    """The rates of one device for operands of `width` bytes; fp16: 1 where those of two bytes are that, not bf16.

    A rank computes on one: of a CPU, one core.
    """

    machine: Machine
    constants: Constants
    width: Number
    fp16: Number = 0

    @cached_property
    def peak(self) -> Number:
        """FLOP/s."""
        peak, width = self.machine.peak, np.asarray(self.width)
        narrow = np.where(np.asarray(self.fp16) > 0, peak.fp16, peak.bf16)
        return np.where(width <= 2, narrow, np.where(width <= 4, peak.fp32, peak.fp64))

    @cached_property
    def gemm(self) -> Number:
        """Fraction of peak of the best product."""
        share: Number = getattr(self.constants, f"gemm_{self.machine.generation}")
        return share

    @cached_property
    def flash(self) -> Number:
        """Fraction of peak of fused attention."""
        share: Number = getattr(self.constants, f"flash_{self.machine.generation}")
        return share

    @cached_property
    def memory(self) -> Number:
        """Bytes per second that element-wise work reaches."""
        return self.machine.memory_bandwidth * self.constants.memory

    def moved(self, moved_bytes: Number, operations: Number = 1.0) -> Number:
        """Seconds of operations bound by memory."""
        return moved_bytes / self.memory + operations * self.constants.operation_seconds

    def attention(self, flops: Number, heads: Number, rows: Number, width: Number) -> Number:
        """Seconds of one fused attention of so many FLOPs, over `heads` heads of all sequences, each `width` wide: to
        each score belong as many products as that, and one exponential."""
        narrowness = self.constants.flash_width
        speed: Number = self.peak * self.flash * (1 + narrowness / FLASH_WIDTH) / (1 + narrowness / width)
        if self.machine.multiprocessors:
            blocks = heads * rows / FLASH_ROWS / self.machine.multiprocessors
            speed = speed * blocks / (blocks + self.constants.flash_ramp)
        return flops / speed + self.constants.operation_seconds

    def product(self, m: Number, n: Number, k: Number, batch: Number = 1) -> Number:
        """Seconds of `batch` products of m x k by k x n."""
        speed = self.peak * self.gemm * self._filled(m, n, batch) * k / (k + self.constants.gemm_ramp)
        if self.machine.multiprocessors:
            aligned = (np.mod(k, ALIGNED) == 0) & (np.mod(n, ALIGNED) == 0)
            plain = self.machine.peak.fp32 * self.constants.misaligned  # without tensor cores
            speed = np.where(aligned, speed, np.minimum(speed, plain))
        moved = self.width * batch * (m * k + k * n + m * n)
        seconds: Number = np.maximum(2.0 * m * n * k * batch / speed, moved / self.memory)
        return seconds + self.constants.operation_seconds

    def weight_gradient(self, m: Number, n: Number, k: Number) -> Number:
        """Seconds of the gradient of a weight n x k after m rows: on a processor the rows of gradients are first
        written transposed."""
        seconds = self.product(n, k, m)
        if self.machine.generation != "cpu":
            return seconds
        moved: Number = 2 * self.width * m * n / self.memory
        return seconds + moved

    def _filled(self, m: Number, n: Number, batch: Number) -> Number:
        """Share of the device that the best tiling keeps busy."""
        if not self.machine.multiprocessors:
            return 1.0
        best: Number = 0.0
        for rows, columns, speed in TILES:
            tiles = np.ceil(m / rows) * np.ceil(n / columns) * batch
            used = m * n * batch / (tiles * rows * columns)
            waves = tiles / self.machine.multiprocessors
            best = np.maximum(best, speed * used * (waves / np.ceil(waves)) ** self.constants.gemm_wave)
        return best
