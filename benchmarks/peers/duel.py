"""Sides of different environments, by turns: while one computes, the others wait on their pipes."""

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from contest import CHECKED_STEPS, LOSS_TOLERANCE, Pair, comparison
from setting import Setting

from peers.side import Entry, Side, SideFailed

Answers = list[dict[str, Any]]  # of each rank


@dataclass(frozen=True)
class Duel:
    """Trivium against one peer; `says` names what each synchronises and leaves out."""

    name: str
    ranks: int
    setting: Setting
    ours: Entry
    peer: Entry
    target: float | None
    says: str
    fewer_rounds: int = 1  # rounds are divided by this


@dataclass(frozen=True)
class Contest:
    """Any number of sides under one setting."""

    name: str
    ranks: int
    setting: Setting
    entries: tuple[Entry, ...]
    says: str


def fight(duel: Duel, rounds: int) -> dict[str, Any]:
    """The row's result, with the keys of a row of one process group; a side that fails is named with its reason."""
    result = compete(Contest(duel.name, duel.ranks, duel.setting, (duel.ours, duel.peer), duel.says), rounds)
    pair = Pair(duel.ours.name, duel.peer.name, duel.target)
    result["comparisons"] = [comparison(pair, result)]
    return result


def compete(contest: Contest, rounds: int) -> dict[str, Any]:
    """Losses of two steps, seconds of the others and bytes by side; who fails, whenever, is in `failed` with the
    reason, and the others go on."""
    losses: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        sides = []
        for entry in contest.entries:
            side = stack.enter_context(Side(entry, contest.ranks, vars(contest.setting)))
            try:
                side.build()
                losses[side.name] = [_mean_loss(side.step(number)) for number in range(CHECKED_STEPS)]
                sides.append(side)
            except SideFailed as error:
                failed[side.name] = str(error)
        times = _take_turns(sides, rounds, failed)
        memory = {side.name: _bytes(side.memory()) for side in sides if side.name not in failed}
    return {
        "name": contest.name,
        "status": "measured",
        "ranks": contest.ranks,
        "setting": vars(contest.setting),
        "says": contest.says,
        "loss": losses,
        "loss_tolerance": LOSS_TOLERANCE[contest.setting.weights],
        "failed": failed,
        "rounds": rounds,
        "seconds": {name: _summary(steps) for name, steps in times.items() if name not in failed},
        "memory": memory,
    }


def _take_turns(sides: Sequence[Side], rounds: int, failed: dict[str, str]) -> dict[str, list[Answers]]:
    times: dict[str, list[Answers]] = {side.name: [] for side in sides}
    for number in range(rounds):
        # Every other round in reverse, as in a contest within one process group.
        for side in sides if number % 2 == 0 else reversed(sides):
            if side.name in failed:
                continue
            try:
                times[side.name].append(side.step(CHECKED_STEPS + number))
            except SideFailed as error:
                failed[side.name] = str(error)
    return times


def _mean_loss(answers: Answers) -> float:
    return statistics.mean(float(a["loss"]) for a in answers if a["loss"] is not None)


def _bytes(ranks: Answers) -> dict[str, int]:
    """Return the largest memory of any rank: bytes above those after the imports, and of the whole process."""
    return {"above_imports": max(a["peak"] - a["imported"] for a in ranks), "process": max(a["peak"] for a in ranks)}


def _summary(steps: Sequence[Answers]) -> dict[str, float]:
    """Wall seconds as rank 0 sees them between barriers; processor seconds: the median of each rank, summed."""
    wall = [ranks[0]["wall"] for ranks in steps]
    cpu = sum(statistics.median(step[rank]["cpu"] for step in steps) for rank in range(len(steps[0])))
    return {"median": statistics.median(wall), "min": min(wall), "cpu": cpu}
