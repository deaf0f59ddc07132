"""One job per run directory: a lock that the kernel takes back from the dead, and a lease for other hosts.

The lock (flock) is held by the job's processes and goes when the last of them ends, however it ends. Some file
systems do not share locks between hosts, or have none; there the lease decides, a file whose age says whether its
holder lives.
"""

import fcntl
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from trivium.errors import MachineError
from trivium.provenance import WITHOUT_LOCKS
from trivium.units import format_seconds

LEASE = "lease.json"
RENEW_SECONDS = 10.0
STALE_SECONDS = 120.0  # a lease that nobody renewed for so long is nobody's
_LEAST_SECONDS = 2.5 * RENEW_SECONDS  # that another host's is looked at, however old: clocks of hosts differ
_LOOK_SECONDS = 1.0  # between two looks at another host's


class Holder(NamedTuple):
    """Who holds a run directory: process, host, and since when it was held and last renewed (seconds, epoch)."""

    pid: int
    host: str
    started: float
    renewed: float


@contextmanager
def holding(directory: Path, warn: Callable[[str], None]) -> Iterator[Holder]:
    """Hold a run directory; MachineError names pid, host and age of another job that does.

    A thread renews the lease as long as this process lives, whatever it does. Where only the lease can tell whether a
    job on another host lives, this waits until it would have been renewed or is stale. warn: is told of that, and of
    a lease that a dead job left. Processes forked inside hold the lock too.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LEASE
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        before = _read(descriptor)
        _outlive(before, path, _may_live(descriptor, before, _LEAST_SECONDS), warn)
        if not (path.exists() and os.path.samestat(os.fstat(descriptor), path.stat())):
            raise MachineError(
                f"{directory} was set aside by another job at this moment; run the same command again"
            )
        if before is not None:
            warn(f"{path} was left by {_told(before)}, which is gone; taken over")
        now = time.time()
        holder = Holder(os.getpid(), socket.gethostname(), now, now)
        _write(descriptor, holder)
        try:
            with _renewed(descriptor, holder):
                yield holder
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def holder_of(directory: Path) -> Holder | None:
    """The job that holds a run directory now, if one does."""
    try:
        descriptor = os.open(directory / LEASE, os.O_RDWR)
    except OSError:
        return None
    try:
        before = _read(descriptor)
        if _may_live(descriptor, before) > 0:
            return before or Holder(0, "unknown", 0.0, 0.0)
        return None
    finally:
        os.close(descriptor)


def refuse_if_held(directory: Path) -> None:
    """MachineError when a job holds a run directory."""
    holder = holder_of(directory)
    if holder is not None:
        raise MachineError(_refusal(directory / LEASE, holder))


def _may_live(descriptor: int, holder: Holder | None, least: float = 0.0) -> float:
    """Seconds for which a holder that says nothing more counts as alive; endless where the kernel says that it is.

    least: for one that only the lease tells of.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        tells_of_this_host = True
    except BlockingIOError:
        return math.inf
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        tells_of_this_host = False
    if holder is None or (tells_of_this_host and holder.host == socket.gethostname()):
        return 0.0
    return min(STALE_SECONDS, max(least, holder.renewed + STALE_SECONDS - time.time()))


def _outlive(holder: Holder | None, path: Path, seconds: float, warn: Callable[[str], None]) -> None:
    """Return when a lease that nobody renews is stale; MachineError as soon as its holder is seen to live."""
    if seconds == math.inf:
        raise MachineError(_refusal(path, holder))
    if holder is not None and seconds > 0:
        warn(f"{path} is held by {_told(holder)}; waiting up to {seconds:.0f} s to see whether that lives")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(min(_LOOK_SECONDS, seconds))
        now = _read_anew(path)
        if now is None:
            return  # it has ended
        if now != holder:
            raise MachineError(_refusal(path, now))


@contextmanager
def _renewed(descriptor: int, holder: Holder) -> Iterator[None]:
    """Inside, a thread says now and then that this process lives."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(RENEW_SECONDS):
            with suppress(OSError):  # the next time it may work again
                _write(descriptor, holder._replace(renewed=time.time()))

    thread = threading.Thread(target=renew, daemon=True, name="lease")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _refusal(path: Path, holder: Holder | None) -> str:
    who = _told(holder) if holder else "another job, which has not yet written its name"
    return (
        f"{path.parent} is being written by {who}; wait until it ends, end it, or choose another --out. A job that "
        f"died on another host is given up after {STALE_SECONDS:.0f} s"
    )


def _told(holder: Holder) -> str:
    age = format_seconds(max(0.0, time.time() - holder.started))
    return f"pid {holder.pid} on {holder.host}, begun {age} ago"


def _write(descriptor: int, holder: Holder) -> None:
    text = json.dumps(holder._asdict()).encode()
    # Of one length, so that a reader never meets the end of an older one.
    os.pwrite(descriptor, text.ljust(256), 0)
    os.fsync(descriptor)  # else a network file system may keep it from other hosts for half a minute


def _read_anew(path: Path) -> Holder | None:
    """As other hosts left it: a network file system looks for changes when a file is opened."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> Holder | None:
    try:
        found: dict[str, Any] = json.loads(os.pread(descriptor, 4096, 0))
        return Holder(int(found["pid"]), str(found["host"]), float(found["started"]), float(found["renewed"]))
    except (ValueError, KeyError, TypeError):
        return None
