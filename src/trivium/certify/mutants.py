"""Can the certificate fail? Every seeded fault is certified on plans where it must be caught.

A plan that does not pass without the fault proves nothing, so each is certified clean first. Every fault runs in ranks
of its own: one that hangs or crashes takes nothing else with it, and is caught only if its error names the place.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trivium.certify.certificate import Certificate
from trivium.certify.faults import context, data, pipeline, tensor
from trivium.certify.faults.mutant import Mutant
from trivium.certify.sweep import certify, certify_with_fault, collect, describe, write_references
from trivium.errors import TriviumError
from trivium.parallel.launch import run_ranks
from trivium.plan.plan import Plan
from trivium.progress import Progress, silent

CATALOGUE: tuple[Mutant, ...] = (*tensor.FAULTS, *pipeline.FAULTS, *data.FAULTS, *context.FAULTS)


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
    """Whether a fault was caught on the plans it names, and by what."""

    name: str
    recreates: str
    caught: bool
    by: tuple[Caught, ...]

    def as_tree(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def try_mutants(
    mutants: Sequence[Mutant] = CATALOGUE, *, progress: Progress = silent, timeout_seconds: float = 60
) -> list[Verdict]:
    """The verdict on each fault, in order. timeout_seconds: for one fault on one plan."""
    plans = list({describe(p): p for m in mutants for p in m.plans}.values())
    clean = {describe(p): c.passed for p, c in zip(plans, certify(plans), strict=True)}
    verdicts = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_references(plans, folder)
        for number, mutant in enumerate(mutants):
            caught = []
            for plan in mutant.plans:
                found = _caught(mutant, plan, folder, timeout_seconds) if clean[describe(plan)] else None
                caught += [found] if found is not None else []
            verdicts.append(Verdict(mutant.name, mutant.recreates, bool(caught), tuple(caught)))
            progress(number + 1, len(mutants), mutant.name)
    return verdicts


def catalogue_lines(mutants: Sequence[Mutant] = CATALOGUE) -> list[str]:
    """The catalogue as a Markdown table, for docs/certificate.md."""
    rows = [f"| `{m.name}` | {m.recreates} |" for m in mutants]
    return ["| fault | what it re-creates |", "|---|---|", *rows]


def _caught(mutant: Mutant, plan: Plan, folder: Path, timeout_seconds: float) -> Caught | None:
    ranks = plan.layout.world_size
    try:
        run_ranks(certify_with_fault, ranks, plan, folder, mutant.applied, timeout_seconds=timeout_seconds)
    except TriviumError as error:
        told = str(error).strip().splitlines()[-1]
        return (
            Caught(describe(plan), 0, ("error",), "", "no numbers", told) if " failed at " in told else None
        )
    return _by(collect(plan, folder, "fault"))


def _by(certificate: Certificate) -> Caught | None:
    first = certificate.first
    if first is None:
        return None
    return Caught(
        describe(Plan.model_validate(certificate.plan)),
        first.step,
        first.quantities,
        first.parameter,
        first.value,
    )
