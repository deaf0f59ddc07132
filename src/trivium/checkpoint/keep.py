"""Which checkpoints may go: a pure decision."""

from collections.abc import Sequence


def expired(existing: Sequence[int], *, keep_last: int, keep_every: int = 0) -> list[int]:
    """The steps whose checkpoints are no longer wanted; the newest `keep_last` and every n-th are kept."""
    ordered = sorted(existing)
    recent = set(ordered[-keep_last:])
    return [s for s in ordered if s not in recent and not (keep_every and s % keep_every == 0)]
