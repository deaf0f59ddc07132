"""One job per run directory: a lock that the kernel takes back from the dead, and a lease for other hosts.

The lock (flock) is held by the job's processes and goes when the last of them ends, however it ends. Some file
systems do not share locks between hosts; there the lease decides, a file whose age says whether its holder lives.
"""

import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from trivium.errors import MachineError
from trivium.units import format_seconds

LEASE = "lease.json"
RENEW_SECONDS = 10.0
STALE_SECONDS = 120.0  # a lease that nobody renewed for so long is nobody's


class Holder(NamedTuple):
    """Who holds a run directory: process, host, and since when it was held and last renewed (seconds, epoch)."""

    pid: int
    host: str
    started: float
    renewed: float


class Lease:
    """The right to write in a run directory, while `holding`; `renew` is called now and then."""

    def __init__(self, descriptor: int, holder: Holder) -> None:
        self._descriptor, self._holder = descriptor, holder

    def renew(self) -> None:
        """Say that the job lives; costs nothing when it was said a moment ago."""
        now = time.time()
        if now - self._holder.renewed >= RENEW_SECONDS:
            self._holder = self._holder._replace(renewed=now)
            _write(self._descriptor, self._holder)


@contextmanager
def holding(directory: Path, warn: Callable[[str], None]) -> Iterator[Lease]:
    """Hold a run directory; MachineError names pid, host and age of another job that does.

    warn: is told of a lease that a dead job left. Processes forked inside hold the lock too.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LEASE
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        before = _read(descriptor)
        _refuse_if_held(descriptor, path, before)
        if not (path.exists() and os.path.samestat(os.fstat(descriptor), path.stat())):
            raise MachineError(
                f"{directory} was set aside by another job at this moment; run the same command again"
            )
        if before is not None:
            warn(f"{path} was left by {_told(before)}, which is gone; taken over")
        now = time.time()
        lease = Lease(descriptor, Holder(os.getpid(), socket.gethostname(), now, now))
        _write(descriptor, lease._holder)
        try:
            yield lease
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
        try:
            _refuse_if_held(descriptor, directory / LEASE, before)
        except MachineError:
            return before or Holder(0, "unknown", 0.0, 0.0)
        return None
    finally:
        os.close(descriptor)


def refuse_if_held(directory: Path) -> None:
    """MachineError when a job holds a run directory."""
    holder = holder_of(directory)
    if holder is not None:
        raise MachineError(_refusal(directory / LEASE, holder))


def _refuse_if_held(descriptor: int, path: Path, before: Holder | None) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise MachineError(_refusal(path, before)) from None
    elsewhere = before is not None and before.host != socket.gethostname()
    if elsewhere and before is not None and time.time() - before.renewed < STALE_SECONDS:
        raise MachineError(_refusal(path, before))


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
    os.pwrite(
        descriptor, text.ljust(256), 0
    )  # of one length, so that a reader never meets the end of an older one


def _read(descriptor: int) -> Holder | None:
    try:
        found: dict[str, Any] = json.loads(os.pread(descriptor, 4096, 0))
        return Holder(int(found["pid"]), str(found["host"]), float(found["started"]), float(found["renewed"]))
    except (ValueError, KeyError, TypeError):
        return None
