"""Price and rank thousands of plans at once: memory of all, seconds of those that fit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.cost.case import NONE, take
from trivium.cost.compute import model_flops
from trivium.cost.constants import shipped_constants
from trivium.cost.forward_pass import forward_passes_seconds
from trivium.cost.hardware import Machine
from trivium.cost.memory import memory_of_cases
from trivium.cost.prices import Piece, Prices, action_seconds, prices, stage_pieces
from trivium.cost.replicas import data_seconds, fullest_of, optimizer_seconds
from trivium.cost.setting import Setting, setting
from trivium.cost.sharing import on_shared_cores
from trivium.cost.stack import executing
from trivium.cost.stages import every_nth
from trivium.cost.step_time import StepSeconds, step_seconds
from trivium.cost.wavefront import Run, finish_seconds
from trivium.plan.layers.part import Number, entries
from trivium.plan.partition import balanced
from trivium.plan.plan import Plan
from trivium.plan.schedule import SCHEDULE_NAMES, SPLIT_SCHEDULES
from trivium.planner.config import SearchSpace
from trivium.planner.grid import Candidates, Column, micro_batches_of
from trivium.planner.leaner import as_lean_as_needed

Figures = NDArray[np.float64]

DIGITS = 6  # times that agree in as many digits are equal; the plan with less memory then comes first


@dataclass(frozen=True, eq=False)
class Priced:
    """Candidates and their costs. memory_bytes: of each plan's worst rank. fitting: indices of the rows within the
    limit. parts, seconds: closed form of a step of the fitting rows."""

    candidates: Candidates
    memory_bytes: Figures
    memory_limit: float
    fitting: Column
    parts: StepSeconds

    @cached_property
    def seconds(self) -> Figures:
        return np.broadcast_to(np.asarray(self.parts.seconds, float), self.fitting.shape)

    def parts_at(self, place: int) -> dict[str, float]:
        """Return the parts of the row at an index of `fitting`, by name."""
        return {
            name: float(np.broadcast_to(part, self.fitting.shape)[place]) for name, part in vars(self.parts).items()
        }


@dataclass(frozen=True)
class Winner:
    """A plan and its price. seconds: simulated. parts: seconds by name, which add up to `seconds`."""

    plan: Plan
    seconds: float
    parts: dict[str, float]
    memory_bytes: float
    tokens_per_second: float
    utilisation: float

    @property
    def limits(self) -> list[tuple[str, float]]:
        """The parts as fractions of the step, the largest first."""
        shares = {name.replace("_", " "): value / self.seconds for name, value in self.parts.items()}
        return sorted(shares.items(), key=lambda item: -item[1])


@dataclass(frozen=True, eq=False)
class Ranking:
    """Plans that fit, sorted by seconds per sequence. order: indices of `priced.fitting`, the best first. simulated:
    seconds per step of the first of them; the others are ranked by their closed form."""

    machine: Machine
    priced: Priced
    order: Column
    simulated: Figures

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
        )

    def place_of(self, plan: Plan) -> int | None:
        """Return the 1-based rank of a plan; None if it is not a candidate or does not fit."""
        row = self.priced.candidates.row_of(plan)
        if row is None:
            return None
        places = np.flatnonzero(self.priced.fitting[self.order] == row)
        return int(places[0]) + 1 if len(places) else None


def price(candidates: Candidates, machine: Machine, memory_limit: float, space: SearchSpace) -> Priced:
    """Price all plans, each with the least recomputation that fits in `memory_limit` bytes."""
    candidates, memory = as_lean_as_needed(candidates, memory_limit, space)
    fitting = np.flatnonzero(memory <= memory_limit)
    if candidates.subject.offload.is_used:
        fitting = fitting[_hosts_hold(candidates.take(fitting), memory[fitting], machine, space)]
    schedule = candidates.grid["schedule"][fitting]
    stack = executing(machine, compiled=candidates.subject.compiled)
    parts = step_seconds(take(candidates.case, fitting), machine, stack, schedule=schedule)
    return Priced(candidates, memory, memory_limit, fitting, parts)


def _hosts_hold(candidates: Candidates, memory: Figures, machine: Machine, space: SearchSpace) -> Any:
    """Return for each plan whether the memory of the hosts is enough, too."""
    if not len(candidates):
        return np.zeros(0, bool)
    host = memory_of_cases(candidates.case, candidates.grid["schedule"]).host
    ranks = int(np.max(candidates.case.ranks))
    return machine.holds(memory, host, ranks, space.memory_fraction)


def rank(priced: Priced, machine: Machine, finalists: int) -> Ranking:
    """Sort plans by their closed form, then simulate the first ones and sort those by the simulation.

    The closed form may be too low, as for few micro-batches of a zero-bubble schedule. Therefore `finalists` more plans
    are simulated until the closed form of all others exceeds the best simulated time.
    """
    sequences = priced.candidates.grid["sequences"][priced.fitting]
    held, closed = priced.memory_bytes[priced.fitting], priced.seconds / sequences
    order = np.lexsort((held, _rounded(closed)))
    simulated = np.zeros(0)
    while len(simulated) < len(order):
        done = len(simulated)
        if done and closed[order[done]] >= simulated.min():
            break
        more = order[done : done + finalists]
        seconds = simulated_seconds(priced.candidates.take(priced.fitting[more]), machine)
        simulated = np.concatenate([simulated, seconds / sequences[more]])
    first = order[: len(simulated)]
    best = np.lexsort((held[first], _rounded(simulated)))
    ranked = np.concatenate([first[best], order[len(first) :]])
    return Ranking(machine, priced, ranked, simulated[best] * sequences[first[best]])


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


def simulated_seconds(candidates: Candidates, machine: Machine) -> Figures:
    """Return the seconds per step of every plan from a simulation of its schedule, equal to cost.estimate of each
    plan."""
    if not len(candidates):
        return np.zeros(0)
    stack = executing(machine, compiled=candidates.subject.compiled)
    at = setting(candidates.case, machine, stack, shipped_constants())
    again = prices(replace(at, case=replace(at.case, recompute_every=1)))
    kept = prices(replace(at, case=replace(at.case, recompute=NONE)))
    stages = [_stages_at(candidates, kept, again, row) for row in range(len(candidates))]
    crowd = machine.crowding(at.case.ranks)
    pipeline = finish_seconds(_runs(candidates, stages, kept.transfer))
    if machine.sharing == "shared":
        mean, share = _mean_work(at, stages), at.constants.core_share
        pipeline = np.asarray(on_shared_cores(machine, at.case, mean, pipeline, 0.0, share).seconds, float)
    fullest = fullest_of(at.case)
    pieces = prices(at)
    after = crowd * (data_seconds(at, pieces, fullest) + optimizer_seconds(at, fullest))
    return np.asarray(at.stack.factor * (pipeline + after) + forward_passes_seconds(at, pieces), float)


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
