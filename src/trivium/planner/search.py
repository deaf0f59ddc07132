"""Search for the fastest plans for a model, a batch and a machine."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from trivium.cost.hardware import Machine
from trivium.errors import ConfigError
from trivium.plan.layout import AXES
from trivium.plan.offload import NO_OFFLOAD, Offload
from trivium.plan.plan import Plan, compiler_problems, recording_problems
from trivium.planner.candidates import Enumerated, enumerate_plans
from trivium.planner.config import SearchSpace
from trivium.planner.grid import Candidates, Subject
from trivium.planner.laws import batch_unit, inside_a_node
from trivium.planner.pricing import Ranking, Winner, price, rank
from trivium.planner.ties import NOTHING, Choice, simplest

SHARES = (0.0, 0.5, 1.0)  # of what the host keeps, which are tried where nothing fits without
MOST_OFFLOAD = Offload(optimizer=1.0, activations=1.0)


@dataclass(frozen=True, eq=False)
class Found:
    """The result of a search: legal and rejected plans, and rankings of those that fit, one for each way to compile,
    record and offload them. choice: the chosen plan. subject: that of its ranking."""

    subject: Subject
    machine: Machine
    ranks: int
    space: SearchSpace
    enumerated: Enumerated
    rankings: tuple[Ranking, ...]
    choice: Choice

    @property
    def ranking(self) -> Ranking:
        """The ranking of the chosen plan; the first one if no plan fits."""
        return self.rankings[self.choice.ranking]

    @property
    def others(self) -> tuple[Ranking, ...]:
        """The rankings of the same plans with the same offload, compiled and recorded otherwise."""
        same = (each for each in self.rankings if each.subject.offload == self.subject.offload)
        return tuple(each for each in same if each is not self.ranking)

    @property
    def chosen(self) -> Winner:
        """The simplest of the plans that are as fast as the fastest one (planner/ties.py)."""
        return self.ranking.winner(self.choice.place)


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
    ranking = _ranking(enumerated.candidates, machine, ranks, space)
    return Found(subject, machine, ranks, space, enumerated, (ranking,), _choice([ranking]))


def best_search(
    plan: Plan,
    machine: Machine,
    ranks: int,
    space: SearchSpace | None = None,
    away: Mapping[str, float] = MappingProxyType({}),
) -> Found:
    """Search for a better plan than this one, compiled and recorded in all the ways that the space allows. The result
    is that of the way in which the chosen plan runs. away: the shares of `Offload` that every plan has, by field."""
    space = space or SearchSpace()
    first, *others = _subjects(plan, machine, space, away)
    found = search(first, machine, ranks, space)
    every = [found.enumerated.candidates, *(Candidates(each, found.enumerated.candidates.grid) for each in others)]
    rankings = [found.ranking, *(_ranking(each, machine, ranks, space) for each in every[1:])]
    if space.offload is None and not any(len(each.order) for each in rankings) and machine.usable_host_memory():
        more = [offload for offload in _offloads(SHARES, away) if offload != first.offload]
        leaner = [_with_offload(each, offload) for each in every for offload in more]
        every, rankings = every + leaner, rankings + [_ranking(each, machine, ranks, space) for each in leaner]
    choice = _choice(rankings)
    best = every[choice.ranking]
    enumerated = replace(found.enumerated, candidates=best)
    return Found(best.subject, machine, ranks, space, enumerated, tuple(rankings), choice)


def _subjects(plan: Plan, machine: Machine, space: SearchSpace, away: Mapping[str, float]) -> list[Subject]:
    """Return the subject of a search for each way to run: with both torch.compile and CUDA graphs, and with neither,
    unless the space says otherwise. A model that cannot be compiled or recorded is searched without."""
    on_gpus = machine.generation != "cpu"
    usual = (True, False)
    compiled = space.compiled or (usual if on_gpus else (plan.compiled,))
    recorded = space.cuda_graphs or (usual if on_gpus else (False,))
    if space.compiled is None and compiler_problems(plan.model, compiled=True):
        compiled = (False,)
    if space.cuda_graphs is None and recording_problems(plan.model, plan.precision, 1, NO_OFFLOAD, recorded=True):
        recorded = (False,)
    pairs = [(c, r) for c in compiled for r in recorded]
    if len(compiled) == len(recorded) == len(usual):
        pairs = [(c, r) for c, r in pairs if c == r]
    offloads = _offloads(space.offload or (0.0,), away)
    return [replace(Subject.of(plan), compiled=c, recorded=r, offload=each) for c, r in pairs for each in offloads]


def _offloads(shares: Sequence[float], away: Mapping[str, float]) -> list[Offload]:
    every = (Offload(optimizer=state, activations=kept) for state in shares for kept in shares)
    return list(dict.fromkeys(offload.model_copy(update=away) for offload in every))


def _with_offload(candidates: Candidates, offload: Offload) -> Candidates:
    return Candidates(replace(candidates.subject, offload=offload), candidates.grid)


def _ranking(candidates: Candidates, machine: Machine, ranks: int, space: SearchSpace) -> Ranking:
    return rank(
        price(candidates, machine, memory_limit(machine, ranks, space), space),
        machine,
        space.finalists,
        space.objective,
    )


def _choice(rankings: Sequence[Ranking]) -> Choice:
    return simplest(rankings) if any(len(ranking.order) for ranking in rankings) else NOTHING


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
