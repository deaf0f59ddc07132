"""One job per run directory: a lock that the kernel releases, and a lease for file systems without shared locks.

The lock (flock) is held by the job's processes and released when the last one ends, however it ends. Some file systems
have no locks or do not share them between hosts, and an NFS server may keep the lock of a host that died. There the
lease decides: a file that the job renews, so that its age shows whether the job is alive.
"""

import fcntl
import json
import math
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from trivium.errors import MachineError
from trivium.provenance import WITHOUT_LOCKS
from trivium.stores.lease import renewed
from trivium.units import format_seconds, shown
from trivium.untrusted import UnfitFile, only_regular, parse_json

LEASE = "lease.json"
RENEW_SECONDS = 10.0
STALE_SECONDS = 120.0  # after which a lease that was not renewed has expired
_MIN_WATCH_SECONDS = 2.5 * RENEW_SECONDS  # for a lease of another host of any age, because clocks of hosts differ
_CLAIM_SECONDS = 1.5 * RENEW_SECONDS  # after which every live job has read that its lease was taken over
_POLL_SECONDS = 1.0  # between two reads of another host's lease

# The owner of a lock. theirs: a live process, or a host that is gone. none: the file system has no locks.
Lock = Literal["ours", "theirs", "none"]
Warn = Callable[[str], None]


class Holder(NamedTuple):
    """The job that holds a run directory: process, host, and times of start and last renewal (seconds, epoch)."""

    pid: int
    host: str
    started: float
    renewed: float

    def is_same(self, other: "Holder | None") -> bool:
        """Whether both are the same job; the time of renewal may differ."""
        return other is not None and self[:3] == other[:3]


class Gone(NamedTuple):
    """Hosts of this job whose processes no longer write. ended: they said so. silent: they may be frozen."""

    ended: Collection[str] = ()
    silent: Collection[str] = ()


@contextmanager
def holding(directory: Path, warn: Warn, gone: Gone = Gone()) -> Iterator[Holder]:
    """Hold a run directory. Raises MachineError with pid, host and age of another job that does.

    A thread renews the lease as long as this process lives, and ends this process if another job took the lease over.
    If only the lease shows whether a job on another host is alive, this waits until it is renewed or expires. warn:
    called about that wait, and about a lease that a dead job left. gone: hosts whose leases are taken over without that
    wait. Forked processes hold the lock too.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LEASE
    if path.is_symlink():  # Its target would be overwritten.
        raise MachineError(
            f"{path} is a link to {path.readlink()}, but a lease must be a regular file; delete the link if you trust "
            "the run directory"
        )
    try:
        descriptor = only_regular(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o644), path)
    except (UnfitFile, IsADirectoryError) as error:
        raise MachineError(
            f"{path} cannot be a lease: {error.strerror}; delete it if you trust the run directory"
        ) from None
    try:
        lock, left = _lock(descriptor), _text(descriptor)
        former = _holder_in(left)
        host = former.host if former else ""
        if _is_local(left) or host not in {*gone.ended, *gone.silent}:
            lock = _wait_for_expiry(left, lock, descriptor, path, warn)
        if not (path.exists() and os.path.samestat(os.fstat(descriptor), path.stat())):
            raise MachineError(
                f"{directory} was set aside or taken over by another job just now; run the same command again"
            )
        if left:
            warn(f"{path} was left by {_described(left)}, which has ended; taken over")
        now = time.time()
        holder = Holder(os.getpid(), socket.gethostname(), now, now)
        if lock == "theirs":
            before, descriptor = descriptor, _replaced(path, holder)
            os.close(before)
        else:
            _write(descriptor, holder)
        if left and not _is_local(left) and host not in gone.ended:
            _claim(path, holder)
        try:
            with renewed(partial(_renew, descriptor, path, holder), RENEW_SECONDS, warn):
                yield holder
        finally:
            if holder.is_same(_holder_in(_text(descriptor))):
                os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def holder_of(directory: Path) -> Holder | None:
    """Return the job that holds a run directory, or None. A kept lock counts as held, even if its host may be gone."""
    try:
        path = directory / LEASE
        descriptor = only_regular(os.open(path, os.O_RDWR | os.O_NONBLOCK), path)
    except OSError:
        return None
    try:
        lock, text = _lock(descriptor), _text(descriptor)
        if lock == "theirs" or _seconds_to_expiry(lock, text) > 0:
            return _holder_in(text) or Holder(0, "unknown", 0.0, 0.0)
        return None
    finally:
        os.close(descriptor)


def refuse_if_held(directory: Path) -> None:
    """Raise MachineError if a job holds a run directory."""
    holder = holder_of(directory)
    if holder is not None:
        raise MachineError(_refusal(directory / LEASE, json.dumps(holder._asdict())))


def _lock(descriptor: int) -> Lock:
    """Try to take the lock of a lease; return its owner."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "theirs"
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        return "none"
    return "ours"


