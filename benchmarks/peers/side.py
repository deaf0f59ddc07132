"""The ranks of one side of a duel, as seen by who gives them their turns."""

import contextlib
import json
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = (ROOT / "src", ROOT / "benchmarks")
BUILD_TIMEOUT_SECONDS, STEP_TIMEOUT_SECONDS = 300.0, 180.0


class SideFailed(Exception):
    """A rank could not be built, raised, ended or did not answer in time."""


@dataclass(frozen=True)
class Entry:
    """`module.function(**options)` builds the contestant; python and variables: of its environment."""

    name: str
    module: str
    function: str
    options: Mapping[str, Any]
    python: Path
    variables: Mapping[str, str]


class Side:
    """Ranks that are started together, idle until given a turn, and killed at the end."""

    def __init__(self, entry: Entry, world_size: int, setting: Mapping[str, Any]) -> None:
        self.name = entry.name
        self.logs: list[IO[bytes]] = []
        self.ranks: list[subprocess.Popen[bytes]] = []
        port = _free_port()
        for rank in range(world_size):
            self.logs.append(tempfile.TemporaryFile())  # noqa: SIM115  closed by __exit__
            self.ranks.append(_start(entry, rank, world_size, port, self.logs[-1]))
        self.first = {
            "module": entry.module,
            "function": entry.function,
            "options": dict(entry.options),
            "setting": dict(setting),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.ranks:
            process.kill()
        for process, log in zip(self.ranks, self.logs, strict=True):
            process.communicate()
            log.close()

    def build(self) -> None:
        """Make the contestant on every rank."""
        self._ask(self.first, BUILD_TIMEOUT_SECONDS)

    def step(self, number: int) -> list[dict[str, Any]]:
        """One optimizer step; of each rank its `wall`, `cpu` and `loss`."""
        return self._ask({"step": number}, STEP_TIMEOUT_SECONDS)

    def memory(self) -> list[dict[str, Any]]:
        """Return the resident bytes of each rank after its imports (`imported`), and the `peak` since then."""
        return self._ask({"memory": True}, STEP_TIMEOUT_SECONDS)

    def _ask(self, order: Mapping[str, Any], timeout_seconds: float) -> list[dict[str, Any]]:
        deadline = time.monotonic() + timeout_seconds
        for rank, process in enumerate(self.ranks):
            assert process.stdin is not None, "started with a pipe"
            try:
                process.stdin.write(json.dumps(order).encode() + b"\n")
                process.stdin.flush()
            except BrokenPipeError:
                raise SideFailed(f"rank {rank}: {self._last_words(rank)}") from None
        waiting = {process.stdout: rank for rank, process in enumerate(self.ranks) if process.stdout}
        answers: dict[int, dict[str, Any]] = {}
        while waiting:
            ready, _, _ = select.select(list(waiting), [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise SideFailed(f"ranks {sorted(waiting.values())} silent for {timeout_seconds:.0f} s")
            for pipe in ready:
                rank = waiting.pop(pipe)
                answers[rank] = self._read(rank, pipe)
        return [answers[rank] for rank in range(len(self.ranks))]

    def _read(self, rank: int, pipe: IO[bytes]) -> dict[str, Any]:
        line = pipe.readline()
        if not line:
            raise SideFailed(f"rank {rank}: {self._last_words(rank)}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise SideFailed(f"rank {rank}: {answer['error']}")
        return answer

    def _last_words(self, rank: int) -> str:
        self.logs[rank].seek(0)
        lines = self.logs[rank].read().decode(errors="replace").strip().splitlines()
        if lines:
            return lines[-1][:300]
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.ranks[rank].wait(timeout=5)  # its pipe closes a moment before it ends
        return f"ended with code {self.ranks[rank].returncode} and no message"


def _start(entry: Entry, rank: int, world_size: int, port: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    variables = {
        **entry.variables,
        "PYTHONPATH": ":".join(map(str, SOURCES)),
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "MASTER_PORT": str(port),
    }
    command = [str(entry.python), "-m", "peers.rank"]
    return subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
