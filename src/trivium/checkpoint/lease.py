"""One job per run directory: a lock that the kernel takes back from the dead, and a lease for other hosts.

The lock (flock) is held by the job's processes and goes when the last of them ends, however it ends. Some file
systems do not share locks between hosts or have none, and a server of NFS may keep that of a host that died; there
the lease decides, a file whose age says whether its holder lives.
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
from typing import Any, Literal, NamedTuple

from trivium.errors import MachineError
from trivium.provenance import WITHOUT_LOCKS
from trivium.units import format_seconds, shown
from trivium.untrusted import UnfitFile, only_regular, parse_json

LEASE = "lease.json"
RENEW_SECONDS = 10.0
STALE_SECONDS = 120.0  # a lease that nobody renewed for so long is nobody's
_LEAST_SECONDS = 2.5 * RENEW_SECONDS  # that another host's is looked at, however old: clocks of hosts differ
_CLAIM_SECONDS = 1.5 * RENEW_SECONDS  # after which whoever lives has read that its lease was taken over
_LOOK_SECONDS = 1.0  # between two looks at another host's

# Whose the lock of a lease is. Theirs may be that of a living process, or of a host that is gone; none: nobody can have
# it on this file system.
Lock = Literal["ours", "theirs", "none"]
Warn = Callable[[str], None]


class Holder(NamedTuple):
    """Who holds a run directory: process, host, and since when it was held and last renewed (seconds, epoch)."""

    pid: int
    host: str
    started: float
    renewed: float

    def is_same(self, other: "Holder | None") -> bool:
        """Whether both are one job, whenever it renewed its lease."""
        return other is not None and self[:3] == other[:3]


@contextmanager
def holding(directory: Path, warn: Warn) -> Iterator[Holder]:
    """Hold a run directory; MachineError names pid, host and age of another job that does.

    A thread renews the lease as long as this process lives, whatever it does; it ends this process when another job
    took the lease over meanwhile. Where only the lease can tell whether a job on another host lives, this waits until
    it would have been renewed or is stale. warn: is told of that, and of a lease that a dead job left. Processes
    forked inside hold the lock too.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LEASE
    if path.is_symlink():  # what it leads to would be overwritten
        raise MachineError(
            f"{path} is a link to {path.readlink()}, and a lease is a file of its own; delete the link, if the run "
            "directory is to be trusted at all"
        )
    try:
        descriptor = only_regular(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o644), path)
    except (UnfitFile, IsADirectoryError) as error:
        raise MachineError(
            f"{path} cannot be a lease: {error.strerror}; delete it, if the run directory is to be trusted at all"
        ) from None
    try:
        lock, left = _lock(descriptor), _text(descriptor)
        lock = _outlive(left, lock, descriptor, path, warn)
        if not (path.exists() and os.path.samestat(os.fstat(descriptor), path.stat())):
            raise MachineError(
                f"{directory} was set aside or taken over by another job at this moment; run the same command again"
            )
        if left:
            warn(f"{path} was left by {_told(left)}, which is gone; taken over")
        now = time.time()
        holder = Holder(os.getpid(), socket.gethostname(), now, now)
        if lock == "theirs":
            before, descriptor = descriptor, _replaced(path, holder)
            os.close(before)
        else:
            _write(descriptor, holder)
        if left and not _is_of_this_host(left):
            _claim(path, holder)
        try:
            with _renewed(descriptor, path, holder, warn):
                yield holder
        finally:
            if holder.is_same(_holder_in(_text(descriptor))):
                os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def holder_of(directory: Path) -> Holder | None:
    """The job that holds a run directory now, if one does. Who has the lock counts as one: a glance cannot tell."""
    try:
        path = directory / LEASE
        descriptor = only_regular(os.open(path, os.O_RDWR | os.O_NONBLOCK), path)
    except OSError:
        return None
    try:
        lock, text = _lock(descriptor), _text(descriptor)
        if lock == "theirs" or _may_live(lock, text) > 0:
            return _holder_in(text) or Holder(0, "unknown", 0.0, 0.0)
        return None
    finally:
        os.close(descriptor)


def refuse_if_held(directory: Path) -> None:
    """MachineError when a job holds a run directory."""
    holder = holder_of(directory)
    if holder is not None:
        raise MachineError(_refusal(directory / LEASE, json.dumps(holder._asdict())))


