"""Price and rank thousands of plans at once: memory of all, seconds of those that fit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trivium.cost.case import NONE, take
from trivium.cost.compute import model_flops
from trivium.cost.constants import shipped_constants
from trivium.cost.energy import busy_seconds, step_joules
from trivium.cost.forward_pass import forward_passes_seconds
from trivium.cost.hardware import Machine
from trivium.cost.memory import memory_of_cases, worst_rank
from trivium.cost.prices import Piece, Prices, action_seconds, prices, stage_pieces
from trivium.cost.replicas import Fullest, data_seconds, fullest_of, fullest_of_plan, optimizer_seconds
from trivium.cost.setting import Setting, setting
from trivium.cost.sharing import on_shared_cores
from trivium.cost.stack import executing
from trivium.cost.stages import every_nth
from trivium.cost.step_time import StepSeconds, step
from trivium.cost.wavefront import Run, finish_seconds
from trivium.plan.layers.part import Number, entries
from trivium.plan.partition import balanced
from trivium.plan.plan import Plan
from trivium.plan.schedule import SCHEDULE_NAMES, SPLIT_SCHEDULES
from trivium.planner.config import Objective, SearchSpace
from trivium.planner.grid import Candidates, Column, Subject, micro_batches_of
from trivium.planner.leaner import as_lean_as_needed

Figures = NDArray[np.float64]

DIGITS = 6  # times that agree in as many digits are equal; the plan with less memory then comes first


@dataclass(frozen=True, eq=False)
class Priced:
    """Candidates and their costs. memory_bytes: of each plan's worst rank. memory_limit: bytes that a rank may hold,
    and memory_fraction: of its device. fitting: indices of the rows within the limit. parts, busy, seconds: closed form
    of a step of the fitting rows."""

    candidates: Candidates
    memory_bytes: Figures
    memory_limit: float
    memory_fraction: float
    fitting: Column
    parts: StepSeconds
    busy: Number

    @cached_property
    def seconds(self) -> Figures:
        return np.broadcast_to(np.asarray(self.parts.seconds, float), self.fitting.shape)

    @property
    def steps(self) -> "Steps":
        """The steps of the fitting rows in closed form."""
        return Steps(self.seconds, np.broadcast_to(np.asarray(self.busy, float), self.fitting.shape))

    def parts_at(self, place: int) -> dict[str, float]:
        """Return the parts of the row at an index of `fitting`, by name."""
        return {
            name: float(np.broadcast_to(part, self.fitting.shape)[place]) for name, part in vars(self.parts).items()
        }


class Steps(NamedTuple):
    """Seconds of the steps of several plans, and those in which a device is busy."""

    seconds: Figures
    busy: Figures

    def take(self, places: Column) -> "Steps":
        """Return the steps at some places."""
        return Steps(self.seconds[places], self.busy[places])

    def followed_by(self, others: "Steps") -> "Steps":
        """Return these steps and others."""
        return Steps(*(np.concatenate(pair) for pair in zip(self, others, strict=True)))


NO_STEPS = Steps(np.zeros(0), np.zeros(0))


@dataclass(frozen=True)
class Winner:
    """A plan and its price. seconds: simulated. parts: seconds by name, which add up to `seconds`. joules: None if the
    machine names no watts."""

    plan: Plan
    seconds: float
    parts: dict[str, float]
    memory_bytes: float
    tokens_per_second: float
    utilisation: float
    joules: float | None = None

    @property
    def limits(self) -> list[tuple[str, float]]:
        """The parts as fractions of the step, the largest first."""
        shares = {name.replace("_", " "): value / self.seconds for name, value in self.parts.items()}
        return sorted(shares.items(), key=lambda item: -item[1])


@dataclass(frozen=True, eq=False)
class Ranking:
    """Plans that fit, sorted by seconds or joules per sequence. order: indices of `priced.fitting`, the best first.
    steps: of the first of them, simulated; the others are ranked by their closed form."""

    machine: Machine
    priced: Priced
    order: Column
    steps: Steps
    objective: Objective = "time"

    @property
    def subject(self) -> Subject:
        """The fields that all plans have in common."""
        return self.priced.candidates.subject

    @property
    def simulated(self) -> Figures:
        """Seconds per step of the simulated plans, the best first."""
        return self.steps.seconds

    @property
    def needs(self) -> Figures:
        """Seconds or joules per sequence of the simulated plans, the best first."""
        return needed(self.priced, self.order[: len(self.simulated)], self.steps, self.machine, self.objective)

    def winners(self, top: int) -> list[Winner]:
        """Return the first `top` simulated plans, the best first."""
        return [self.winner(place) for place in range(min(top, len(self.simulated)))]

    def winner(self, place: int) -> Winner:
        """Return the plan at a 0-based place."""
        at, seconds = int(self.order[place]), float(self.simulated[place])
        row, parts = int(self.priced.fitting[at]), _adding_up(self.priced.parts_at(at), seconds)
        plan = self.priced.candidates.plan_at(row)
        return Winner(
            plan=plan,
            seconds=seconds,
            parts=parts,
            memory_bytes=float(self.priced.memory_bytes[row]),
            tokens_per_second=plan.tokens(plan.batch.sequences) / seconds,
            utilisation=utilisation(plan, self.machine, seconds),
            joules=self._joules(place, plan),
        )

    def _joules(self, place: int, plan: Plan) -> float | None:
        if self.machine.watts is None:
            return None
        seconds, busy = (float(each[place]) for each in self.steps)
        return float(step_joules(self.machine, plan.layout.world_size, seconds, busy))

    def place_of(self, plan: Plan) -> int | None:
        """Return the 1-based rank of a plan; None if it is not a candidate or does not fit."""
        row = self.priced.candidates.row_of(plan)
        if row is None:
            return None
        places = np.flatnonzero(self.priced.fitting[self.order] == row)
        return int(places[0]) + 1 if len(places) else None


def leanest(
    candidates: Candidates, machine: Machine, memory_limit: float, space: SearchSpace
) -> tuple[Candidates, Figures, Column]:
    """Return all plans, each with the least recomputation that fits in `memory_limit` bytes, the bytes of their worst
    ranks, and the rows that fit, also on their hosts."""
    candidates, memory = as_lean_as_needed(candidates, memory_limit, space)
    fitting = np.flatnonzero(memory <= memory_limit)
    if candidates.subject.offload.is_used:
        fitting = fitting[_hosts_hold(candidates.take(fitting), memory[fitting], machine, space)]
    return candidates, memory, fitting


def some_plan_fits(candidates: Candidates, machine: Machine, ranks: int, space: SearchSpace) -> bool:
    """Return whether `price` and `rank` would find a plan that fits, without pricing time. ranks: of every plan."""
    limit = machine.usable_memory(ranks, space.memory_fraction)
    candidates, memory, fitting = leanest(candidates, machine, limit, space)
    if candidates.subject.has_equal_layers:
        return len(fitting) > 0
    smallest_first = fitting[np.argsort(memory[fitting])]
    held = (worst_rank(candidates.plan_at(int(row)))[1] for row in smallest_first)
    return any(machine.holds(each.total, each.host, ranks, space.memory_fraction) for each in held)


def price(candidates: Candidates, machine: Machine, memory_limit: float, space: SearchSpace) -> Priced:
    """Price all plans, each with the least recomputation that fits in `memory_limit` bytes."""
    candidates, memory, fitting = leanest(candidates, machine, memory_limit, space)
    schedule = candidates.grid["schedule"][fitting]
    stack = executing(machine, compiled=candidates.subject.compiled)
    parts, busy = step(take(candidates.case, fitting), machine, stack, schedule=schedule)
    return Priced(candidates, memory, memory_limit, space.memory_fraction, fitting, parts, busy)


def _hosts_hold(candidates: Candidates, memory: Figures, machine: Machine, space: SearchSpace) -> Any:
    """Return for each plan whether the memory of the hosts is enough, too."""
    if not len(candidates):
        return np.zeros(0, bool)
    host = memory_of_cases(candidates.case, candidates.grid["schedule"]).host
    ranks = int(np.max(candidates.case.ranks))
    return machine.holds(memory, host, ranks, space.memory_fraction)


def needed(priced: Priced, places: Column, steps: Steps, machine: Machine, objective: Objective) -> Figures:
    """Return the seconds or joules per sequence of steps of the plans at indices of `priced.fitting`. Raises
    ConfigError if the objective is energy and the machine names no watts."""
    rows, need = priced.fitting[places], steps.seconds
    if objective == "energy":
        need = np.asarray(step_joules(machine, take(priced.candidates.case, rows).ranks, *steps), float)
    return need / priced.candidates.grid["sequences"][rows]


def rank(priced: Priced, machine: Machine, finalists: int, objective: Objective = "time") -> Ranking:
    """Sort plans by their closed form, then simulate the first ones and sort those by the simulation.

    The closed form may be too low, as for few micro-batches of a zero-bubble schedule. Therefore `finalists` more plans
    are simulated until the closed form of all others exceeds the best simulated one. Those that do not fit by the count
    of their own ranks are dropped.
    """
    every = np.arange(len(priced.fitting))
    closed = needed(priced, every, priced.steps, machine, objective)
    others = np.lexsort((priced.memory_bytes[priced.fitting], _rounded(closed)))
    first, steps, found = others[:0], NO_STEPS, np.zeros(0)
    while len(others) and not (len(found) and closed[others[0]] >= found.min()):
        (more, priced), others = _fitting(others[:finalists], priced, machine), others[finalists:]
        first = np.concatenate([first, more])
        steps = steps.followed_by(simulated_steps(priced.candidates.take(priced.fitting[more]), machine))
        found = needed(priced, first, steps, machine, objective)
    best = np.lexsort((priced.memory_bytes[priced.fitting[first]], _rounded(found)))
    return Ranking(machine, priced, np.concatenate([first[best], others]), steps.take(best), objective)


def _fitting(places: Column, priced: Priced, machine: Machine) -> tuple[Column, Priced]:
    """Return those of some indices of `fitting` whose plans fit by the count of their own ranks, and the prices with
    these counts."""
    if priced.candidates.subject.has_equal_layers:
        return places, priced
    rows, held = priced.fitting[places], priced.memory_bytes.copy()
    plans = [priced.candidates.plan_at(int(row)) for row in rows]
    worst = [worst_rank(plan)[1] for plan in plans]
    held[rows], host = np.array([[memory.total, memory.host] for memory in worst]).T
    fits = machine.holds(held[rows], host, plans[0].layout.world_size, priced.memory_fraction)
    return places[fits], replace(priced, memory_bytes=held)


def utilisation(plan: Plan, machine: Machine, seconds: float) -> float:
    """Return the model FLOPs utilisation (MFU) of a plan with steps of `seconds` seconds."""
    peak = machine.peak_flops_per_second(plan.precision.weights, plan.layout.world_size)
    return model_flops(plan.model, plan.batch.sequences).total / seconds / peak


def _rounded(seconds: Figures) -> Figures:
    """Round to DIGITS significant digits."""
    scale = 10.0 ** (DIGITS - 1 - np.floor(np.log10(seconds)))
    return np.round(seconds * scale) / scale


def _adding_up(parts: dict[str, float], seconds: float) -> dict[str, float]:
    """Adjust the parts of the closed form so that they add up to the simulated `seconds`.

    The difference counts as bubble. If that would make the bubble negative, all other parts are scaled instead.
    """
    bubble = parts["bubble"] + seconds - sum(parts.values())
    if bubble >= 0:
        return parts | {"bubble": bubble}
    others = sum(parts.values()) - parts["bubble"]
    return {name: value * seconds / others for name, value in parts.items()} | {"bubble": 0.0}


def simulated_steps(candidates: Candidates, machine: Machine) -> Steps:
    """Return the step of every plan from a simulation of its schedule, equal to cost.estimate of each plan."""
    if not len(candidates):
        return NO_STEPS
    stack = executing(machine, compiled=candidates.subject.compiled)
    at = setting(candidates.case, machine, stack, shipped_constants())
    again = prices(replace(at, case=replace(at.case, recompute_every=1)))
    kept = prices(replace(at, case=replace(at.case, recompute=NONE)))
    stages = [_stages_at(candidates, kept, again, row) for row in range(len(candidates))]
    crowd = machine.crowding(at.case.ranks)
    pipeline, mean = finish_seconds(_runs(candidates, stages, kept.transfer)), _mean_work(at, stages)
    if machine.sharing == "shared":
        share = at.constants.core_share
        pipeline = np.asarray(on_shared_cores(machine, at.case, mean, pipeline, 0.0, share).seconds, float)
    fullest, pieces = _fullest(candidates), prices(at)
    after = crowd * (data_seconds(at, pieces, fullest) + optimizer_seconds(at, fullest))
    seconds = np.asarray(at.stack.factor * (pipeline + after) + forward_passes_seconds(at, pieces), float)
    return Steps(seconds, np.asarray(busy_seconds(at, pieces, fullest, mean), float))


def _fullest(candidates: Candidates) -> Fullest:
    """Return the fullest rank of every plan, by the count of its own ranks where layers differ."""
    if candidates.subject.has_equal_layers:
        return fullest_of(candidates.case)
    every = [fullest_of_plan(candidates.plan_at(row)) for row in range(len(candidates))]
    return Fullest(*np.array(every, float).T)


def _stages_at(candidates: Candidates, kept: Prices, again: Prices, row: int) -> tuple[Piece, Piece]:
    """Return forward and backward of one micro-batch of a row, by stage. kept, again: prices of all rows without and
    with recomputation."""
    at = {name: int(column[row]) for name, column in candidates.grid.columns.items()}
    layers = np.array(balanced(candidates.subject.model.layers, at["pipeline"] * at["chunks"]))
    return stage_pieces(entries(kept, row), entries(again, row), layers, every_nth(layers, at["recompute_every"]))


def _mean_work(at: Setting, stages: Sequence[tuple[Piece, Piece]]) -> Piece:
    """Return the work of all micro-batches, averaged over pipeline ranks."""
    whole = np.array([[np.sum(by_stage) for by_stage in forward.plus(backward)] for forward, backward in stages])
    return Piece(*whole.T).times(at.case.micro_batches / at.case.pipeline)


def _runs(candidates: Candidates, stages: Sequence[tuple[Piece, Piece]], transfer: Number) -> list[Run]:
    grid, transfers = candidates.grid, np.broadcast_to(np.asarray(transfer, float), len(candidates))
    names, micro_batches = [SCHEDULE_NAMES[number] for number in grid["schedule"]], micro_batches_of(grid)
    return [
        Run(
            name=names[row],
            pipeline=int(grid["pipeline"][row]),
            micro_batches=int(micro_batches[row]),
            chunks=int(grid["chunks"][row]),
            seconds=action_seconds(*stages[row], split=names[row] in SPLIT_SCHEDULES),
            transfer=float(transfers[row]),
        )
        for row in range(len(candidates))
    ]
