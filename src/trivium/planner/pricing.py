"""Thousands of plans priced at once: what they hold, and the seconds of those that fit."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trivium.cost.case import take
from trivium.cost.compute import model_flops
from trivium.cost.hardware import Machine
from trivium.cost.stack import executing
from trivium.cost.step_time import StepSeconds, step_seconds
from trivium.plan.plan import Plan
from trivium.planner.config import SearchSpace
from trivium.planner.finalists import simulated_seconds
from trivium.planner.grid import Candidates, Column
from trivium.planner.leaner import as_lean_as_needed

Figures = NDArray[np.float64]

DIGITS = 6  # times that agree in so many are equal; of these the plan that holds less comes first


@dataclass(frozen=True, eq=False)
class Priced:
    """Candidates and what they cost. memory_bytes: of each one's worst rank. fitting: the rows within the limit.

    parts, seconds: of a step of the fitting rows, in closed form.
    """

    candidates: Candidates
    memory_bytes: Figures
    memory_limit: float
    fitting: Column
    parts: StepSeconds

    @cached_property
    def seconds(self) -> Figures:
        return np.broadcast_to(np.asarray(self.parts.seconds, float), self.fitting.shape)

    def parts_at(self, place: int) -> dict[str, float]:
        """Of a place in `fitting`, by name."""
        return {
            name: float(np.broadcast_to(part, self.fitting.shape)[place]) for name, part in vars(self.parts).items()
        }


@dataclass(frozen=True)
class Winner:
    """A plan and its price. parts: seconds of the step by name; they add up to `seconds`, which is simulated."""

    plan: Plan
    seconds: float
    parts: dict[str, float]
    memory_bytes: float
    tokens_per_second: float
    utilisation: float

    @property
    def limits(self) -> list[tuple[str, float]]:
        """Parts and their shares of the step, largest first."""
        shares = {name.replace("_", " "): value / self.seconds for name, value in self.parts.items()}
        return sorted(shares.items(), key=lambda item: -item[1])


@dataclass(frozen=True, eq=False)
class Ranking:
    """Plans that fit, by seconds per sequence. order: places in `priced.fitting`, best first.

    simulated: seconds of a step of the first of these; the others are ranked in closed form.
    """

    machine: Machine
    priced: Priced
    order: Column
    simulated: Figures

    def winners(self, top: int) -> list[Winner]:
        """The best of the simulated plans, best first."""
        return [self.winner(place) for place in range(min(top, len(self.simulated)))]

    def winner(self, place: int) -> Winner:
        """The plan at a place, counted from 0."""
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
        """Where a plan ranks, from 1; None where it is no candidate, or does not fit."""
        row = self.priced.candidates.row_of(plan)
        if row is None:
            return None
        places = np.flatnonzero(self.priced.fitting[self.order] == row)
        return int(places[0]) + 1 if len(places) else None


def price(candidates: Candidates, machine: Machine, memory_limit: float, space: SearchSpace) -> Priced:
    """Memory of every plan, with as little computed again as fits, and seconds of those within the limit."""
    candidates, memory = as_lean_as_needed(candidates, memory_limit, space)
    fitting = np.flatnonzero(memory <= memory_limit)
    schedule = candidates.grid["schedule"][fitting]
    stack = executing(machine, compiled=candidates.subject.compiled)
    parts = step_seconds(take(candidates.case, fitting), machine, stack, schedule=schedule)
    return Priced(candidates, memory, memory_limit, fitting, parts)


def rank(priced: Priced, machine: Machine, finalists: int) -> Ranking:
    """Plans by their closed form; the first ones simulated, and ranked by that.

    Where the closed form was too hopeful, as for few micro-batches of a zero-bubble schedule, `finalists` more are
    simulated until no other plan could be faster than the best.
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
    """Model FLOP/s over the peak of the devices (MFU)."""
    devices = plan.layout.world_size if machine.sharing == "exclusive" else machine.devices
    peak = float(getattr(machine.peak, plan.precision.weights)) * devices
    return model_flops(plan.model, plan.batch.sequences).total / seconds / peak


def _rounded(seconds: Figures) -> Figures:
    """To DIGITS significant digits."""
    scale = 10.0 ** (DIGITS - 1 - np.floor(np.log10(seconds)))
    return np.round(seconds * scale) / scale


def _adding_up(parts: dict[str, float], seconds: float) -> dict[str, float]:
    """The parts of the closed form for a step whose simulation takes `seconds`.

    What the closed form does not see of uneven stages is waiting, too; where it overrates the busiest rank by more than
    all waiting, every part shrinks alike.
    """
    bubble = parts["bubble"] + seconds - sum(parts.values())
    if bubble >= 0:
        return parts | {"bubble": bubble}
    others = sum(parts.values()) - parts["bubble"]
    return {name: value * seconds / others for name, value in parts.items()} | {"bubble": 0.0}
