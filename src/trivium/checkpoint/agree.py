"""What all ranks must know alike before they go on; numbers and text only, nothing is unpickled."""

from collections.abc import Sequence

import torch

from trivium.parallel.collectives import sum_over_ranks_
from trivium.parallel.mesh import Mesh

_TOLD_BYTES = 800  # of a problem that one rank tells the others


def sums(numbers: Sequence[float], mesh: Mesh) -> list[float]:
    """Each number summed over the ranks; every rank must ask."""
    here = torch.tensor([float(n) for n in numbers], dtype=torch.float64, device=mesh.device)
    return [float(n) for n in sum_over_ranks_(here, mesh).tolist()]


def told_by_first(problem: str, mesh: Mesh) -> str:
    """The problem of the lowest rank that has one, on every rank, or nothing; every rank must ask."""
    ranks = range(mesh.layout.world_size)
    having = [r for r, n in enumerate(sums([bool(problem) and r == mesh.rank for r in ranks], mesh)) if n]
    if not having:
        return ""
    mine = problem.encode()[:_TOLD_BYTES] if having[0] == mesh.rank else b""
    letters = sums(mine.ljust(_TOLD_BYTES, b"\0"), mesh)
    text = bytes(round(n) for n in letters).rstrip(b"\0").decode(errors="replace")
    return f"rank {having[0]}: {text}" if mesh.layout.world_size > 1 else text
