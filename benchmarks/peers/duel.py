"""Trivium against one peer of another environment, by turns: while one side computes, the other waits on its pipe."""

import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from contest import CHECKED_STEPS, LOSS_TOLERANCE, Pair, comparison
from setting import Setting

from peers.side import Entry, Side, SideFailed

Answers = list[dict[str, Any]]  # of each rank


@dataclass(frozen=True)
class Duel:
    """A row of the report; `says` names what each synchronises and leaves out."""

    name: str
    ranks: int
    setting: Setting
    ours: Entry
    peer: Entry
    target: float | None
    says: str
    fewer_rounds: int = 1  # rounds are divided by this


def fight(duel: Duel, rounds: int) -> dict[str, Any]:
    """The row's result, with the keys of a row of one process group; a side that fails is named with its reason."""
    losses: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    seconds: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        sides = []
        for entry in (duel.ours, duel.peer):
            side = stack.enter_context(Side(entry, duel.ranks, vars(duel.setting)))
            try:
                side.build()
                losses[side.name] = [_mean_loss(side.step(number)) for number in range(CHECKED_STEPS)]
                sides.append(side)
            except SideFailed as error:
                failed[side.name] = str(error)
        if not failed:
            seconds = _take_turns(sides, rounds, failed)
    result = {
        "name": duel.name,
        "status": "measured",
        "ranks": duel.ranks,
        "setting": vars(duel.setting),
        "says": duel.says,
        "loss": losses,
        "loss_tolerance": LOSS_TOLERANCE,
        "failed": failed,
        "rounds": rounds,
        "seconds": seconds,
    }
    pair = Pair(duel.ours.name, duel.peer.name, duel.target)
    result["comparisons"] = [comparison(pair, result)]
    return result


def _take_turns(sides: Sequence[Side], rounds: int, failed: dict[str, str]) -> dict[str, dict[str, float]]:
    times: dict[str, list[Answers]] = {side.name: [] for side in sides}
    for number in range(rounds):
        # Every other round in reverse, as in a contest within one process group.
        for side in sides if number % 2 == 0 else reversed(sides):
            try:
                times[side.name].append(side.step(CHECKED_STEPS + number))
            except SideFailed as error:
                failed[side.name] = str(error)
                return {}
    return {name: _summary(steps) for name, steps in times.items()}


def _mean_loss(answers: Answers) -> float:
    return statistics.mean(float(a["loss"]) for a in answers if a["loss"] is not None)


def _summary(steps: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """Wall seconds as rank 0 sees them between barriers; processor seconds: the median of each rank, summed."""
    wall = [ranks[0]["wall"] for ranks in steps]
    cpu = sum(statistics.median(step[rank]["cpu"] for step in steps) for rank in range(len(steps[0])))
    return {"median": statistics.median(wall), "min": min(wall), "cpu": cpu}
