"""Preemption: SIGTERM, SIGUSR1 or SIGINT (Ctrl-C) to any process of a job makes all ranks save once and exit.

The exit code is 75, or 130 if the launcher received Ctrl-C.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from trivium.errors import Interrupted, Preempted, TriviumError

BY_SCHEDULERS = (signal.SIGTERM, signal.SIGUSR1)
SIGNALS = (*BY_SCHEDULERS, signal.SIGINT)
# Schedulers signal every process of a job, and launchers forward signals: one request may arrive more than once.
ONE_REQUEST_SECONDS = 1.0


class EndedAtOnce(TriviumError):
    """A second signal was received: nothing was saved. The exit code is that of a process that the signal killed."""

    def __init__(self, number: int) -> None:
        super().__init__(
            f"{signal.Signals(number).name} was received a second time: ended at once, without saving; run the same "
            f"command again to resume from the last checkpoint"
        )
        self.exit_code = 128 + number


class Requests:
    """Signals that this process received. asked: the name of the first, or an empty string; since: when it came. again:
    the number of the second, or 0."""

    def __init__(self) -> None:
        self.asked, self.again, self.since = "", 0, 0.0

    def came(self) -> bool:
        return bool(self.asked)

    @property
    def by_user(self) -> bool:
        """Whether the signal was SIGINT, so that a person is waiting for the process to exit."""
        return self.asked == signal.SIGINT.name

    def preempted(self, text: str) -> Preempted:
        """Return the error with which a launcher ends that received a signal."""
        return (Interrupted if self.by_user else Preempted)(text)

    def note(self, number: int, at_second: Callable[[int], object]) -> None:
        """Record a signal; call `at_second` if it is a second request."""
        if not self.asked:
            self.since = time.monotonic()
            self.asked = signal.Signals(number).name
        elif time.monotonic() - self.since >= ONE_REQUEST_SECONDS:
            self.again = number
            at_second(number)


def ignore_signals() -> None:
    """Ignore all requests to end: this process has saved and is about to exit."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def exit_at_once(number: int) -> NoReturn:
    """Exit at the second signal, without saving."""
    os._exit(128 + number)


@contextmanager
def listening(at_second: Callable[[int], object]) -> Iterator[Requests]:
    """Record SIGTERM, SIGUSR1 and SIGINT inside this context instead of obeying them; a second one calls `at_second`.

    Python runs its own handlers only between two instructions, and a rank may wait in a collective for minutes; so the
    signals reach a thread through a pipe. Only the main thread can listen; in others nothing is recorded. A signal for
    which nothing inside ended goes to the handler that was installed before. SIGINT stays ignored if it was, as in
    background jobs of shell scripts.
    """
    requests, obeyed = Requests(), False
    if threading.current_thread() is not threading.main_thread():
        yield requests
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    heard = BY_SCHEDULERS if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else SIGNALS
    before = {number: signal.signal(number, lambda *_: None) for number in heard}
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def listen() -> None:
        while (got := os.read(reading, 1)) != b"\0":
            if got[0] in SIGNALS:
                requests.note(got[0], at_second)
        os.close(reading)

    listener = threading.Thread(target=listen, daemon=True, name="signals")
    listener.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        yield requests
    except (Preempted, EndedAtOnce):
        obeyed = True
        raise
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.write(writing, b"\0")
        listener.join()  # it has recorded all signals
        os.close(writing)
        if requests.asked and not obeyed:
            number = signal.Signals[requests.asked]
            outer = before[number]
            if callable(outer):
                outer(number, None)


@contextmanager
def held_back(signals: tuple[signal.Signals, ...] = SIGNALS) -> Iterator[None]:
    """Block signals inside this context, and in forked processes until they listen: none is lost and none kills."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
