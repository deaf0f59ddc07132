"""Predicted and measured seconds of a step, and of its parts as far as the trace contains them."""

from statistics import median
from typing import Any, NamedTuple

from trivium.report.parts import Table
from trivium.units import format_seconds

Tree = dict[str, Any]

LIMITS = (
    " Parts of a step are those of the pipeline rank that works longest, in one step that was traced, its kept tensors "
    "counted meanwhile; where ranks share cores a part also holds the time in which others ran."
)


class Part(NamedTuple):
    """A part of a step: its label, the corresponding parts of the estimate, and the measured phase."""

    name: str
    predicted: tuple[str, ...]
    measured: str


PARTS = (
    Part(
        "stages, with tensor and context collectives",
        ("compute", "tensor_collectives", "context_collectives"),
        "stages",
    ),
    Part("waiting for other stages", ("bubble", "pipeline_transfers"), "waiting"),
    Part("reducing gradients and updating", ("data_collectives", "optimizer"), "update"),
    Part("reading the batch, agreeing on the loss", (), "other"),
)


def priced(report: Tree) -> Tree:
    """Return the plan's predictions, or {} if the training used another plan."""
    return {} if "plan" in report["outdated"] else report["plan"] or {}


def step_time(report: Tree) -> list[Table]:
    """Return the table of predicted and measured times, or [] if none was measured."""
    estimate = priced(report).get("estimate") or {}
    training = report["training"]
    last_part = [s for s in training["curves"]["steps"] if s["step"] > training["resumed_from"]]
    predicted, measured = estimate.get("seconds"), median_seconds(last_part)
    if measured is None:
        return []
    rows = [_row("step of the full batch, median", predicted, measured)]
    longest = busiest(report["training"]["phases"])
    parts = estimate.get("parts") or {}
    for part in PARTS if longest else ():
        asked = [parts[name] for name in part.predicted if name in parts]
        rows.append(_row(part.name, sum(asked) if asked else None, longest[part.measured]))
    return [Table(("part of a step", "predicted", "measured", "measured / predicted"), rows)]


def median_seconds(steps: list[Tree]) -> float | None:
    """Return the median seconds of steps with the largest batch; None if none was timed."""
    largest = max((s.get("sequences") or 0 for s in steps), default=0)
    found = [s["seconds"] for s in steps if s.get("seconds") and (s.get("sequences") or 0) == largest]
    return median(found) if found else None


def busiest(phases: list[Tree]) -> dict[str, float]:
    """Return the phases of the rank whose stages took longest; {} if no rank has all phases."""
    found = [p["seconds"] for p in phases if all(part.measured in p["seconds"] for part in PARTS)]
    return max(found, key=lambda seconds: seconds["stages"], default={})


def _row(name: str, predicted: float | None, measured: float) -> tuple[str, str, str, str]:
    told = "none" if predicted is None else format_seconds(predicted)
    ratio = f"{measured / predicted:.2f}" if predicted else "–"
    return (name, told, format_seconds(measured), ratio)
