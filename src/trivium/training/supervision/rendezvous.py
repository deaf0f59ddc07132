"""Hosts of an elastic job meet in a folder that all share, so that the job depends on no single host.

Each host renews its own file there, and is alive while others see that file change. One attempt to train, with fixed
members, is a round. The leader of the waiting hosts creates the file of the next round, which only one host can.
"""

import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from trivium.checkpoint.near import receive
from trivium.comms.route import addresses
from trivium.config import Config, NotNegative, build
from trivium.errors import ConfigError, DataError, MachineError
from trivium.provenance import write_json
from trivium.untrusted import read_json

BEAT_SECONDS = 1.0
MAX_LEADER_CANDIDATES = 8  # the first hosts in order
KNOCK_SECONDS = 2.0  # longest time for another host to answer
MAX_FAILURES = 2  # since the newest checkpoint, after which a host is left out
GROW = "grow"  # file whose presence asks the ranks to end at their next checkpoint, so that more hosts join
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ROUND = re.compile(r"round-(\d{5,})\.json")

State = Literal["waiting", "running", "left", "finished", "failed"]
Port = Annotated[int, Field(ge=1, le=65535)]


class Host(Config):
    """A host's report about itself. life: changes when its agent restarts. beat: counts its messages. round: the last
    one in which it took part. crashed: the last one in which a signal killed one of its ranks. reaches: the hosts that
    answer it, while it waits. code: with which it failed."""

    name: str
    life: str
    beat: NotNegative = 0
    addresses: tuple[str, ...] = ()
    port: Port
    state: State = "waiting"
    round: NotNegative = 0
    crashed: NotNegative = 0
    reaches: tuple[str, ...] = ()
    code: NotNegative = 0
    cause: str = ""


class Round(Config):
    """One attempt to train. members: names and lives of its hosts. names: in the order of their ranks, the leader's
    first; a file does not keep the order of `members`. port: of the store of its ranks. plan: as a tree. saved: step of
    the newest checkpoint at its start. failures, strikes: of the job, and of hosts, since that checkpoint. ended: hosts
    whose ranks are known to have ended; silent: those whose leases had expired. stops: why the job ends instead, or an
    empty text. secret: lets members send copies to each other."""

    number: NotNegative
    members: dict[str, str] = Field(default_factory=dict)
    names: tuple[str, ...] = ()
    port: Port = 1
    plan: dict[str, Any] = Field(default_factory=dict)
    saved: int = -1
    failures: NotNegative = 0
    strikes: dict[str, NotNegative] = Field(default_factory=dict)
    ended: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    stops: str = ""
    secret: str = ""


BEFORE_THE_FIRST = Round(number=0)


