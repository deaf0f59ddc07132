"""When to save, and which checkpoints may go: pure decisions."""

from collections.abc import Sequence
from typing import Literal

Milestones = Literal["none", "pythia"]


def is_milestone(step: int, milestones: Milestones) -> bool:
    """Whether a step's checkpoint is saved and kept for studying training itself.

    pythia: steps 0, 1, 2, 4 … 512 and every 1000th (Pythia, arXiv 2304.01373, section 2.1).
    """
    if milestones == "none":
        return False
    return step % 1000 == 0 or (step <= 512 and step.bit_count() == 1)


def is_due(step: int, *, every: int, last: int, milestones: Milestones = "none") -> bool:
    """Whether the state after `step` steps is saved."""
    return is_milestone(step, milestones) or (step > 0 and step % every == 0) or step == last


def expired(
    existing: Sequence[int],
    *,
    newest: int,
    keep_last: int,
    keep_every: int = 0,
    milestones: Milestones = "none",
) -> list[int]:
    """The steps whose checkpoints are no longer wanted, now that `newest` is published.

    The `keep_last` newest up to it, every n-th, and milestones are kept. Later ones belong to a course that was
    left (they were damaged, and training went on from before them): they neither count nor go.
    """
    ordered = sorted(s for s in existing if s <= newest)
    recent = set(ordered[-keep_last:])
    return [
        s
        for s in ordered
        if s not in recent and not (keep_every and s % keep_every == 0) and not is_milestone(s, milestones)
    ]
