"""Collect what the runs of a suite recorded into one tree, the content of suite.json."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.checkpoint.format import step_name
from trivium.errors import DataError
from trivium.plan.parameters import count
from trivium.plan.plan import Plan
from trivium.training.config import TrainingConfig
from trivium.training.metrics import METRICS, records
from trivium.untrusted import read_json

FORMAT = "trivium-suite-1"
PROBES = "probes"  # in the run of a size
MAX_POINTS = 2000  # points of a curve; a browser cannot show more


@dataclass(frozen=True)
class Member:
    """A size of the suite. run: its run directory."""

    size: str
    run: Path
    plan: Plan
    training: TrainingConfig


def probe_file(run: Path, step: int) -> Path:
    """Return where the answers of a checkpoint are."""
    return run / PROBES / f"{step_name(step)}.json"


def collect(family: str, members: Sequence[Member], steps: Sequence[int]) -> dict[str, Any]:
    """Return the tree. steps: those whose checkpoints are examined. What was not reached yet is absent."""
    sizes, hashes = [], {}
    for member in members:
        size, hashes[member.size] = _size(member, steps)
        sizes.append(size)
    return {
        "format": FORMAT,
        "family": family,
        "checkpoints": list(steps),
        "order": same_batches(hashes),
        "sizes": sizes,
    }


def same_batches(hashes: Mapping[str, Mapping[int, str]]) -> dict[str, Any]:
    """Compare the batches of all sizes by their logged hashes.

    hashes: of each size, by step. Returns {compared, differ}: the number of steps that at least two sizes have done,
    and those in which the hashes differ.
    """
    by_step: dict[int, set[str]] = {}
    done: dict[int, int] = {}
    for of_size in hashes.values():
        for step, value in of_size.items():
            by_step.setdefault(step, set()).add(value)
            done[step] = done.get(step, 0) + 1
    compared = sorted(step for step, sizes in done.items() if sizes > 1)
    return {"compared": len(compared), "differ": [step for step in compared if len(by_step[step]) > 1]}


def _size(member: Member, steps: Sequence[int]) -> tuple[dict[str, Any], dict[int, str]]:
    curve: list[dict[str, Any]] = []
    validation: list[dict[str, Any]] = []
    hashes: dict[int, str] = {}
    for record in records(member.run / "training" / METRICS):
        point = {"step": record.get("step"), "tokens": record.get("tokens")}
        if "validation_loss" in record:
            validation.append({**point, "loss": record["validation_loss"]})
        if "batch_hash" in record and "loss" in record:
            curve.append({**point, "loss": record["loss"], "lr": record.get("lr")})
            hashes[int(record["step"])] = record["batch_hash"]
    model = member.plan.model
    return {
        "size": member.size,
        "parameters": count(model),
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "lr": member.training.lr,
        "steps": member.training.steps,
        "curve": _thinned(curve),
        "validation": _thinned(validation),
        "probes": [probe for step in steps if (probe := _probe(probe_file(member.run, step))) is not None],
    }, hashes


def _thinned(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return at most MAX_POINTS points at equal distances, the last among them."""
    every = -(-len(points) // MAX_POINTS) or 1
    return points[::-1][::every][::-1]


def _probe(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        found = read_json(path)
        return {name: value for name, value in found.items() if name != "key"}
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(
            f"{path} is damaged ({error}); delete it, and run `trivium suite` again to measure it"
        ) from None
