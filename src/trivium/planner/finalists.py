"""The fastest plans of a search, simulated action by action."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trivium.cost.case import NONE
from trivium.cost.constants import shipped_constants
from trivium.cost.hardware import Machine
from trivium.cost.moments import balanced, every_nth
from trivium.cost.prices import Piece, Prices, prices
from trivium.cost.replicas import data_seconds, fullest_of, optimizer_seconds
from trivium.cost.setting import Setting, setting
from trivium.cost.sharing import on_shared_cores
from trivium.cost.stack import executing
from trivium.cost.wavefront import Run, finish_seconds
from trivium.plan.schedule import SCHEDULE_NAMES, SPLIT_SCHEDULES
from trivium.planner.grid import Candidates

Figures = NDArray[np.float64]


def simulated_seconds(candidates: Candidates, machine: Machine) -> Figures:
    """Seconds of a step of every plan, as cost.estimate gives them one by one: the schedule simulated, and the rest."""
    if not len(candidates):
        return np.zeros(0)
    stack = executing(machine, compiled=candidates.subject.compiled)
    at = setting(candidates.case, machine, stack, shipped_constants())
    again = prices(replace(at, case=replace(at.case, recompute_every=1)))
    kept = prices(replace(at, case=replace(at.case, recompute=NONE)))
    crowd = machine.crowding(int(np.max(at.case.ranks)))
    pipeline = finish_seconds(_runs(candidates, at, again, kept))
    if machine.sharing == "shared":
        mean, share = _mean_work(at, again, kept), at.constants.core_share
        pipeline = np.asarray(on_shared_cores(machine, at.case, mean, pipeline, 0.0, share).seconds, float)
    fullest = fullest_of(at.case)
    after = crowd * (data_seconds(at, prices(at), fullest) + optimizer_seconds(at, fullest))
    return np.asarray(at.stack.factor * (pipeline + after), float)


def _mean_work(at: Setting, again: Prices, kept: Prices) -> Piece:
    """Of one rank, if all shared the work evenly. again, kept: pieces of layers that are recomputed, or are not."""
    layers, repeated = at.case.layers, np.ceil(at.case.layers / at.case.recompute_every)
    whole = again.layer.times(repeated).plus(kept.layer.times(layers - repeated))
    return whole.plus(kept.first).plus(kept.last).times(at.case.micro_batches / at.case.pipeline)


def _runs(candidates: Candidates, at: Setting, again: Prices, kept: Prices) -> list[Run]:
    grid, shape = candidates.grid, (len(candidates),)
    columns = {
        name: np.broadcast_to(np.asarray(getattr(kept, name).total, float), shape)
        for name in vars(kept)
        if name != "transfer"
    }
    columns["layer_again"] = np.broadcast_to(np.asarray(again.layer_backward.total, float), shape)
    transfers = np.broadcast_to(np.asarray(kept.transfer, float), shape)
    blocking = at.stack.blocking_transfers
    micro_batches = np.broadcast_to(np.asarray(at.case.micro_batches), shape)
    layers = candidates.subject.model.layers
    return [
        Run(
            name=SCHEDULE_NAMES[grid["schedule"][row]],
            pipeline=int(grid["pipeline"][row]),
            micro_batches=int(micro_batches[row]),
            chunks=int(grid["chunks"][row]),
            seconds=_stage_seconds(
                {name: float(column[row]) for name, column in columns.items()},
                balanced(layers, int(grid["pipeline"][row] * grid["chunks"][row])),
                int(grid["recompute_every"][row]),
                float(transfers[row]) * blocking,
                split=SCHEDULE_NAMES[grid["schedule"][row]] in SPLIT_SCHEDULES,
            ),
            transfer=float(transfers[row]) * (not blocking),
        )
        for row in range(len(candidates))
    ]


def _stage_seconds(
    seconds: dict[str, float], layers: NDArray[np.int64], every: int, waits: float, *, split: bool
) -> Figures:
    """[operation, stage]. every: so many layers are recomputed, if any are. waits: of each action for its transfer,
    where transfers block.

    The two halves of a split backward take as long, as in cost.estimate.
    """
    forward = seconds["layer_forward"] * layers + waits
    repeated = every_nth(layers, every)
    backward = seconds["layer_again"] * repeated + seconds["layer_backward"] * (layers - repeated)
    forward[0] += seconds["embedding_forward"]
    backward[0] += seconds["embedding_backward"]
    forward[-1] += seconds["head_forward"]
    backward[-1] += seconds["head_backward"]
    if not split:
        return np.stack([forward, backward + waits])
    return np.stack([forward, backward / 2 + waits, backward / 2])
