"""How a station tells whoever runs it how far it is; the command line decides how to show it."""

from typing import Protocol


class Progress(Protocol):
    """Called with the work done so far, the total if known, and one short line saying what it is."""

    def __call__(self, done: int, total: int | None, note: str) -> None: ...


def silent(done: int, total: int | None, note: str) -> None:
    """The progress that shows nothing."""
