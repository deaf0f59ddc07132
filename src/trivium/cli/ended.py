"""Verbs end in order when they are asked to: what they brought in, or began, goes with them."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Inside, a signal that ends this process raises SystemExit(128 + signal): a copy of a model, or a training, goes
    first. What is forked from here ends by the signal itself, without clearing up what is this process's."""
    own = os.getpid()

    def end(number: int, _: FrameType | None) -> None:
        if os.getpid() != own:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        for other in ENDING:  # one request may come several times
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
