"""Collect the results of a run into one tree, the content of report.json."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from trivium.errors import DataError
from trivium.finite import finite
from trivium.jsonlines import read_values
from trivium.provenance import STAMP
from trivium.report.outdated import newest_checkpoint, of_another_plan, older, outdated
from trivium.report.schemas import (
    Answers,
    AskedMoment,
    Begun,
    Bias,
    BiasSeries,
    CorpusStatistics,
    Evaluation,
    Extraction,
    FunnelStep,
    Honest,
    Incontext,
    Metric,
    Plan,
    Planted,
    Proof,
    Sample,
    Span,
    Summary,
    Tasks,
    checked,
)
from trivium.report.words import layout_text
from trivium.untrusted import open_regular, parse_json, read_bytes

# Directories of the stages in their order, and the command that fills each.
STAGES = (
    ("doctor", "doctor"),
    ("harvest", "corpus harvest"),
    ("curated", "corpus curate"),
    ("tokens", "tokenize"),
    ("plan", "plan"),
    ("training", "train"),
    ("resume", "prove"),
    ("evaluation", "evaluate"),
    ("bias", "bias"),
    ("generate", "generate"),
)
# Longer curves are thinned, because a browser cannot show more points than it has pixel columns.
MAX_CURVE_POINTS = 2000
# The content of report.json. The page also shows the plan, which is in plan/plan.json.
KEYS = (
    "funnel",
    "planted",
    "honest",
    "corpus",
    "extraction",
    "training",
    "resume_proof",
    "evaluation",
    "answers",
    "tasks",
    "incontext",
    "bias",
    "bias_series",
    "samples",
    "provenance",
    "seconds",
)
OF_TEXT = ("next_token", "distill")  # methods of an objective whose validation loss is nats per token
# The page omits these sections if there are no results.
OPTIONAL = ("corpus", "extraction", "experts", "answers", "tasks", "incontext", "bias_series")


def collect(run: Path) -> dict[str, Any]:
    """Collect the results of all stages in `run`. A stage without results is None and listed under `missing`.

    outdated: {stage: input that has changed since}. older: {section: steps} of results that are not of the newest
    checkpoint. Raises DataError, with file and remedy, if a file is damaged.
    """
    if not run.is_dir():
        raise DataError(f"{run} is not a run directory: it does not exist; give the --out of `trivium demo`")
    training = _training(run)
    tree: dict[str, Any] = {
        "funnel": _stage(run, "curated/funnel.json", list[FunnelStep]),
        "planted": _stage(run, "curated/planted.json", dict[str, Planted]),
        "honest": _stage(run, "curated/honest.json", Honest),
        "corpus": _stage(run, "statistics.json", CorpusStatistics),
        "extraction": _stage(run, "extraction.json", dict[str, Extraction]),
        "training": training,
        "resume_proof": _stage(run, "resume/proof.json", Proof),
        "evaluation": _stage(run, "evaluation/results.json", Evaluation),
        "answers": _stage(run, "answers/results.json", dict[str, Answers]),
        "tasks": _stage(run, "tasks/results.json", Tasks),
        "incontext": _stage(run, "incontext/results.json", Incontext),
        "bias": _stage(run, "bias/results.json", Bias),
        "bias_series": _stage(run, "bias_series.json", BiasSeries),
        "samples": _samples(run),
        "provenance": _provenance(run),
        "seconds": _stage(run, "seconds.json", dict[str, float]),
        "plan": _stage(run, "plan/plan.json", Plan),
        "memory": training["memory"] if training and training["memory"] else None,
    }
    there = [name for name, _ in STAGES if (run / name).is_dir()]
    stamps = tree["provenance"] or {}
    return {
        **tree,
        "outdated": outdated([name for name, _ in STAGES], stamps, there) | _priced_otherwise(run, stamps),
        "older": older(_models(tree), newest_checkpoint(run)),
        "missing": sorted(name for name, value in tree.items() if value is None),
    }


def results(report: dict[str, Any]) -> dict[str, Any]:
    """Return the content of report.json; a stage without results is null."""
    return {key: report[key] for key in KEYS} | {key: report[key] or None for key in ("outdated", "older")}


def _priced_otherwise(run: Path, stamps: dict[str, Any]) -> dict[str, str]:
    """Return the plan as outdated if the training used another one: its predictions do not apply to these
    measurements."""
    begun = _stage(run, "training/run.json", Begun)
    priced = stamps.get("plan", {}).get("config")
    if begun is None or not isinstance(priced, dict) or not of_another_plan(priced.get("plan"), begun["plan"]):
        return {}
    return {"plan": "training"}


def _models(tree: dict[str, Any]) -> dict[str, Any]:
    """Return what results say about their checkpoint; for several checkpoints of one training, about the last."""
    found = {name: (tree[name] or {}).get("model") for name in ("evaluation", "tasks", "bias")}
    studied = (tree["incontext"] or {}).get("models") or [{}]
    moments = (tree["bias_series"] or {}).get("checkpoints") or [{}]
    return {**found, "incontext": studied[-1].get("model"), "bias_series": moments[-1]}


class Curve:
    """A series thinned to at most MAX_CURVE_POINTS + 1 evenly spaced records, the last one among them.

    Each record of a thinned series has the mean, least and greatest loss of the records that it stands for, so that
    no spike is lost.
    """

    def __init__(self) -> None:
        self._buckets: list[_Bucket] = []
        self._last: dict[str, Any] | None = None
        self._seen, self._every = 0, 1

    def add(self, record: dict[str, Any], loss: float = 0.0) -> None:
        """Add the next record. A full curve joins its buckets in pairs."""
        if self._seen % self._every:
            self._buckets[-1].add(1, loss, loss, loss)
        else:
            self._buckets.append(_Bucket(record, 1, loss, loss, loss))
            if len(self._buckets) > MAX_CURVE_POINTS:
                for bucket, other in zip(self._buckets[::2], self._buckets[1::2], strict=False):
                    bucket.add(other.count, other.total, other.least, other.greatest)
                self._buckets, self._every = self._buckets[::2], 2 * self._every
        self._last = record
        self._seen += 1

    def points(self) -> list[dict[str, Any]]:
        """Return the kept records in order."""
        if self._every == 1:
            return [bucket.record for bucket in self._buckets]
        last = replace(self._buckets[-1], record=cast(dict[str, Any], self._last))
        kept = self._buckets if last.record is self._buckets[-1].record else [*self._buckets, last]
        return [
            {**b.record, "loss_mean": b.total / b.count, "loss_least": b.least, "loss_greatest": b.greatest}
            for b in kept
        ]


@dataclass(slots=True)
class _Bucket:
    """Consecutive records: the first of them, and aggregates of their losses."""

    record: dict[str, Any]
    count: int
    total: float
    least: float
    greatest: float

    def add(self, count: int, total: float, least: float, greatest: float) -> None:
        self.count += count
        self.total += total
        if least < self.least:
            self.least = least
        if greatest > self.greatest:
            self.greatest = greatest


@dataclass
class _Steps:
    """Aggregates of all metrics, in memory that does not grow with their number."""

    done: int = 0
    tokens: int | None = None
    seconds: float = 0.0  # seconds of all steps, without validation and saves
    joules: float = 0.0  # energy of the steps in which it was measured
    validation_loss: float | None = None  # the newest one
    losses: Curve = field(default_factory=Curve)
    validation: Curve = field(default_factory=Curve)
    loads: Curve = field(default_factory=Curve)

    def add(self, metric: dict[str, Any]) -> None:
        layers = metric.pop("experts", None)
        if layers:
            told = {n: {name: load[name] for name in ("largest", "entropy", "dropped")} for n, load in layers.items()}
            self.loads.add({"step": metric["step"], "tokens": metric["tokens"], "layers": told})
        step, tokens, seconds, loss = metric["step"], metric["tokens"], metric["seconds"], metric["loss"]
        if step > self.done:
            self.done = step
        if tokens is not None and (self.tokens is None or tokens > self.tokens):
            self.tokens = int(tokens)
        if seconds is not None:
            self.seconds += seconds
        self.joules += metric.pop("joules", None) or 0.0
        if loss is not None:
            self.losses.add(metric, loss)
        if metric.get("validation_loss") is not None:
            self.validation_loss = metric["validation_loss"]
            self.validation.add(metric, metric["validation_loss"])


def _is_plain_step(metric: Any) -> bool:
    """Whether a metric has every figure of a step as a finite number. Such a record needs no schema, which would take
    ten times as long as reading it; a sum finds missing figures, other types and NaN at once."""
    try:
        return not metric.keys() & {"validation_loss", "experts"} and math.isfinite(
            metric["step"] + metric["tokens"] + metric["loss"] + metric["lr"] + metric["sequences"] + metric["seconds"]
        )
    except (AttributeError, KeyError, TypeError, OverflowError):
        return False


def _training(run: Path) -> dict[str, Any] | None:
    """Return the summary, or that of an unfinished training, with curves, events and the executed timeline."""
    metrics = _Steps()
    for metric in _lines(run / "training" / "metrics.jsonl", Metric, needs_no_check=_is_plain_step):
        metrics.add(metric)
    finished: dict[str, Any] | None = _stage(run, "training/summary.json", Summary)
    goes_on = finished is None or metrics.done > (finished["steps"] or metrics.done)
    begun = _stage(run, "training/run.json", Begun)
    summary = (_so_far(run, begun, metrics) if goes_on else None) or finished
    if summary is None:
        return None
    events = run / "training" / "events.jsonl"
    return {
        **summary,
        "plan": begun and begun["plan"],
        "of_pairs": _method(begun) not in OF_TEXT,
        "step_seconds": metrics.seconds or None,
        "step_joules": metrics.joules or None,
        "resumed_from": resumed_from(_whole_lines(events)),
        "layouts": layouts_of(_whole_lines(events), summary["layout"]),
        "curves": {"steps": metrics.losses.points(), "validation": metrics.validation.points()},
        "loads": metrics.loads.points(),
        "interruptions": interruptions(_whole_lines(events)),
        "asked": list(_lines(run / "training" / "tasks.jsonl", AskedMoment)),
        "timeline": _stage(run, "training/timeline.json", list[Span]),
    }


def _method(begun: Any) -> str:
    """Return the method of the objective. Trainings of earlier versions do not name it."""
    objective = begun["training"].get("objective") if begun else None
    return str(objective.get("method")) if isinstance(objective, dict) else OF_TEXT[0]


def _so_far(run: Path, begun: Any, metrics: _Steps) -> dict[str, Any] | None:
    """Summarise a training that has not ended; None if none has begun. begun: the content of run.json."""
    if begun is None or not (metrics.losses.points() or metrics.validation.points()):
        return None
    known = {
        "finished": False,
        "steps": metrics.done,
        "steps_planned": begun["training"].get("steps"),
        "tokens": metrics.tokens,
        "validation_loss": metrics.validation_loss,
        "layout": begun["plan"].get("layout", {}),
        "schedule": begun["plan"].get("schedule"),
    }
    found: dict[str, Any] = _form(run / "training" / "run.json", known, Summary)
    return found


def _samples(run: Path) -> list[dict[str, Any]] | None:
    path = run / "generate" / "samples.json"
    value = _read(path)
    if isinstance(value, dict) and "samples" in value:
        value = value["samples"]
    return None if value is None else _form(path, value, list[Sample])


def _provenance(run: Path) -> dict[str, Any] | None:
    """Return the stamps of all stages that have one."""
    stamps = {
        name: _form(run / name / STAMP, stamp, dict[str, Any])
        for name, _ in STAGES
        if (stamp := _read(run / name / STAMP)) is not None
    }
    return stamps or None


def _stage(run: Path, name: str, kind: Any) -> Any:
    value = _read(run / name)
    return None if value is None else _form(run / name, value, kind)


def _read(path: Path) -> Any:
    """Return the content of a JSON file, or None if it does not exist."""
    if not path.exists():
        return None
    try:
        return finite(parse_json(read_bytes(path)))
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from None


def _lines(
    path: Path, kind: Any, *, needs_no_check: Callable[[Any], bool] = lambda _: False
) -> Iterator[dict[str, Any]]:
    """Yield the records of a JSON-lines file. An incomplete last line, as a killed process leaves it, is ignored.

    needs_no_check: returns whether a value is valid as it is, without defaults to be filled in.
    """
    if not path.exists():
        return
    torn: ValueError | None = None  # error of the previous line: only the last line may be incomplete
    try:
        with open_regular(path) as file:
            for number, value in enumerate(read_values(file)):
                if torn is not None:
                    raise torn
                if isinstance(value, ValueError):
                    torn = value
                else:
                    yield value if needs_no_check(value) else checked(kind, finite(value), number)
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from None


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file that processes append to; lines that are no record are skipped."""
    if not path.is_file():
        return
    try:
        with open_regular(path) as file:
            for record in read_values(file):
                if isinstance(record, dict):
                    yield finite(record)
    except (OSError, ValueError) as error:  # an error of the file itself, or a line that is too long
        raise _damaged(path, error) from None


