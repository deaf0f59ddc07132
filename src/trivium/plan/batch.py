"""Batch arithmetic in one place: two numbers are chosen, the rest follows."""

import math
from functools import lru_cache
from typing import Annotated, NamedTuple

from trivium.config import Config, Positive, Short
from trivium.plan.constraints import divides_batch
from trivium.plan.layout import Layout
from trivium.plan.sizes import Sequences


class Ramp(Config):
    """The batch grows from `start` by `increment` over the first `samples` sequences (MT-NLG, section 3.2)."""

    start: Sequences  # sequences of the first batches
    increment: Sequences  # sequences added by each increase
    samples: Positive  # number of sequences over which the batch grows


class Segment(NamedTuple):
    """Steps of equal batch: from `first_step`, which starts at sample `first_sample`."""

    first_step: int
    first_sample: int
    sequences: int


class Step(NamedTuple):
    """The samples of one optimizer step: [first_sample, first_sample + sequences)."""

    first_sample: int
    sequences: int


class Batch(Config):
    """`sequences` per optimizer step over all replicas, run in micro-batches of `micro` sequences."""

    sequences: Annotated[Sequences, Short("batch")]  # global batch: sequences of an optimizer step over all replicas
    micro: Annotated[Sequences, Short("micro-batch")] = 1  # micro-batch: sequences that a replica processes at once
    ramp: Ramp | None = None  # growth of the batch at the start; None: full from the first step

    def micro_batches(self, layout: Layout, sequences: int | None = None) -> int:
        """Micro-batches each replica runs in a step of `sequences` (by default: of the full batch)."""
        return (sequences or self.sequences) // (self.micro * layout.data)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The ramp as a table: no sample is skipped or repeated at a change of batch."""
        return _segments(self)

    def _table(self) -> tuple[Segment, ...]:
        if self.ramp is None:
            return (Segment(0, 0, self.sequences),)
        rises = (self.sequences - self.ramp.start) // self.ramp.increment
        step = sample = 0
        table = []
        for rise in range(rises):
            size = self.ramp.start + rise * self.ramp.increment
            until = (rise + 1) * self.ramp.samples / rises
            table.append(Segment(step, sample, size))
            steps = max(0, math.ceil((until - sample) / size))
            step, sample = step + steps, sample + steps * size
        table.append(Segment(step, sample, self.sequences))
        return tuple(s for s, after in zip(table, [*table[1:], None], strict=True) if after is None or after[0] > s[0])

    def at(self, step: int) -> Step:
        """The samples of a step, counted from 0."""
        segment = max((s for s in self.segments if s.first_step <= step), key=lambda s: s.first_step)
        return Step(segment.first_sample + (step - segment.first_step) * segment.sequences, segment.sequences)

    def steps_for(self, samples: int) -> int:
        """The first number of steps that consumes at least `samples` sequences."""
        segment = max((s for s in self.segments if s.first_sample <= samples), key=lambda s: s.first_sample)
        return segment.first_step + math.ceil((samples - segment.first_sample) / segment.sequences)

    def problems(self, layout: Layout) -> list[str]:
        """Sizes that do not divide into micro-batches over the replicas, or a ramp that misses its end."""
        found = []
        per_wave = self.micro * layout.data
        if not divides_batch(self.sequences, self.micro, layout.data):
            found.append(
                f"plan.batch.sequences ({self.sequences}) must be a multiple of plan.batch.micro x "
                f"plan.layout.data ({self.micro} x {layout.data} = {per_wave}); nearest: "
                f"{nearest_multiples(self.sequences, per_wave)}"
            )
        if self.ramp is None:
            return found
        if self.ramp.start > self.sequences or (self.sequences - self.ramp.start) % self.ramp.increment:
            found.append(
                f"plan.batch.ramp: from {self.ramp.start} by {self.ramp.increment} never reaches "
                f"plan.batch.sequences ({self.sequences}), which must be the start plus a multiple of the increment; "
                f"set plan.batch.ramp=null for batches of one size"
            )
        for name in ("start", "increment"):
            if not divides_batch(getattr(self.ramp, name), self.micro, layout.data):
                found.append(
                    f"plan.batch.ramp.{name} ({getattr(self.ramp, name)}) must be a multiple of plan.batch.micro "
                    f"x plan.layout.data ({self.micro} x {layout.data} = {per_wave}); nearest: "
                    f"{nearest_multiples(getattr(self.ramp, name), per_wave)}"
                )
        return found


# Remembered by value, not in the object: a copy with another batch must not keep the old table.
@lru_cache(maxsize=1024)
def _segments(batch: Batch) -> tuple[Segment, ...]:
    return batch._table()


def nearest_multiples(value: int, of: int) -> str:
    """40, 16 -> '32 or 48', as remedies in messages."""
    below, above = value // of * of, -(-value // of) * of
    return f"{below} or {above}" if below else str(above)