def _lock(descriptor: int) -> Lock:
    """Take the lock of a lease if it can be had."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "theirs"
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        return "none"
    return "ours"


def _may_live(lock: Lock, left: str, least: float = 0.0) -> float:
    """Seconds for which who left a lease and says nothing more counts as alive; endless where the kernel says that it
    is, or nobody can tell whose the lock is.

    least: for one that only the lease tells of.
    """
    here, holder = _is_of_this_host(left), _holder_in(left)
    if lock == "theirs" and (here or holder is None):
        return math.inf
    if not left or (lock == "ours" and here):
        return 0.0
    renewed = holder.renewed if holder else -math.inf
    return min(STALE_SECONDS, max(least, renewed + STALE_SECONDS - time.time()))


def _outlive(left: str, lock: Lock, descriptor: int, path: Path, warn: Warn) -> Lock:
    """Return whose the lock is when a lease that nobody renews is stale; MachineError as soon as its holder is seen to
    live. A lock that comes free meanwhile cuts nothing short: one of this host may have waited with it, as this does.
    """
    seconds = _may_live(lock, left, _LEAST_SECONDS)
    if seconds == math.inf:
        raise MachineError(_refusal(path, left))
    if seconds > 0:
        warn(f"{path} is held by {_told(left)}; waiting up to {seconds:.0f} s to see whether that lives")
    now = left
    for now in _looks(path, seconds):
        if lock == "theirs":
            lock = _lock(descriptor)
        if now and now != left:
            raise MachineError(_refusal(path, now))
        if not now and lock != "theirs":
            return lock  # it has ended
    if lock == "theirs" and not now:
        raise MachineError(_refusal(path, now))
    return lock


def _claim(path: Path, holder: Holder) -> None:
    """Wait until all who live have read whose the lease is now: another job that found it stale at the same moment, of
    which the last to write remains, and its holder, should it have been frozen; MachineError when it is another's."""
    for now in _looks(path, _CLAIM_SECONDS):
        if not holder.is_same(_holder_in(now)):
            raise MachineError(_refusal(path, now))


def _looks(path: Path, seconds: float) -> Iterator[str]:
    """What a lease says, look after look, for so long. After one that took longer than a renewal they begin anew: a
    server that was away kept its holder from renewing it."""
    looks = left = math.ceil(seconds / _LOOK_SECONDS)
    while left > 0:
        time.sleep(_LOOK_SECONDS)
        asked = time.monotonic()
        now = _text_anew(path)
        left = looks if time.monotonic() - asked > RENEW_SECONDS else left - 1
        yield now


def _replaced(path: Path, holder: Holder) -> int:
    """A lease of its own in the place of one whose lock a server keeps for the dead: its descriptor, locked. In the
    old file nobody could ever tell again whether a job of this host lives."""
    fresh = path.with_name(f".{path.name}.{holder.host}.{holder.pid}.{holder.started}")
    descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    _lock(descriptor)
    _write(descriptor, holder)
    fresh.rename(path)
    return descriptor


@contextmanager
def _renewed(descriptor: int, path: Path, holder: Holder, warn: Warn) -> Iterator[None]:
    """Inside, a thread says now and then that this process lives, unless another job holds the lease: then it ends the
    process, and with it its ranks, as two would write one directory."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(RENEW_SECONDS):
            with suppress(OSError):  # the next time it may work again
                now = _text_anew(path)
                if _holder_in(now) is not None and not holder.is_same(_holder_in(now)):
                    warn(
                        f"{path} was taken over by {_told(now)}, as this job did not renew it for "
                        f"{STALE_SECONDS:.0f} s: it was stopped, or its file system was away. This job ends, so that "
                        f"not both write; what it did since its last checkpoint is lost"
                    )
                    os._exit(MachineError.exit_code)
                _write(descriptor, holder._replace(renewed=time.time()))

    thread = threading.Thread(target=renew, daemon=True, name="lease")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _refusal(path: Path, text: str) -> str:
    unnamed = f"; where a file server keeps the lock of a host that died, and no job lives, delete {path}"
    return (
        f"{path.parent} is being written by {_told(text)}; wait until it ends, end it, or choose another --out. A job "
        f"that died on another host is given up after {STALE_SECONDS:.0f} s"
        f"{'' if _holder_in(text) else unnamed}"
    )


def _told(text: str) -> str:
    holder = _holder_in(text)
    if holder is None:
        return "another job, whose name is not in it"
    age = format_seconds(max(0.0, time.time() - holder.started))
    return f"pid {holder.pid} on {holder.host}, begun {age} ago"


def _write(descriptor: int, holder: Holder) -> None:
    text = json.dumps(holder._asdict()).encode()
    # Of one length, so that a reader never meets the end of an older one.
    os.pwrite(descriptor, text.ljust(256), 0)
    os.fsync(descriptor)  # else a network file system may keep it from other hosts for half a minute


def _text(descriptor: int) -> str:
    return os.pread(descriptor, 4096, 0).decode(errors="replace")


def _text_anew(path: Path) -> str:
    """As other hosts left it: a network file system looks for changes when a file is opened. Of a lease that is gone
    nothing; one that cannot be read says nothing of its holder, so that is an error."""
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


def _is_of_this_host(text: str) -> bool:
    holder = _holder_in(text)
    return holder is not None and holder.host == socket.gethostname()
