"""Can the certificate fail? Certify with one seeded fault at a time: each must be caught.

    make faults [JSON=FILE]
    PYTHONPATH=tests python -m faults.run [--json FILE] ['masks-*' ...]    # only faults whose names match

A plan that fails without the fault proves nothing, so each plan is certified without it first. A fault that ends its
ranks is tried again in separate ranks. It counts as caught only if the error names stage and micro-batch.
The exit code is 1 if any fault is not caught.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from faults import (
    adapters,
    balance,
    context,
    data,
    depth,
    experts,
    float8,
    latent,
    offload,
    optimizer,
    parts,
    pipeline,
    rings,
    steps,
    tensor,
    ways,
    weights,
)
from faults.mutant import Mutant
from trivium.certify.certificate import Certificate, examine
from trivium.certify.reference import compute_reference
from trivium.certify.sweep import (
    CPU,
    collect,
    connect_mesh,
    describe,
    reference_of,
    versions,
    write_findings,
    write_references,
)
from trivium.certify.ways import Way
from trivium.cli.show import progress_of, say, table
from trivium.comms.launch import Place, connected, run_ranks
from trivium.errors import TriviumError
from trivium.plan.plan import Plan
from trivium.progress import Progress, silent
from trivium.provenance import write_json

CATALOGUE = {
    kind: tuple(m for m in vars(kind).values() if isinstance(m, Mutant))
    for kind in (
        *(tensor, pipeline, data, context, weights, parts, ways, steps, depth, optimizer, offload, adapters, latent),
        float8,
        balance,
        experts,
        rings,
    )
}
EVERY_MUTANT = tuple(m for mutants in CATALOGUE.values() for m in mutants)
TRIAL_SECONDS = 60  # time limit for one fault on one plan


class Trial(NamedTuple):
    """A plan to certify while a fault is in the code, or none."""

    name: str
    plan: Plan
    way: Way
    mutant: Mutant | None = None

    @property
    def kind(self) -> tuple[int, str]:
        """World size and code path. Trials of one kind can share their ranks."""
        return self.plan.layout.world_size, self.way.name


@dataclass(frozen=True)
class Caught:
    """Where a fault was caught: the first step with a deviation, the quantities that deviate in it, and parameter and
    size of the first deviation. error: the message of ranks that ended instead."""

    plan: str
    step: int
    quantities: tuple[str, ...]
    parameter: str
    deviation: float | str
    error: str = ""

    @property
    def row(self) -> tuple[str, str, str]:
        """Quantities, 1-based step and parameter, for the table."""
        step = str(self.step + 1) if self.step >= 0 else "before 1"
        return ", ".join(self.quantities), step, self.parameter


@dataclass(frozen=True)
class Verdict:
    """Whether a fault was caught on its plans, and by what. ended: errors of ranks that ended without naming the place,
    for example because the fault no longer fits the function that it replaces."""

    name: str
    recreates: str
    caught: bool
    by: tuple[Caught, ...]
    ended: tuple[str, ...] = ()


def try_mutants(mutants: Sequence[Mutant], *, progress: Progress = silent) -> list[Verdict]:
    """Return the verdict on each fault, in order."""
    faulty = [Trial(f"{m.name} {k}", m.way.shaped(p), m.way, m) for m in mutants for k, p in enumerate(m.plans)]
    distinct = list({(t.plan, t.way): t for t in faulty})
    sound = {which: Trial(f"no fault {n}", *which) for n, which in enumerate(distinct)}
    trials = [*sound.values(), *faulty]
    results: dict[str, Caught | str | None] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_references(distinct, folder)
        for kind in sorted({t.kind for t in trials}):
            results |= _try_together([t for t in trials if t.kind == kind], folder)
            progress(len(results), len(trials), f"faults on {kind[0]} ranks")
    found = {t.name: results[t.name] for t in faulty if results[sound[t.plan, t.way].name] is None}
    return [_verdict(m, [found.get(f"{m.name} {k}") for k in range(len(m.plans))]) for m in mutants]


def _verdict(mutant: Mutant, results: Sequence[Caught | str | None]) -> Verdict:
    caught = tuple(c for c in results if isinstance(c, Caught))
    ended = tuple(c for c in results if isinstance(c, str))
    return Verdict(mutant.name, mutant.recreates, bool(caught), caught, ended)


def _try_together(trials: Sequence[Trial], folder: Path) -> dict[str, Caught | str | None]:
    """Run all trials in the same ranks. If a fault ends them, run each trial in its own ranks instead."""
    way, ranks = trials[0].way, trials[0].plan.layout.world_size
    try:
        run_ranks(_trial_rank, ranks, trials, way, folder, timeout_seconds=TRIAL_SECONDS * len(trials))
    except TriviumError as error:
        if len(trials) > 1:
            return {t.name: _try_together([t], folder)[t.name] for t in trials}
        message = str(error).strip().splitlines()[-1]
        # Only the executor's errors identify rank, stage and micro-batch; tracebacks and hangs do not.
        located = " failed at " in message
        plan = describe(trials[0].plan)
        caught = Caught(plan, 0, ("error",), "", "no numbers", message) if located else message
        return {trials[0].name: caught}
    return {t.name: _caught_by(collect(t.plan, folder, t.name, way)) for t in trials}


def _trial_rank(place: Place, trials: Sequence[Trial], way: Way, folder: Path) -> None:
    with way.taken(), connected(place, timeout_seconds=30, device=CPU):
        for name, plan, _, mutant in trials:
            mesh = connect_mesh(plan, place, way)
            with mutant.applied(mesh) if mutant else nullcontext():
                if mutant and mutant.everywhere:
                    reference = compute_reference(plan, way.course)
                else:
                    reference = reference_of(plan, way, folder)
                findings = examine(plan, mesh, reference, way)
            mesh.disconnect()
            write_findings(folder, name, place.rank, findings)


def _caught_by(certificate: Certificate) -> Caught | None:
    first = certificate.first
    if first is None:
        return None
    plan = Plan.model_validate(certificate.plan)
    return Caught(describe(plan), first.step, first.quantities, first.parameter, first.value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", default=["*"], metavar="PATTERN")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    chosen = [m for m in EVERY_MUTANT if any(fnmatchcase(m.name, pattern) for pattern in given.patterns)]
    if not chosen:
        parser.error(f"no fault matches {' '.join(given.patterns)}; docs/certificate.md lists their names")
    with progress_of("faults") as progress:
        verdicts = try_mutants(chosen, progress=progress)
    rows = [(v.name, *(v.by[0].row if v.caught else ("NOT CAUGHT", "", ""))) for v in verdicts]
    for line in table(rows, header=("fault", "caught by", "in step", "parameter")):
        say(line)
    for verdict in verdicts:
        if verdict.ended and not verdict.caught:
            say(f"  {verdict.name} ended its ranks instead, and named no place: {verdict.ended[0]}")
    caught = sum(v.caught for v in verdicts)
    say(f"{caught} of {len(verdicts)} faults caught")
    if given.json is not None:
        mutants = [asdict(v) for v in verdicts]
        counts = {"caught": caught, "total": len(verdicts), "versions": versions()}
        write_json(given.json, {**counts, "mutants": mutants})
    return int(caught < len(verdicts))


if __name__ == "__main__":
    sys.exit(main())
