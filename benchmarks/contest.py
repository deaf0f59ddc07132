"""Run contestants in turn in one process group: first that they compute the same loss, then how long a step takes."""

import contextlib
import gc
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from setting import Setting

from trivium.comms.launch import Place, connected

# Losses of the first two steps (the second after one AdamW update), relative. In bf16 two right answers differ by its
# rounding, 2^-8.
LOSS_TOLERANCE = {"fp32": 1e-4, "bf16": 4e-3}
CHECKED_STEPS = 2


class Contestant(Protocol):
    """One way to train the model on this rank."""

    def step(self, number: int) -> torch.Tensor | None:
        """A whole optimizer step; the mean loss over this replica's or all sequences, None where unknown."""


Build = Callable[[Setting, Place], Contestant]


@dataclass(frozen=True)
class Pair:
    """A comparison: peer seconds / Trivium seconds must reach `target` (None: no target is set)."""

    ours: str
    peer: str
    target: float | None = None


@dataclass(frozen=True)
class Row:
    """Contestants under one setting; `says` names what each synchronises and leaves out."""

    name: str
    ranks: int
    setting: Setting
    contestants: Mapping[str, Build]
    pairs: tuple[Pair, ...]
    says: str
    extra: Callable[[Mapping[str, Contestant], "Row"], dict[str, Any]] | None = None
    fewer_rounds: int = 1  # rounds are divided by this


@dataclass
class Times:
    """Seconds of each round: wall between barriers, and of the processor on this rank."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def run_row(place: Place, row: Row, rounds: int, out: str) -> None:
    """On every rank of the row; rank 0 writes the result to `out`."""
    with connected(place, timeout_seconds=240):
        if place.world_size == 1:  # Trivium's one process needs no group; turns are taken by one
            dist.init_process_group("gloo", init_method=place.rendezvous, rank=0, world_size=1)
        contestants: dict[str, Contestant] = {}
        failed: dict[str, str] = {}
        losses: dict[str, list[float]] = {}
        for name, build in row.contestants.items():
            _agreed(name, failed, lambda n=name, b=build: contestants.__setitem__(n, b(row.setting, place)))
            if name not in failed:
                _agreed(name, failed, lambda n=name: losses.__setitem__(n, _check(contestants[n])))
            if name in failed:
                contestants.pop(name, None)
        times = _take_turns(contestants, rounds)
        result = {
            **_result(row, losses, failed),
            "rounds": rounds,
            "seconds": {name: _summary(t) for name, t in times.items()},
        }
        if row.extra is not None:
            result["extra"] = row.extra(contestants, row)
        result["comparisons"] = [comparison(pair, result) for pair in row.pairs]
        if place.rank == 0:
            Path(out).write_text(json.dumps(result))
        dist.barrier()


def _agreed(name: str, failed: dict[str, str], act: Callable[[], None]) -> None:
    """Act; if it raises on any rank, the contestant has failed on all."""
    error = None
    try:
        act()
    except Exception as raised:  # whatever a peer raises is its result
        error = f"{type(raised).__name__}: {' '.join(str(raised).split())[:300]}"
    errors: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(errors, error)
    reasons = [f"rank {rank}: {e}" for rank, e in enumerate(errors) if e]
    if reasons:
        failed[name] = reasons[0]


def _check(contestant: Contestant) -> list[float]:
    return [_mean(contestant.step(number)) for number in range(CHECKED_STEPS)]


def _mean(loss: torch.Tensor | None) -> float:
    known: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(known, None if loss is None else float(loss))
    return statistics.mean(k for k in known if k is not None)


def _take_turns(contestants: Mapping[str, Contestant], rounds: int) -> dict[str, Times]:
    times = {name: Times() for name in contestants}
    names = list(contestants)
    gc.collect()
    gc.disable()
    for number in range(rounds):
        # Every other round in reverse, so that nobody always runs after the same neighbour.
        for name in names if number % 2 == 0 else reversed(names):
            dist.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            contestants[name].step(CHECKED_STEPS + number)
            cpu = time.process_time() - cpu
            dist.barrier()
            times[name].wall.append(time.perf_counter() - wall)
            times[name].cpu.append(cpu)
        gc.collect()
    gc.enable()
    return times


def _summary(times: Times) -> dict[str, float]:
    cpu = torch.tensor(statistics.median(times.cpu), dtype=torch.float64)
    dist.all_reduce(cpu)
    return {"median": statistics.median(times.wall), "min": min(times.wall), "cpu": float(cpu)}


def _result(row: Row, losses: Mapping[str, list[float]], failed: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": row.name,
        "status": "measured",
        "ranks": row.ranks,
        "setting": vars(row.setting),
        "says": row.says,
        "loss": losses,
        "loss_tolerance": LOSS_TOLERANCE[row.setting.weights],
        "failed": dict(failed),
    }


def comparison(pair: Pair, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the comparison of a pair from a result with `loss`, `failed` and `seconds` by name. It is failed with a
    reason unless the losses agree."""
    base = {"trivium": pair.ours, "peer": pair.peer, "target": pair.target}
    for name in (pair.ours, pair.peer):
        if name in result["failed"]:
            return {**base, "status": "failed", "reason": f"{name}: {result['failed'][name]}"}
    ours, peer = result["seconds"][pair.ours], result["seconds"][pair.peer]
    deviation = max(
        abs(a - b) / abs(a) for a, b in zip(result["loss"][pair.ours], result["loss"][pair.peer], strict=True)
    )
    tolerance = result["loss_tolerance"]
    if not deviation <= tolerance:
        return {
            **base,
            "status": "failed",
            "reason": f"losses differ by {deviation:.1e}, more than {tolerance:.0e}: not the same computation",
            "loss_deviation": deviation,
        }
    ratio = peer["median"] / ours["median"]
    return {
        **base,
        "status": "measured",
        "loss_deviation": deviation,
        "ratio": ratio,
        "ratio_of_minima": peer["min"] / ours["min"],
        "ratio_of_cpu": peer["cpu"] / ours["cpu"],
        "reached": None if pair.target is None else ratio >= pair.target,
    }


def read_result(path: Path) -> dict[str, Any] | None:
    """What rank 0 left, if it did."""
    with contextlib.suppress(OSError, json.JSONDecodeError):
        result: dict[str, Any] = json.loads(path.read_text())
        return result
    return None
