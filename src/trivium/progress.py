"""Progress callbacks. The command line decides how progress is shown."""

from typing import Protocol


class Progress(Protocol):
    """Called with the finished work, the total if it is known, and a short description."""

    def __call__(self, done: int, total: int | None, note: str) -> None: ...


def silent(done: int, total: int | None, note: str) -> None:
    """Ignore progress."""
