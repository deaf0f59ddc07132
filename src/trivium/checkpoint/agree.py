"""Collective decisions: every rank calls each function here, and all get the same result. Nothing is unpickled."""

import itertools
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trivium.comms.collectives import sum_over_ranks_
from trivium.comms.mesh import Mesh
from trivium.errors import TriviumError
from trivium.kernels.crossing import read_later
from trivium.provenance import unheard

_MAX_MESSAGE_BYTES = 800
_SLICE_SECONDS = 0.5  # between two collectives while waiting; far below any timeout of a collective


def sums(numbers: Sequence[float], mesh: Mesh) -> list[float]:
    """Return each number summed over the ranks."""
    here = torch.tensor([float(n) for n in numbers], dtype=torch.float64, device=mesh.device)
    return read_later(sum_over_ranks_(here, mesh))()


def first_message(message: str, mesh: Mesh) -> str:
    """Return the message of the lowest rank that has one, as "rank N: …" if there are several ranks, or ""."""
    several = mesh.layout.world_size > 1
    found = messages_of_ranks(f"rank {mesh.rank}: {message}" if message and several else message, mesh, most=1)
    return found[0] if found else ""


def messages_of_ranks(message: str, mesh: Mesh, most: int = 8) -> list[str]:
    """Return the messages of the lowest ranks that have one, at most `most`."""
    reports = sums([bool(message) and rank == mesh.rank for rank in range(mesh.layout.world_size)], mesh)
    ranks = [rank for rank, has_message in enumerate(reports) if has_message][:most]
    return [_broadcast(message.encode()[:_MAX_MESSAGE_BYTES], rank, mesh).decode(errors="replace") for rank in ranks]


def _broadcast(data: bytes, source: int, mesh: Mesh) -> bytes:
    """Return the bytes, at least one, that rank `source` passes; those of other ranks are ignored."""
    data = data if mesh.rank == source else b""
    shared = torch.zeros(round(sums([len(data)], mesh)[0]), dtype=torch.uint8, device=mesh.device)
    if data:
        shared.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return bytes(sum_over_ranks_(shared, mesh).cpu().numpy())


def gathered(value: Any, mesh: Mesh) -> list[Any]:
    """Return the JSON data that each rank passes, in the order of the ranks."""
    text = json.dumps(value).encode()
    sizes = [round(n) for n in sums([len(text) * (rank == mesh.rank) for rank in range(mesh.layout.world_size)], mesh)]
    ends = list(itertools.accumulate(sizes))
    shared = torch.zeros(ends[-1], dtype=torch.uint8, device=mesh.device)
    shared[ends[mesh.rank] - len(text) : ends[mesh.rank]].copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    every = bytes(sum_over_ranks_(shared, mesh).cpu().numpy())
    return [json.loads(every[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def found_by_first(find: Callable[[], Any], mesh: Mesh, error: type[TriviumError]) -> Any:
    """Call `find` on the first rank and return its result, which must be JSON data, on all; raise `error` on all if it
    fails.

    For files on a shared file system: for a minute, another host may see a directory as it was before, and ranks that
    took different checkpoints for the newest would train on unnoticed.
    """
    found: list[Any] = []
    problem = problem_of_any(lambda: found.append(find()) if mesh.rank == 0 else None, mesh)
    if problem:
        raise error(problem)
    if mesh.layout.world_size == 1:
        return found[0]
    return json.loads(_broadcast(json.dumps(found[0]).encode() if found else b"", 0, mesh))


def wait_for_all(thread: threading.Thread | None, mesh: Mesh, alive: Callable[[], None] = unheard) -> None:
    """Wait until this rank's thread and those of all others have ended.

    The ranks run a small collective repeatedly meanwhile, so that a slow disk of one causes no timeout on another.
    alive: called while only other ranks are still working.
    """
    while True:
        if thread is not None:
            thread.join(_SLICE_SECONDS)
        is_working = thread is not None and thread.is_alive()
        if not sums([is_working], mesh)[0]:
            return
        if not is_working:
            alive()


def problem_of_any(work: Callable[[], None], mesh: Mesh, alive: Callable[[], None] = unheard) -> str:
    """Do this rank's share of a work, however long it takes. Returns the error of the lowest rank that failed, or "".

    alive: see `wait_for_all`.
    """
    problem = ""

    def attempt() -> None:
        nonlocal problem
        try:
            work()
        except Exception as error:  # Every rank must reach the collective that follows.
            problem = str(error) if isinstance(error, TriviumError) else f"{type(error).__name__}: {error}"

    thread = threading.Thread(target=attempt, daemon=True, name="share")
    thread.start()
    wait_for_all(thread, mesh, alive)
    return first_message(problem, mesh)