class Rendezvous:
    """This host's part of the meeting in `folder`. clock: monotonic seconds."""

    def __init__(
        self,
        folder: Path,
        lease_seconds: float,
        name: str = "",
        clock: Callable[[], float] = time.monotonic,
        copies: Path | None = None,
    ) -> None:
        """copies: where this host keeps copies of states that its neighbour sends."""
        self.folder, self.lease_seconds, self.clock = folder, lease_seconds, clock
        folder.mkdir(parents=True, exist_ok=True)
        self._door = Door(copies)
        name = name or socket.gethostname()
        if not _NAME.fullmatch(name):
            raise MachineError(f"the name of this host ({name!r}) must be made of letters, digits, '.', '_' and '-'")
        self.me = Host(name=name, life=self._door.life, addresses=addresses(), port=self._door.port)
        # Life, beat and time of modification of each file, and when they were new.
        self._heard: dict[str, tuple[tuple[str, int, int], float | None]] = {}
        self._looked, self._alive = clock(), {self.me.name: self.me}
        self._lock, self._over = threading.Lock(), threading.Event()
        self._refuse_a_namesake()
        self._renewing = threading.Thread(target=self._renew, daemon=True, name="host lease")
        self._renewing.start()

    def close(self, **last: Any) -> None:
        """Say last words, and end."""
        self._over.set()
        self._renewing.join()
        self.say(**last)
        self._door.close()

    def welcome(self, secret: str) -> None:
        """Accept copies from those who know the secret of a round."""
        self._door.secret = secret

    def say(self, **changes: Any) -> None:
        """Change what this host says of itself."""
        with self._lock:
            self.me = self.me.model_copy(update={**changes, "beat": self.me.beat + 1})
            path = self.folder / f"{self.me.name}.json"
            try:
                write_json(path, self.me.model_dump())
            except OSError:  # The next attempt may succeed. On a full disk a file can still be given another time.
                with suppress(OSError):
                    os.utime(path)

    def look(self) -> dict[str, Host]:
        """Return the hosts that are alive, this one among them.

        A file is evidence of life only when it has changed since this process first saw it. If this process did not
        look for half of a lease, it forgives all others.
        """
        now = self.clock()
        if now - self._looked > self.lease_seconds / 2:
            self._heard = {name: (said, None if at is None else now) for name, (said, at) in self._heard.items()}
        self._looked = now
        alive = {self.me.name: self.me}
        for path in self.folder.glob("*.json"):
            if path.name == f"{self.me.name}.json" or _ROUND.fullmatch(path.name):
                continue
            host, modified = read_host(path), _modified(path)
            if host is None or host.name != path.stem or not modified:
                continue
            said, (before, at) = (host.life, host.beat, modified), self._heard.get(host.name, (None, None))
            if said != before:
                at = None if before is None else now
                self._heard[host.name] = said, at
            if at is not None and now - at <= self.lease_seconds:
                alive[host.name] = host
        self._alive = alive
        return alive

    def newest(self) -> Round:
        """Return the newest round."""
        numbers = [int(found[1]) for path in self.folder.glob("round-*.json") if (found := _ROUND.fullmatch(path.name))]
        if not numbers:
            return BEFORE_THE_FIRST
        path = self._file(max(numbers))
        try:
            return build(Round, read_json(path))
        except (ValueError, ConfigError) as error:
            raise DataError(
                f"{path} is damaged ({error}); end the job on all hosts, delete {self.folder}/round-*.json, and start "
                f"it again"
            ) from None

    def create(self, round: Round) -> bool:
        """Create the file of a round; return whether this host was the first to do so."""
        path = self._file(round.number)
        partial = path.with_name(f".{path.name}.{self.me.life}")
        write_json(partial, round.model_dump())
        partial.chmod(0o600)
        try:
            os.link(partial, path)
        except FileExistsError:
            return False
        finally:
            partial.unlink()
        with suppress(OSError):
            self._file(round.number - 100).unlink()
        return True

    @property
    def left_out(self) -> frozenset[str]:
        """The hosts that failed too often, until somebody deletes their mark."""
        return frozenset(path.stem for path in self.folder.glob("*.out"))

    def leave_out(self, name: str) -> None:
        (self.folder / f"{name}.out").touch()

    def address_of(self, host: Host) -> str:
        """Return the address at which a host answers; an empty text if it does not."""
        return next((address for address in host.addresses if knock(address, host.port) == host.life), "")

    def _file(self, number: int) -> Path:
        return self.folder / f"round-{number:05d}.json"

    def _renew(self) -> None:
        with ThreadPoolExecutor(MAX_LEADER_CANDIDATES) as pool:
            while not self._over.wait(BEAT_SECONDS):
                reaches: tuple[str, ...] = ()
                if self.me.state == "waiting":
                    with suppress(OSError, DataError):
                        order = in_order(self._alive, self.newest())
                        found = pool.map(self.address_of, order[:MAX_LEADER_CANDIDATES])
                        reaches = tuple(host.name for host, at in zip(order, found, strict=False) if at)
                self.say(reaches=reaches)

    def _refuse_a_namesake(self) -> None:
        """Raise MachineError if an agent with this host's name is alive on this host or another one."""
        before = read_host(self.folder / f"{self.me.name}.json")
        if before is not None and before.state != "left" and self.address_of(before):
            raise MachineError(
                f"{self.folder / self.me.name}.json is renewed by another agent; end that one, or give hosts different "
                f"names"
            )


class Door:
    """Answers every caller with the life of this host, so that others know that they reach it and not another, and
    keeps copies that a neighbour sends."""

    def __init__(self, copies: Path | None) -> None:
        self.life, self.secret, self.copies = uuid.uuid4().hex, "", copies
        self._socket = socket.create_server(("", 0))
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._answer, daemon=True, name="door").start()

    def _answer(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                caller, _ = self._socket.accept()
                threading.Thread(target=self._greet, args=(caller,), daemon=True, name="caller").start()

    def _greet(self, caller: socket.socket) -> None:
        with suppress(OSError), caller:
            caller.settimeout(KNOCK_SECONDS)
            caller.sendall(self.life.encode())
            if self.copies is not None:
                receive(caller, self.copies, self.secret)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def knock(address: str, port: int) -> str:
    """Return the life of the host that answers at an address, or an empty text."""
    with suppress(OSError, ValueError), socket.create_connection((address, port), timeout=KNOCK_SECONDS) as door:
        return door.recv(64).decode("ascii")
    return ""


def read_host(path: Path) -> Host | None:
    """Return what a host says of itself; None while its file is absent or cannot be read."""
    if _ROUND.fullmatch(path.name):
        return None
    with suppress(OSError, ValueError, ConfigError):
        return build(Host, read_json(path))
    return None


def _modified(path: Path) -> int:
    """Return the time of modification of a file in nanoseconds, or 0 if it cannot be read."""
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


def in_order(hosts: Mapping[str, Host], before: Round) -> list[Host]:
    """Return hosts in the order of their ranks: the members of the last round as there, then the others by name."""
    place = {name: number for number, name in enumerate(before.names)}
    return sorted(hosts.values(), key=lambda host: (place.get(host.name, len(place)), host.name))


def led(order: Sequence[Host]) -> tuple[Host, ...]:
    """Return the leader, which is the candidate that most hosts reach, and after it the hosts that reach it."""

    def followers(leader: Host) -> tuple[Host, ...]:
        return leader, *(host for host in order if host is not leader and leader.name in host.reaches)

    return max(map(followers, order[:MAX_LEADER_CANDIDATES]), key=len, default=())


def unused_port() -> int:
    """Return a port that no process of this host listens at now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def blamed(before: Round, silent: Iterable[str], failed: Iterable[str]) -> dict[str, int]:
    """Return the strikes of hosts after a round: one more for those whose lease expired or whose rank failed first."""
    strikes = dict(before.strikes)
    for name in {*silent, *failed}:
        strikes[name] = strikes.get(name, 0) + 1
    return strikes
