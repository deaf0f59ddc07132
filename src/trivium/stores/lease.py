"""One job per run at a URL: a numbered object that names the job that writes there, and that the job renews.

Of several jobs that begin at once only one can create the next number, where the store has conditional writes. A job
that finds a higher number than its own has been taken over, and ends. Elsewhere two jobs that begin within a second of
each other may both start; the checkpoints stay whole, as files are named by their content and a manifest is one object.
"""

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

from pydantic import Field

from trivium.config import Config, build, to_tree
from trivium.errors import ConfigError, MachineError, TriviumError
from trivium.stores.remote import Remote
from trivium.units import shown
from trivium.untrusted import parse_json, read_text

RENEW_SECONDS = 30.0
STALE_SECONDS = 120.0  # after which a lease that was not renewed has expired
POLL_SECONDS = 5.0
_NAME = re.compile(r"lease-(\d{8,})\.json")


class _Claim(Config):
    """What the job of a lease says of itself. processes: see `_processes`. Times are seconds since the epoch."""

    pid: Annotated[int, Field(ge=1, le=2**31 - 1)]
    host: str
    processes: str
    started: float
    renewed: float


@contextmanager
def holding_store(folder: Remote, warn: Callable[[str], None]) -> Iterator[None]:
    """Hold a run at a URL, and renew its lease in a thread. Raises MachineError with pid and host of another job that
    does; waits until the lease of a job is renewed or expires, unless that job gave it back, or is known to have ended:
    it ran in the same PID namespace."""
    number, text = _newest(folder)
    if text and not _has_ended(text):
        _wait_for_expiry(folder, number, text, warn)
    own, begun = folder / f"lease-{number + 1:08d}.json", time.time()
    here = {"pid": os.getpid(), "host": socket.gethostname(), "processes": _processes()}

    def claim() -> bytes:
        return json.dumps(to_tree(_Claim(started=begun, renewed=time.time(), **here))).encode()

    first = claim()
    if not own.create(first) or own.read() != first:
        raise MachineError(f"{folder} was taken by another job just now: {_described(own.read())}; end one of the two")
    folder.delete(f"lease-{n:08d}.json" for n in _numbers(folder) if n <= number)

    def renew() -> str:
        found, now = _newest(folder)
        if found > number + 1:
            return (
                f"{folder} was taken over by {_described(now)}, as this job did not renew its lease for "
                f"{STALE_SECONDS:.0f} s. This job ends, so that only one writes"
            )
        own.write(claim())
        return ""

    try:
        with renewed(renew, RENEW_SECONDS, warn):
            yield
    finally:
        with suppress(TriviumError):
            own.write(b"")  # kept, so that its number is not used again


@contextmanager
def renewed(renew: Callable[[], str], seconds: float, warn: Callable[[str], None]) -> Iterator[None]:
    """Call `renew` every `seconds` in a thread. If it returns why the lease is lost, warn and end the process, and with
    it its ranks, because two jobs would write one place."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            with suppress(TriviumError, OSError):  # The next attempt may succeed.
                if why := renew():
                    warn(why)
                    os._exit(MachineError.exit_code)

    thread = threading.Thread(target=repeat, daemon=True, name="lease")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _wait_for_expiry(folder: Remote, number: int, text: bytes, warn: Callable[[str], None]) -> None:
    warn(f"{folder} is held by {_described(text)}; waiting until its lease is renewed or expires")
    for _ in range(int(STALE_SECONDS / POLL_SECONDS)):
        time.sleep(POLL_SECONDS)
        found, now = _newest(folder)
        if found == number and not now:
            return
        if (found, now) != (number, text):
            raise MachineError(
                f"{folder} is being written by {_described(now)}; wait until it ends, end it, or choose another "
                f"training.store"
            )
    warn(f"{folder} was left by {_described(text)}, which does not renew its lease; taken over")


def _numbers(folder: Remote) -> list[int]:
    return sorted(int(found[1]) for name in folder.sizes() if (found := _NAME.fullmatch(name)))


def _newest(folder: Remote) -> tuple[int, bytes]:
    """Return the number of the newest lease and its text; 0 and nothing without one."""
    numbers = _numbers(folder)
    if not numbers:
        return 0, b""
    with suppress(FileNotFoundError):
        return numbers[-1], (folder / f"lease-{numbers[-1]:08d}.json").read()
    return numbers[-1], b""


def _has_ended(text: bytes) -> bool:
    """Whether the job of a lease ran among the processes that this one can see, and has ended."""
    holder = _holder(text)
    if holder is None or not holder.processes or holder.processes != _processes():
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return holder.pid == os.getpid()


def _processes() -> str:
    """Return a text that is equal for jobs in which a process ID stands for the same process: those in one PID
    namespace of one boot. It is empty where the system does not tell. Containers may have equal host names."""
    with suppress(OSError):
        return f"{read_text('/proc/sys/kernel/random/boot_id').strip()} {Path('/proc/self/ns/pid').readlink()}"
    return ""


def _holder(text: bytes) -> _Claim | None:
    with suppress(ValueError, ConfigError):
        return build(_Claim, parse_json(text))
    return None


def _described(text: bytes) -> str:
    holder = _holder(text)
    return "another job" if holder is None else f"pid {holder.pid} on {shown(holder.host)}"
