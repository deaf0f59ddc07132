"""When to save, and which checkpoints may go: pure decisions."""

from collections.abc import Iterable
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
    existing: Iterable[int],
    *,
    newest: int,
    keep_last: int,
    keep_every: int = 0,
    milestones: Milestones = "none",
    reach: int = 1,
) -> list[int]:
    """The steps whose checkpoints are no longer wanted, now that `newest` is published.

    The `keep_last` newest up to it, every n-th, and milestones are kept. Later ones belong to a course that was
    left (they were damaged, and training went on from before them): they neither count nor go.

    reach: how many batches a rewind of the next step leaves out. The newest checkpoint from before them is kept, and
    the oldest after it, which takes its place once that lies as far back: so of all that were saved one is there for
    every rewind to come, if any was saved before it.
    """
    ordered = sorted(s for s in existing if s <= newest)
    back = sum(s <= newest + 1 - reach for s in ordered)
    kept = {*ordered[-keep_last:], *ordered[max(0, back - 1) : back + 1]}
    return [
        s
        for s in ordered
        if s not in kept and not (keep_every and s % keep_every == 0) and not is_milestone(s, milestones)
    ]
