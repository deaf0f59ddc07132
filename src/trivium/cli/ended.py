"""Verbs that ask a model end in order when they are asked to: what they brought in goes with them."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Inside, SIGTERM raises SystemExit: what was written aside, as a copy of a model, is removed first."""

    def end(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # one request may come several times
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
