"""What all ranks must know alike before they go on; numbers and text only, nothing is unpickled."""

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

_TOLD_BYTES = 800  # of a problem that one rank tells the others
_SLICE_SECONDS = 0.5  # longest wait between two meetings; far below any timeout of a collective


def sums(numbers: Sequence[float], mesh: Mesh) -> list[float]:
    """Each number summed over the ranks; every rank must ask."""
    here = torch.tensor([float(n) for n in numbers], dtype=torch.float64, device=mesh.device)
    return read_later(sum_over_ranks_(here, mesh))()


def told_by_first(problem: str, mesh: Mesh) -> str:
    """The problem of the lowest rank that has one, on every rank, or nothing; every rank must ask."""
    several = mesh.layout.world_size > 1
    told = told_by_all(f"rank {mesh.rank}: {problem}" if problem and several else problem, mesh, most=1)
    return told[0] if told else ""


def told_by_all(problem: str, mesh: Mesh, most: int = 8) -> list[str]:
    """The problems of the lowest ranks that have one, at most so many, on every rank; every rank must ask."""
    ranks = range(mesh.layout.world_size)
    having = [r for r, n in enumerate(sums([bool(problem) and r == mesh.rank for r in ranks], mesh)) if n]
    told = []
    for rank in having[:most]:
        mine = problem.encode()[:_TOLD_BYTES] if rank == mesh.rank else b""
        letters = sums(mine.ljust(_TOLD_BYTES, b"\0"), mesh)
        told.append(bytes(round(n) for n in letters).rstrip(b"\0").decode(errors="replace"))
    return told


def found_by_first(find: Callable[[], Any], mesh: Mesh, error: type[TriviumError]) -> Any:
    """What the first rank finds, plain data, on every rank; `error` on all of them where it fails; every rank must ask.

    For what lies on a shared file system: another host may for a minute see a folder or a file as it was before, and
    ranks that took different things for the newest would train on without knowing.
    """
    found: list[Any] = []
    problem = problem_of_any(lambda: found.append(find()) if mesh.rank == 0 else None, mesh)
    if problem:
        raise error(problem)
    if mesh.layout.world_size == 1:
        return found[0]
    text = json.dumps(found[0]).encode() if found else b""
    letters = torch.zeros(round(sums([len(text)], mesh)[0]), dtype=torch.uint8, device=mesh.device)
    if text:
        letters.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    return json.loads(bytes(sum_over_ranks_(letters, mesh).cpu().numpy()))


def wait_for_all(thread: threading.Thread | None, mesh: Mesh, alive: Callable[[], None] = unheard) -> None:
    """Wait until this rank's thread and those of all others have ended; every rank must ask.

    Ranks meet again and again meanwhile, so that one whose disk is slow makes no collective of another time out.
    alive: called while only others are still at work.
    """
    while True:
        if thread is not None:
            thread.join(_SLICE_SECONDS)
        at_work = thread is not None and thread.is_alive()
        if not sums([at_work], mesh)[0]:
            return
        if not at_work:
            alive()


def problem_of_any(work: Callable[[], None], mesh: Mesh, alive: Callable[[], None] = unheard) -> str:
    """Do this rank's share of a work, however long it takes; what went wrong on the lowest rank where it did, or
    nothing. Every rank must ask. alive: as of `wait_for_all`."""
    problem = ""

    def attempt() -> None:
        nonlocal problem
        try:
            work()
        except Exception as error:  # every rank must reach the agreement that follows
            problem = str(error) if isinstance(error, TriviumError) else f"{type(error).__name__}: {error}"

    thread = threading.Thread(target=attempt, daemon=True, name="share")
    thread.start()
    wait_for_all(thread, mesh, alive)
    return told_by_first(problem, mesh)
