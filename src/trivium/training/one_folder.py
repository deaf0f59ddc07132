"""The run directory is one folder that all hosts share: tried where ranks have met, before anything is written there.

Hosts with a folder each under the same path would notice it at the first save, with every step until then lost.
"""

import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from trivium.checkpoint.agree import found_by_first, sums, told_by_all
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.errors import MachineError
from trivium.units import listed

# That a file may take to be seen on another host. Its name is new, so no host remembers that it was absent.
SEEN_SECONDS = 10.0
_LOOKING_SECONDS = 0.1


def refuse_separate_folders(out: Path, place: Place, mesh: Mesh, seconds: float = SEEN_SECONDS) -> None:
    """Raise MachineError on every rank, with the names of hosts, where `out` is not one folder for all of them.

    One rank of each host writes a file. Every rank looks for that of the first rank, and the first rank for all.
    """
    mark = found_by_first(lambda: f".one-folder-{os.getpid()}-{time.time_ns()}", mesh, MachineError)
    writes = place.local_rank == 0
    flags = [0.0] * place.world_size
    flags[mesh.rank] = float(writes)
    leaders = [rank for rank, flag in enumerate(sums(flags, mesh)) if flag]
    own, problem = out / f"{mark}-{mesh.rank}", ""
    try:
        if writes:
            problem = _written(own)
        sums([0.0], mesh)  # every file has been written
        if not problem and not _is_seen([out / f"{mark}-0"], seconds):
            problem = "a file that the first host wrote there is not seen here"
        if not problem and mesh.rank == 0:
            problem = _unseen(out, mark, leaders, seconds)
        _refuse(out, problem, mesh)
    finally:
        with suppress(OSError):
            own.unlink()


def _written(path: Path) -> str:
    """Why this host cannot write there; nothing where it did. A folder that is absent here must not be made."""
    try:
        path.write_bytes(b"")
    except OSError as error:
        return f"no file can be written there ({error.strerror})"
    return ""


def _is_seen(paths: Sequence[Path], seconds: float, clock: Callable[[], float] = time.monotonic) -> bool:
    deadline = clock() + seconds
    while not all(path.exists() for path in paths):
        if clock() > deadline:
            return False
        time.sleep(_LOOKING_SECONDS)
    return True


def _unseen(out: Path, mark: str, leaders: Sequence[int], seconds: float) -> str:
    if _is_seen([out / f"{mark}-{rank}" for rank in leaders], seconds):
        return ""
    missing = [rank for rank in leaders if not (out / f"{mark}-{rank}").exists()]
    return f"files that ranks {listed(missing)} wrote there are not seen here"


def _refuse(out: Path, problem: str, mesh: Mesh) -> None:
    told = told_by_all(problem and f"{socket.gethostname()} (rank {mesh.rank}): {problem}", mesh)
    if not told:
        return
    raise MachineError(
        f"{out} is not one folder on all hosts, and a training needs one that they share for its checkpoints; give an "
        f"--out on a shared file system, the same on every host\n" + "\n".join(told)
    )
