"""Asked to end: SIGTERM, SIGUSR1 or SIGINT (Ctrl-C) to any process of a job makes all ranks save once and end, with 75
or, where a user interrupted the launcher, with 130."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from trivium.errors import Interrupted, Preempted, TriviumError

BY_SCHEDULERS = (signal.SIGTERM, signal.SIGUSR1)
SIGNALS = (*BY_SCHEDULERS, signal.SIGINT)
# Schedulers signal every process of a job, and launchers pass on what they get: one request may come more than once.
ONE_REQUEST_SECONDS = 1.0


class EndedAtOnce(TriviumError):
    """A second signal came: nothing was saved. Its exit code is that of a process the signal killed."""

    def __init__(self, number: int) -> None:
        super().__init__(
            f"{signal.Signals(number).name} came a second time: ended at once, without saving; run the same command "
            f"again to go on from the last checkpoint"
        )
        self.exit_code = 128 + number


class Requests:
    """What signals asked of this process. asked: the first one's name, or nothing. again: the number of the second."""

    def __init__(self) -> None:
        self.asked = ""
        self.again = 0
        self.since = 0.0  # time.monotonic() of the first

    def came(self) -> bool:
        """Whether there was one."""
        return bool(self.asked)

    @property
    def by_user(self) -> bool:
        """Whether it was Ctrl-C, of somebody who waits for the end."""
        return self.asked == signal.SIGINT.name

    def preempted(self, text: str) -> Preempted:
        """What a launcher that was asked ends with."""
        return (Interrupted if self.by_user else Preempted)(text)

    def note(self, number: int, at_second: Callable[[int], object]) -> None:
        """Take note of a signal."""
        if not self.asked:
            self.since = time.monotonic()
            self.asked = signal.Signals(number).name
        elif time.monotonic() - self.since >= ONE_REQUEST_SECONDS:
            self.again = number
            at_second(number)


def ignores_interrupts() -> bool:
    """Whether Ctrl-C is for others: a shell's scripts start what is to run beside them so."""
    return signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def ignore_signals() -> None:
    """What a process does that has saved and is about to end."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def exit_at_once(number: int) -> NoReturn:
    """What a rank does at the second signal."""
    os._exit(128 + number)


@contextmanager
def listening(at_second: Callable[[int], object]) -> Iterator[Requests]:
    """Inside, SIGTERM, SIGUSR1 and SIGINT are noted instead of obeyed; a second one calls `at_second` at once.

    Python runs its own handlers only between two instructions, and a rank may wait in a collective for minutes; so
    the signals come through a pipe to a thread. Only a process's main thread can listen; elsewhere nothing is noted.
    A request that came, and that nothing inside ended for, goes to the handler that was there before.
    """
    requests, obeyed = Requests(), False
    if threading.current_thread() is not threading.main_thread():
        yield requests
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    heard = BY_SCHEDULERS if ignores_interrupts() else SIGNALS
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
        listener.join()  # it has noted all that came
        os.close(writing)
        # What ends by itself takes no request along: who listens outside is told.
        if requests.asked and not obeyed:
            number = signal.Signals[requests.asked]
            outer = before[number]
            if callable(outer):
                outer(number, None)


@contextmanager
def held_back(signals: Sequence[signal.Signals] = SIGNALS) -> Iterator[None]:
    """Inside, signals wait, also in processes that are forked, until these listen: none is lost, none kills."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
