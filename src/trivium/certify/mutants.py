"""Can the certificate fail? Every seeded fault is certified on plans where it must be caught.

A plan that does not pass without the fault proves nothing, so each is certified clean first. A fault that ends its
ranks is tried again in ranks of its own, and is caught only if the error names the place.

    python -m trivium.certify.mutants 'masks-*'    # only those whose names match
"""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from trivium.certify.certificate import Certificate
from trivium.certify.faults import context, data, depth, optimizer, pipeline, steps, tensor, ways
from trivium.certify.faults.mutant import Mutant
from trivium.certify.sweep import Trial, certify, certify_with_faults, collect, describe, write_references
from trivium.comms.launch import run_ranks
from trivium.errors import TriviumError
from trivium.plan.plan import Plan
from trivium.progress import Progress, silent
from trivium.units import plain

CATALOGUE: tuple[Mutant, ...] = (
    *tensor.FAULTS,
    *pipeline.FAULTS,
    *data.FAULTS,
    *context.FAULTS,
    *ways.FAULTS,
    *steps.FAULTS,
    *depth.FAULTS,
    *optimizer.FAULTS,
)
SECONDS = 60  # that one fault may take on one plan


@dataclass(frozen=True)
class Caught:
    """Where a fault was caught: at the first step with a deviation, the quantities that deviate, the parameter of the
    first of them, and how far it is off. `error`: the ranks ended with it instead of with numbers."""

    plan: str
    step: int
    quantities: tuple[str, ...]
    parameter: str
    deviation: float | str
    error: str = ""


@dataclass(frozen=True)
class Verdict:
    """Whether a fault was caught on the plans it names, and by what. ended: errors of ranks that ended and named no
    place, as where the fault no longer suits the function that it replaces."""

    name: str
    recreates: str
    caught: bool
    by: tuple[Caught, ...]
    ended: tuple[str, ...] = ()

    def as_tree(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def try_mutants(mutants: Sequence[Mutant] = CATALOGUE, *, progress: Progress = silent) -> list[Verdict]:
    """The verdict on each fault, in order."""
    trials = [
        Trial(f"{m.name} {k}", m.way.shaped(p), m.way, m.applied, m.everywhere)
        for m in mutants
        for k, p in enumerate(m.plans)
    ]
    distinct = {(t.plan, t.way): t for t in trials}
    certificates = certify([plan for plan, _ in distinct], ways=[way for _, way in distinct])
    clean = dict(zip(distinct, (c.passed for c in certificates), strict=True))
    trials = [t for t in trials if clean[t.plan, t.way]]
    found: dict[str, Caught | str | None] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_references(list(distinct), folder)
        for size, way in sorted({_kind(t) for t in trials}):
            alike = [t for t in trials if _kind(t) == (size, way)]
            found |= _try_together(alike, folder)
            progress(len(found), len(trials), f"faults on {size} ranks")
    return [_verdict(m, [found.get(f"{m.name} {k}") for k in range(len(m.plans))]) for m in mutants]


def _verdict(mutant: Mutant, found: Sequence[Caught | str | None]) -> Verdict:
    caught = tuple(c for c in found if isinstance(c, Caught))
    ended = tuple(c for c in found if isinstance(c, str))
    return Verdict(mutant.name, mutant.recreates, bool(caught), caught, ended)


def _kind(trial: Trial) -> tuple[int, str]:
    """Trials of one kind can share their ranks."""
    return trial.plan.layout.world_size, trial.way.name


def _try_together(trials: Sequence[Trial], folder: Path) -> dict[str, Caught | str | None]:
    """Faults that compute something wrong share their ranks; after one that ends them, each gets its own."""
    try:
        _run(trials, folder)
    except TriviumError:
        return {t.name: _try_alone(t, folder) for t in trials}
    return {t.name: _by(collect(t.plan, folder, t.name, t.way)) for t in trials}


def _try_alone(trial: Trial, folder: Path) -> Caught | str | None:
    try:
        _run([trial], folder)
    except TriviumError as error:
        told = str(error).strip().splitlines()[-1]
        # The executor's error names rank, stage and micro-batch; a traceback or a hang names nothing.
        located = " failed at " in told
        return Caught(describe(trial.plan), 0, ("error",), "", "no numbers", told) if located else told
    return _by(collect(trial.plan, folder, trial.name, trial.way))


def _run(trials: Sequence[Trial], folder: Path) -> None:
    ranks = trials[0].plan.layout.world_size
    seconds = SECONDS * len(trials)
    run_ranks(certify_with_faults, ranks, trials, trials[0].way, folder, timeout_seconds=seconds)


def _by(certificate: Certificate) -> Caught | None:
    first = certificate.first
    if first is None:
        return None
    plan = Plan.model_validate(certificate.plan)
    return Caught(describe(plan), first.step, first.quantities, first.parameter, first.value)


if __name__ == "__main__":
    chosen = [m for m in CATALOGUE if any(fnmatchcase(m.name, pattern) for pattern in sys.argv[1:])]
    verdicts = try_mutants(chosen)
    for each in verdicts:
        lines = (
            each.name,
            "caught" if each.caught else "NOT CAUGHT",
            *map(str, each.by),
            *map(str, each.ended),
        )
        print(plain("\n  ".join(lines)))
    sys.exit(not (verdicts and all(each.caught for each in verdicts)))
