"""Certify many plans: ranks are forked once per world size and reused."""

import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from trivium.certify.certificate import Certificate, Deviation, certificate, deviations
from trivium.parallel.launch import Place, connected, run_ranks
from trivium.parallel.mesh import Mesh
from trivium.plan.plan import Plan
from trivium.progress import Progress, silent


def certify(
    plans: Sequence[Plan], *, progress: Progress = silent, timeout_seconds: float = 600
) -> list[Certificate]:
    """A certificate for each plan, in order."""
    results: dict[int, Certificate] = {}
    sizes = sorted({p.layout.world_size for p in plans})
    for size in sizes:
        numbers = [n for n, p in enumerate(plans) if p.layout.world_size == size]
        chosen = [plans[n].checked() for n in numbers]
        with tempfile.TemporaryDirectory() as folder:
            run_ranks(_certify_rank, size, chosen, Path(folder), timeout_seconds=timeout_seconds)
            for k, number in enumerate(numbers):
                results[number] = certificate(plans[number], _collect(Path(folder), k, range(size)))
                progress(len(results), len(plans), describe(plans[number]))
    return [results[n] for n in range(len(plans))]


def describe(plan: Plan) -> str:
    """A plan in a few words."""
    x = plan.layout
    words = [f"tensor {x.tensor} pipeline {x.pipeline} data {x.data}", plan.schedule, plan.model.family]
    words += [f"chunks {x.chunks}"] if x.chunks > 1 else []
    words += ["sequence parallel"] if plan.sequence_parallel else []
    words += [f"zero {plan.zero}"]
    words += [f"recompute {plan.recompute.mode}"] if plan.recompute.mode != "none" else []
    return ", ".join(words)


def _certify_rank(place: Place, plans: Sequence[Plan], folder: Path) -> None:
    with connected(place):
        for number, plan in enumerate(plans):
            mesh = Mesh.connect(plan.layout, place.rank, place.world_size)
            found = deviations(plan, mesh)
            (folder / f"{number}-{place.rank}.json").write_text(json.dumps(found))


def _collect(folder: Path, number: int, ranks: Iterable[int]) -> list[Deviation]:
    return [Deviation(*d) for r in ranks for d in json.loads((folder / f"{number}-{r}.json").read_text())]
