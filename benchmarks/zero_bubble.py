"""Our ZB-H1 against our 1F1B: the share of the pipeline's time that the table says is saved, and what was."""

import statistics
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from contest import CHECKED_STEPS, Contestant, Row
from trivium_engine import TriviumEngine

from trivium.cost.timeline import simulate
from trivium.plan.schedule import Action

OURS_1F1B, OURS_ZB = "trivium 1f1b", "trivium zb-h1"
Durations = dict[tuple[str, int], float]  # (op, stage) -> seconds


def share_saved(contestants: Mapping[str, Contestant], row: Row) -> dict[str, Any]:
    """Predicted from measured durations of F, B, I and W, and measured; whole pipelines, update apart."""
    plain, zero_bubble = contestants[OURS_1F1B], contestants[OURS_ZB]
    assert isinstance(plain, TriviumEngine) and isinstance(zero_bubble, TriviumEngine), "both are ours"
    predicted, measured, durations = {}, {}, {}
    for name, engine in ((OURS_1F1B, plain), (OURS_ZB, zero_bubble)):
        seconds = _durations(engine)
        durations[name] = {f"{op}{stage}": s for (op, stage), s in sorted(seconds.items())}
        predicted[name] = _simulated(engine, seconds)
        measured[name] = _pipeline_seconds(engine)
    # The same durations under both tables: W apart, B = I + W, so that only the order differs.
    split = _durations(zero_bubble)
    whole = {("F", s): split["F", s] for _, s in split} | {
        ("B", s): split["I", s] + split["W", s] for op, s in split if op == "I"
    }
    order_only = 1 - _simulated(zero_bubble, split) / _simulated(plain, whole)
    saved = 1 - measured[OURS_ZB] / measured[OURS_1F1B]
    return {
        "pipeline_seconds": measured,
        "predicted_seconds": predicted,
        "durations": durations,
        "share_saved": saved,
        "share_predicted": 1 - predicted[OURS_ZB] / predicted[OURS_1F1B],
        "share_predicted_by_order": order_only,
        "reached": saved >= order_only * 2 / 3,
    }


def _durations(engine: TriviumEngine) -> Durations:
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for spans in engine.spans[CHECKED_STEPS:]:
        for span in spans:
            if isinstance(span.event, Action):
                found[span.event.op.value, span.event.stage].append(span.end - span.start)
    mine = {key: statistics.median(values) for key, values in found.items()}
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return {key: seconds for each in every for key, seconds in each.items()}


def _simulated(engine: TriviumEngine, seconds: Durations) -> float:
    return simulate(engine.plan.schedule_table(), lambda a: seconds[a.op.value, a.stage]).duration


def _pipeline_seconds(engine: TriviumEngine) -> float:
    """Median over steps of the longest rank's program; ranks start together, after a barrier."""
    mine = [spans[-1].end for spans in engine.spans[CHECKED_STEPS:]]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return statistics.median(max(step) for step in zip(*every, strict=True))
