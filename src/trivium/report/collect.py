"""Collect the results of a run into one tree, the content of report.json."""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from trivium.errors import DataError
from trivium.finite import finite
from trivium.jsonlines import read_values
from trivium.provenance import STAMP
from trivium.report.curves import Steps
from trivium.report.outdated import is_of, newest_checkpoint, of_another_plan, older, outdated
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
BLOCK_VALUES = 64  # values of JSON lines that are checked together
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
    training, newest = _training(run), newest_checkpoint(run)
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
        "older": older(_models(tree, newest), newest),
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


def _models(tree: dict[str, Any], newest: dict[str, Any] | None) -> dict[str, Any]:
    """Return what results say about their checkpoint; for several models, about the newest checkpoint of the run if it
    is among them, else about the last that was trained."""
    found = {name: (tree[name] or {}).get("model") for name in ("evaluation", "tasks", "bias")}
    studied = [m.get("model") or {} for m in (tree["incontext"] or {}).get("models", [])] or [{}]
    own = [m for m in studied if newest and is_of(m, newest)] or [m for m in studied if m.get("tokens")] or studied
    moments = (tree["bias_series"] or {}).get("checkpoints") or [{}]
    return {**found, "incontext": own[-1], "bias_series": moments[-1]}


def _training(run: Path) -> dict[str, Any] | None:
    """Return the summary, or that of an unfinished training, with curves, events and the executed timeline."""
    metrics = _metrics(run / "training" / "metrics.jsonl")
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


def _metrics(path: Path) -> Steps:
    """Return the aggregates of all metrics."""
    steps = Steps()
    with _reading(path):
        for number, block in _blocks(path):
            _add_metrics(steps, block, number)
    return steps


def _add_metrics(steps: Steps, block: list[Any], number: int) -> None:
    """Add the metrics of a block. Plain steps are added together, without a schema, which takes ten times as long as
    reading them; a block that has others is halved. number: the index of the first metric in the file."""
    if steps.add_plain(block):
        return
    if half := len(block) // 2:
        _add_metrics(steps, block[:half], number)
        _add_metrics(steps, block[half:], number + half)
    else:
        steps.add(checked(Metric, finite(block[0]), number))


def _method(begun: Any) -> str:
    """Return the method of the objective, or that of plain text if no training has begun."""
    objective = begun["training"].get("objective") if begun else None
    return str(objective.get("method")) if isinstance(objective, dict) else OF_TEXT[0]


def _so_far(run: Path, begun: Any, metrics: Steps) -> dict[str, Any] | None:
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


def _lines(path: Path, kind: Any) -> Iterator[dict[str, Any]]:
    """Yield the records of a JSON-lines file. An incomplete last line, as a killed process leaves it, is ignored."""
    with _reading(path):
        for number, block in _blocks(path):
            for n, value in enumerate(block, number):
                yield checked(kind, finite(value), n)


def _blocks(path: Path) -> Iterator[tuple[int, list[Any]]]:
    """Yield lists of the values of consecutive lines, each with the number of values before it. Raises the ValueError
    of a line that cannot be parsed, unless it is the last one."""
    if not path.exists():
        return
    with open_regular(path) as file:
        values, number = read_values(file), 0
        while block := list(islice(values, BLOCK_VALUES)):
            torn = next((n for n, value in enumerate(block) if isinstance(value, ValueError)), None)
            if torn is None:
                yield number, block
            elif torn < len(block) - 1 or next(values, None) is not None:
                raise block[torn]
            elif torn:
                yield number, block[:-1]
            number += len(block)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise DataError, with file and remedy, if the file cannot be read or has an invalid record."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from None


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file that processes append to; lines that are no record are skipped."""
    if not path.is_file():
        return
    with _reading(path), open_regular(path) as file:
        for record in read_values(file):
            if isinstance(record, dict):
                yield finite(record)


def _form(path: Path, value: Any, kind: Any) -> Any:
    try:
        return checked(kind, value)
    except ValueError as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> DataError:
    """Return the error of a file. A training is not repeated for what it tells of itself."""
    verb = dict(STAGES).get(path.parent.name)
    remedy = "remove the file, or the record, and the report is made again without it"
    if verb is not None and verb != "train":
        remedy = f"`trivium {verb} --redo --out {shlex.quote(str(path.parent.parent))}` writes it again"
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
        case "rank failed" | "rank killed":
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