def _seconds_to_expiry(lock: Lock, left: str, least: float = 0.0) -> float:
    """Return the seconds for which the job of an unrenewed lease counts as alive: infinite if the kernel shows that it
    is, or if the owner of the lock is unknown.

    least: minimum for a job of which only the lease is known.
    """
    here, holder = _is_local(left), _holder_in(left)
    if lock == "theirs" and (here or holder is None):
        return math.inf
    if not left or (lock == "ours" and here):
        return 0.0
    renewed = holder.renewed if holder else -math.inf
    return min(STALE_SECONDS, max(least, renewed + STALE_SECONDS - time.time()))


def _wait_for_expiry(left: str, lock: Lock, descriptor: int, path: Path, warn: Warn) -> Lock:
    """Wait until an unrenewed lease expires, and return the owner of its lock. Raises MachineError as soon as the lease
    is renewed. A lock that is released meanwhile does not end the wait: it may have been that of another waiting job.
    """
    seconds = _seconds_to_expiry(lock, left, _MIN_WATCH_SECONDS)
    if seconds == math.inf:
        raise MachineError(_refusal(path, left))
    if seconds > 0:
        warn(f"{path} is held by {_described(left)}; waiting up to {seconds:.0f} s to see whether it is alive")
    now = left
    for now in _reads(path, seconds):
        if lock == "theirs":
            lock = _lock(descriptor)
        if now and now != left:
            raise MachineError(_refusal(path, now))
        if not now and lock != "theirs":
            return lock  # The job has ended.
    if lock == "theirs" and not now:
        raise MachineError(_refusal(path, now))
    return lock


def _claim(path: Path, holder: Holder) -> None:
    """Wait until every live job has read the new lease: its former holder, which may have been frozen, and jobs that
    took it over at the same time, of which the last to write keeps it. Raises MachineError if that is another job."""
    for now in _reads(path, _CLAIM_SECONDS):
        if not holder.is_same(_holder_in(now)):
            raise MachineError(_refusal(path, now))


def _reads(path: Path, seconds: float) -> Iterator[str]:
    """Yield the text of a lease repeatedly for some seconds. A read that takes longer than a renewal starts the time
    again, because the server was away, so that the holder could not renew its lease either."""
    reads = left = math.ceil(seconds / _POLL_SECONDS)
    while left > 0:
        time.sleep(_POLL_SECONDS)
        begin = time.monotonic()
        now = _fresh_text(path)
        left = reads if time.monotonic() - begin > RENEW_SECONDS else left - 1
        yield now


def _replaced(path: Path, holder: Holder) -> int:
    """Replace a lease whose lock a server keeps for a dead host; return the new file's descriptor, locked. With the old
    file, other jobs of this host could not see whether this one is alive."""
    fresh = path.with_name(f".{path.name}.{holder.host}.{holder.pid}.{holder.started}")
    descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    _lock(descriptor)
    _write(descriptor, holder)
    fresh.rename(path)
    return descriptor


def _renew(descriptor: int, path: Path, holder: Holder) -> str:
    """Renew the lease, or return why not: another job holds it."""
    now = _fresh_text(path)
    if _holder_in(now) is not None and not holder.is_same(_holder_in(now)):
        return (
            f"{path} was taken over by {_described(now)}, as this job did not renew it for {STALE_SECONDS:.0f} s: it "
            f"was stopped, or its file system was away. This job ends, so that only one writes; its steps since the "
            f"last checkpoint are lost"
        )
    _write(descriptor, holder._replace(renewed=time.time()))
    return ""


def _refusal(path: Path, text: str) -> str:
    unnamed = f"; if a file server keeps the lock of a host that died, and no job is alive, delete {path}"
    return (
        f"{path.parent} is being written by {_described(text)}; wait until it ends, end it, or choose another --out. "
        f"The lease of a job that died on another host expires after {STALE_SECONDS:.0f} s"
        f"{'' if _holder_in(text) else unnamed}"
    )


def _described(text: str) -> str:
    holder = _holder_in(text)
    if holder is None:
        return "another job, which is not named in the lease"
    age = format_seconds(max(0.0, time.time() - holder.started))
    return f"pid {holder.pid} on {holder.host}, started {age} ago"


def _write(descriptor: int, holder: Holder) -> None:
    text = json.dumps(holder._asdict()).encode()
    # Texts of equal length, so that no end of an older one remains.
    os.pwrite(descriptor, text.ljust(256), 0)
    os.fsync(descriptor)  # Otherwise other hosts may see it half a minute later.


def _text(descriptor: int) -> str:
    return os.pread(descriptor, 4096, 0).decode(errors="replace")


def _fresh_text(path: Path) -> str:
    """Return the text of a lease as other hosts wrote it: network file systems check for changes when a file is opened.
    Returns "" if it is gone; raises OSError if it cannot be read, because its holder is then unknown."""
    try:
        descriptor = only_regular(os.open(path, os.O_RDONLY | os.O_NONBLOCK), path)
    except FileNotFoundError:
        return ""
    try:
        return _text(descriptor)
    finally:
        os.close(descriptor)


def _holder_in(text: str) -> Holder | None:
    try:
        found: dict[str, Any] = parse_json(text)
        times = float(found["started"]), float(found["renewed"])
        return Holder(int(found["pid"]), shown(str(found["host"])), *times) if all(map(math.isfinite, times)) else None
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def _is_local(text: str) -> bool:
    holder = _holder_in(text)
    return holder is not None and holder.host == socket.gethostname()
