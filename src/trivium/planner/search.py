"""Search for the fastest plans for a model, a batch and a machine."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from trivium.cost.hardware import Machine
from trivium.errors import ConfigError
from trivium.plan.layout import AXES
from trivium.planner.candidates import Enumerated, enumerate_plans
from trivium.planner.config import SearchSpace
from trivium.planner.grid import Subject
from trivium.planner.laws import batch_unit, inside_a_node
from trivium.planner.pricing import Ranking, price, rank


@dataclass(frozen=True, eq=False)
class Found:
    """The result of a search: legal and rejected plans, and the ranking of those that fit."""

    subject: Subject
    machine: Machine
    ranks: int
    space: SearchSpace
    enumerated: Enumerated
    ranking: Ranking


def search(subject: Subject, machine: Machine, ranks: int, space: SearchSpace | None = None) -> Found:
    """Price every legal plan that fits in closed form, then simulate the fastest ones and rank them.

    Raises ConfigError if the machine has too few devices or if no plan is legal. If no plan fits, the ranking is empty;
    planner.remedies describes what would help.
    """
    space = space or SearchSpace()
    problems = [*machine.problems(ranks), *subject.problems()]
    if problems:
        raise ConfigError("\n".join(problems))
    enumerated = legal_plans(subject, machine, ranks, space)
    if not len(enumerated.candidates):
        raise ConfigError(_no_legal_plan(subject, machine, ranks, space, enumerated))
    priced = price(enumerated.candidates, machine, memory_limit(machine, ranks, space), space)
    return Found(subject, machine, ranks, space, enumerated, rank(priced, machine, space.finalists))


def legal_plans(
    subject: Subject, machine: Machine, ranks: int, space: SearchSpace, waived: Collection[str] = ()
) -> Enumerated:
    """Enumerate the legal plans whose tensor groups stay inside a node."""
    devices = ranks if machine.sharing == "shared" else machine.devices_per_node
    return enumerate_plans(subject, ranks, space, (inside_a_node(devices, ranks),), waived, node=devices)


def memory_limit(machine: Machine, ranks: int, space: SearchSpace) -> float:
    """Return the bytes that a rank may hold."""
    return machine.usable_memory(ranks, space.memory_fraction)


def _no_legal_plan(subject: Subject, machine: Machine, ranks: int, space: SearchSpace, enumerated: Enumerated) -> str:
    """Return the message for a space without a legal plan: the reasons and what to change."""
    if not enumerated.combinations:
        asked = (f"search.{axis} {_named(getattr(space, axis))}" for axis in AXES)
        return f"no degrees of a search multiply to {ranks} ranks: {' x '.join(asked)}; allow others, or other ranks"
    model = subject.model
    worst = sorted(enumerated.rejected, key=lambda family: -family.layouts)[:3]
    reasons = "; ".join(f"{family.example} ({family.layouts:,} layouts)" for family in worst)
    batches = _legal_batches(subject, machine, ranks, space)
    near = " or ".join(f"{batch:,}" for batch in batches)
    if batches:
        remedy = f"nearest legal batch: {near}"
    elif forbidding := _forbidding(subject, machine, ranks, space):
        remedy = f"allow other choices of {', or of '.join(f'search.{name}' for name in forbidding)}"
    else:
        remedy = "choose ranks that divide heads x layers"
    if ranks == machine.devices:
        remedy = f"these are all devices of {machine.name}: give --nodes or --ranks for fewer; {remedy}"
    return (
        f"no layout of {ranks} ranks is legal for plan.model (layers {model.layers}, heads {model.heads}) and "
        f"plan.batch.sequences {subject.sequences}: {reasons}; {remedy}"
    )


def _forbidding(subject: Subject, machine: Machine, ranks: int, space: SearchSpace) -> list[str]:
    """Return the fields of the space whose default values would make some plan legal."""
    usual = {name: field.default for name, field in SearchSpace.model_fields.items()}
    given = [name for name, value in usual.items() if getattr(space, name) != value]
    others = {name: space.model_copy(update={name: usual[name]}) for name in given}
    return [n for n, other in others.items() if len(legal_plans(subject, machine, ranks, other).candidates)]


def _named(degrees: tuple[int, ...] | None) -> str:
    return "any" if degrees is None else f"[{', '.join(map(str, degrees))}]"


def _legal_batches(subject: Subject, machine: Machine, ranks: int, space: SearchSpace) -> list[int]:
    """Return the nearest batch sizes for which some layout is legal."""
    grid = legal_plans(subject, machine, ranks, space, ("batch", "interleaving")).candidates.grid
    if not len(grid):
        return []
    units = np.unique(batch_unit(grid))
    below = (subject.sequences // units * units).max()
    above = (-(-subject.sequences // units) * units).min()
    return sorted({int(batch) for batch in (below, above) if batch > 0})
