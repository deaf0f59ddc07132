"""Decide when to save and which checkpoints to delete."""

from collections.abc import Iterable
from typing import Literal

Milestones = Literal["none", "pythia"] | int
PYTHIA_STEPS = 1000  # between two checkpoints of Pythia (arXiv 2304.01373, section 2.1)


def is_milestone(step: int, milestones: Milestones) -> bool:
    """Whether a step's checkpoint is saved and kept to study training itself.

    With a number these are step 0, its multiples, and the powers of two below it. "pythia" is 1000: steps 0, 1, 2,
    4 … 512 and every 1000th.
    """
    if milestones == "none":
        return False
    every = PYTHIA_STEPS if milestones == "pythia" else milestones
    return step % every == 0 or (step < every and step.bit_count() == 1)


def is_due(step: int, *, every: int, last: int, milestones: Milestones = "none") -> bool:
    """Whether the state after `step` steps is saved."""
    return is_milestone(step, milestones) or (step > 0 and step % every == 0) or step == last


def expired(
    existing: Iterable[int],
    *,
    newest: int,
    keep_last: int,
    keep_every: int = 0,
    milestones: Milestones = "none",
    reach: int = 1,
) -> list[int]:
    """Return the steps whose checkpoints can be deleted after `newest` was published.

    The `keep_last` newest up to it, every `keep_every`-th step and milestones are kept. Later steps were damaged, so
    that training resumed before them: they are neither counted nor deleted.

    reach: number of batches that a rewind after the next step skips. The newest checkpoint before them is kept, and
    the oldest one after it, which replaces it once it is as far back. So every later rewind has a checkpoint, if one
    was saved early enough.
    """
    ordered = sorted(s for s in existing if s <= newest)
    back = sum(s <= newest + 1 - reach for s in ordered)
    kept = {*ordered[-keep_last:], *ordered[max(0, back - 1) : back + 1]}
    return [
        s
        for s in ordered
        if s not in kept and not (keep_every and s % keep_every == 0) and not is_milestone(s, milestones)
    ]
