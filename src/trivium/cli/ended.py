"""Verbs that ask a model end in order when they are asked to: what they brought in goes with them."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Inside, signals that end a process raise SystemExit: what was written aside, as a copy of a model, is removed."""

    def end(number: int, _: FrameType | None) -> None:
        for other in heard:  # one request may come several times
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    heard = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]  # nohup ignores one
    for number in heard:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_DFL)


def ended_by_signals() -> None:
    """For a fork: it clears up nothing, and in a collective it would not hear."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
