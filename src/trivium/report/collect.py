"""The results of a run as one tree: what report.json holds."""

import math
from pathlib import Path
from typing import Any

from trivium.errors import DataError
from trivium.jsonlines import parse_line, read_lines, split_lines
from trivium.provenance import STAMP
from trivium.report.interruptions import interruptions, resumed_from
from trivium.report.outdated import newest_checkpoint, of_another_plan, older, outdated
from trivium.report.stations import (
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
from trivium.untrusted import open_regular, parse_json, read_bytes

# Station directories, in the order of the path, and the command that fills each.
STATIONS = (
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
# Curves longer than this are thinned: a browser draws no more points than it has columns.
MOST_POINTS = 2000
# What report.json holds; the page shows the plan besides, which plan/plan.json has.
KEYS = (
    "funnel",
    "planted",
    "honest",
    "corpus",
    "extraction",
    "training",
    "resume_proof",
    "evaluation",
    "tasks",
    "incontext",
    "bias",
    "bias_series",
    "samples",
    "provenance",
    "seconds",
)
# What the page shows only where it is there: the pages with gold text are the user's own.
OPTIONAL = ("corpus", "extraction", "tasks", "incontext", "bias_series")


def collect(run: Path) -> dict[str, Any]:
    """Everything the stations left in `run`; a station that has not run gives None and is named under `missing`.

    outdated: stations whose results are of another input than the one that is there now, and that input. older:
    results of another checkpoint than the newest, the step they are of and its step.

    Raises DataError, with the file and the remedy, where a file is there but damaged.
    """
    if not run.is_dir():
        raise DataError(f"{run} is not a run directory: it does not exist; give the --out of `trivium demo`")
    training = _training(run)
    tree: dict[str, Any] = {
        "funnel": _station(run, "curated/funnel.json", list[FunnelStep]),
        "planted": _station(run, "curated/planted.json", dict[str, Planted]),
        "honest": _station(run, "curated/honest.json", Honest),
        "corpus": _station(run, "statistics.json", CorpusStatistics),
        "extraction": _station(run, "extraction.json", dict[str, Extraction]),
        "training": training,
        "resume_proof": _station(run, "resume/proof.json", Proof),
        "evaluation": _station(run, "evaluation/results.json", Evaluation),
        "tasks": _station(run, "tasks/results.json", Tasks),
        "incontext": _station(run, "incontext/results.json", Incontext),
        "bias": _station(run, "bias/results.json", Bias),
        "bias_series": _station(run, "bias_series.json", BiasSeries),
        "samples": _samples(run),
        "provenance": _provenance(run),
        "seconds": _station(run, "seconds.json", dict[str, float]),
        "plan": _station(run, "plan/plan.json", Plan),
        "memory": training["memory"] if training and training["memory"] else None,
    }
    there = [name for name, _ in STATIONS if (run / name).is_dir()]
    stamps = tree["provenance"] or {}
    return {
        **tree,
        "outdated": outdated([name for name, _ in STATIONS], stamps, there) | _priced_otherwise(run, stamps),
        "older": older(_models(tree), newest_checkpoint(run)),
        "missing": sorted(name for name, value in tree.items() if value is None),
    }


def results(report: dict[str, Any]) -> dict[str, Any]:
    """The part of a collected tree that report.json holds; null for a station that has not run."""
    return {key: report[key] for key in KEYS} | {key: report[key] or None for key in ("outdated", "older")}


def _priced_otherwise(run: Path, stamps: dict[str, Any]) -> dict[str, str]:
    """The plan, where the training ran under another: what was predicted of the one is not measured in the other."""
    begun = _station(run, "training/run.json", Begun)
    priced = stamps.get("plan", {}).get("config")
    if (
        begun is None
        or not isinstance(priced, dict)
        or not of_another_plan(priced.get("plan"), begun["plan"])
    ):
        return {}
    return {"plan": "training"}


def _models(tree: dict[str, Any]) -> dict[str, Any]:
    """What results say of the checkpoint they are of; of several of one training, the last."""
    found = {name: (tree[name] or {}).get("model") for name in ("evaluation", "tasks", "bias")}
    studied = (tree["incontext"] or {}).get("models") or [{}]
    moments = (tree["bias_series"] or {}).get("checkpoints") or [{}]
    return {**found, "incontext": studied[-1].get("model"), "bias_series": moments[-1]}


def _training(run: Path) -> dict[str, Any] | None:
    """The summary, or of a training that goes on what is known so far; with the curves and the executed timeline."""
    metrics = _lines(run / "training" / "metrics.jsonl", Metric)
    finished: dict[str, Any] | None = _station(run, "training/summary.json", Summary)
    done = max((m["step"] for m in metrics), default=0)
    goes_on = finished is None or done > (finished["steps"] or done)
    summary = (_so_far(run, metrics, done) if goes_on else None) or finished
    if summary is None:
        return None
    events = _whole_lines(run / "training" / "events.jsonl")
    return {
        **summary,
        "resumed_from": resumed_from(events),
        "curves": {
            "steps": _thinned([m for m in metrics if m["loss"] is not None]),
            "validation": _thinned([m for m in metrics if m["validation_loss"] is not None]),
        },
        "interruptions": interruptions(events),
        "asked": _lines(run / "training" / "tasks.jsonl", AskedMoment),
        "timeline": _station(run, "training/timeline.json", list[Span]),
    }


def _so_far(run: Path, metrics: list[dict[str, Any]], done: int) -> dict[str, Any] | None:
    """What is known of a training that has not ended, in the form of a summary; None where none has begun."""
    begun = _station(run, "training/run.json", Begun)
    if begun is None or not metrics:
        return None
    validated = [m["validation_loss"] for m in metrics if m["validation_loss"] is not None]
    known = {
        "finished": False,
        "steps": done,
        "steps_planned": begun["training"].get("steps"),
        "tokens": max((int(m["tokens"]) for m in metrics if m["tokens"] is not None), default=None),
        "validation_loss": validated[-1] if validated else None,
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
    """The stamp of every station that has one."""
    stamps = {
        name: _form(run / name / STAMP, stamp, dict[str, Any])
        for name, _ in STATIONS
        if (stamp := _read(run / name / STAMP)) is not None
    }
    return stamps or None


def _station(run: Path, name: str, kind: Any) -> Any:
    value = _read(run / name)
    return None if value is None else _form(run / name, value, kind)


def _read(path: Path) -> Any:
    """The file's plain data, None where it does not exist."""
    if not path.exists():
        return None
    try:
        return parse_json(read_bytes(path), parse_constant=_not_finite, parse_float=_finite)
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from None


def _lines(path: Path, kind: Any) -> list[dict[str, Any]]:
    """The records of a file of JSON lines; a last line cut off by a killed process is not one yet."""
    if not path.exists():
        return []
    try:
        with open_regular(path) as file:
            lines = list(read_lines(file))
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from None
    records = []
    for line in lines:
        try:
            records.append(parse_line(line, parse_constant=_not_finite, parse_float=_finite))
        except ValueError as error:
            if line is not lines[-1]:
                raise _damaged(path, error) from None
    found: list[dict[str, Any]] = _form(path, records, list[kind])
    return found


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file to which processes append until they die; what is no record is passed over."""
    records = []
    for line in split_lines(read_bytes(path)) if path.is_file() else ():
        try:
            records.append(parse_json(line, parse_constant=_not_finite, parse_float=_finite))
        except ValueError:
            continue
    return [record for record in records if isinstance(record, dict)]


def _form(path: Path, value: Any, kind: Any) -> Any:
    try:
        return checked(kind, value)
    except ValueError as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> DataError:
    verb = dict(STATIONS).get(path.parent.name)
    remedy = f"run `trivium {verb}` again" if verb else "remove the file and run the stages again"
    return DataError(f"{path} is damaged ({error}); {remedy}")


def _thinned(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every k-th record and the last."""
    every = math.ceil(len(records) / MOST_POINTS) or 1
    return [r for i, r in enumerate(records) if i % every == 0 or i == len(records) - 1]


def _not_finite(name: str) -> None:
    """NaN and infinities are not JSON; they become null."""


def _finite(text: str) -> float | None:
    """A number too large for a float is as good as an infinity."""
    value = float(text)
    return value if math.isfinite(value) else None