def _form(path: Path, value: Any, kind: Any) -> Any:
    try:
        return checked(kind, value)
    except ValueError as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> DataError:
    verb = dict(STAGES).get(path.parent.name)
    remedy = f"run `trivium {verb}` again" if verb else "remove the file and run the stages again"
    return DataError(f"{path} is damaged ({error}); {remedy}")


MAX_CAUSE_CHARACTERS = 200  # a cause may be a full traceback


def interruptions(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return {step, what} of every event that interrupted the training or changed its layout, in order."""
    found = []
    for event in events:
        text = _text(event)
        if text is not None:
            found.append({"step": event.get("step"), "what": text})
    return found


def resumed_from(events: Iterable[Mapping[str, Any]]) -> int:
    """Return the step after which the last part of the training began. Only this part surely has its layout and
    hosts."""
    after = 0
    for event in events:
        if event.get("event") == "resumed" and isinstance(event.get("step"), int):
            after = event["step"]
    return after


def layouts_of(events: Iterable[Mapping[str, Any]], last: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return {after, layout, predicted_seconds} of every part of a training that had a layout of its own: the step
    after which it began, and the predicted seconds of a step, or None. last: the layout at the end."""
    found: list[dict[str, Any]] = []

    def add(after: int, layout: Any, seconds: Any = None) -> None:
        if isinstance(layout, dict) and not (found and layout_text(found[-1]["layout"]) == layout_text(layout)):
            known = seconds if isinstance(seconds, int | float) else None
            found.append({"after": after, "layout": layout, "predicted_seconds": known})

    for event in events:
        step = event.get("step")
        if event.get("event") != "resumed" or not isinstance(step, int):
            continue
        found = [part for part in found if part["after"] < step]  # the steps after it are done again
        if not found and step:
            add(0, event.get("layout_before"))
        add(step if found else 0, event.get("layout"), event.get("predicted_seconds"))
    return found or [{"after": 0, "layout": last, "predicted_seconds": None}]


def _text(event: Mapping[str, Any]) -> str | None:
    cause = " ".join(str(event.get("cause", "unknown")).split())[:MAX_CAUSE_CHARACTERS]
    match event.get("event"):
        case "rank failed":
            return f"failed: {cause}"
        case "resumed":
            layout = event.get("layout")
            return f"resumed from the checkpoint, {layout_text(layout if isinstance(layout, dict) else {})}"
        case "preempted":
            return "preempted while starting" if event.get("in") == "starting" else "preempted; saved"
        case "save failed":
            return f"checkpoint not saved: {cause}"
        case "spike":
            return f"spike: {cause}; policy {event.get('policy', 'unknown')}"
    return None
