"""Rows to judge, and scores of people and judges, in files as they are published.

The formats: JSON lines; tables of WMT's MQM annotations (`mqm_*.tsv`) and their averages (`*.avg_seg_scores.tsv`) of
google/wmt-mqm-human-evaluation; SummEval's `model_annotations.aligned.jsonl`, and the JSON of G-Eval, with or without
its recorded answers.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from trivium.errors import DataError
from trivium.evaluation.judges.parse import number_in
from trivium.jsonlines import read_rows, text_lines
from trivium.units import shown
from trivium.untrusted import read_json, read_text

ASPECTS = ("coherence", "consistency", "fluency", "relevance")  # of SummEval
HIGHEST = {"coherence": 5, "consistency": 5, "fluency": 3, "relevance": 5}  # of G-Eval's questions
MAX_FILE_BYTES = 1 << 30
REMEDY = "correct the file, or give another one"
_MARK = re.compile(r"</?v>")  # around the span of an error
# The columns by which the tables of different years number segments, if possible over all documents.
_SEGMENT = ("seg_id", "globalSegId", "doc_id", "docSegId")
_MQM = ("system", "rater", "category", "severity")
_WEIGHTS = {"major": 5.0, "minor": 1.0, "neutral": 0.0, "no-error": 0.0, "": 0.0}

Key = tuple[str, str]  # system, segment


class Item(NamedTuple):
    """A text to judge. reference and languages are empty if they are unknown."""

    system: str
    segment: str
    source: str
    output: str
    reference: str = ""
    source_language: str = ""
    target_language: str = ""

    @property
    def key(self) -> Key:
        return self.system, self.segment


@dataclass(frozen=True)
class Ratings:
    """Scores by item. An item has several answers if a judge was asked several times; None is an answer that could not
    be parsed, or a missing annotation.

    worst: the lowest score of the scale, None if it is unknown. tokens: mean tokens that an answer took.
    """

    name: str
    scores: Mapping[Key, tuple[float | None, ...]]
    worst: float | None = None
    tokens: float | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


def read_items(path: Path) -> list[Item]:
    """Read texts to judge. Raises DataError, with file and line, for a row that has no source, output or system, or an
    item that occurs twice with different texts."""
    items: dict[Key, Item] = {}
    for item, where in _items(path):
        before = items.setdefault(item.key, item)
        if _words(before) != _words(item):
            raise DataError(
                f"{where}: system {shown(item.system)!r} has another text for segment {shown(item.segment)!r} than "
                f"before; give each segment its own id"
            )
    if not items:
        raise DataError(f"{path} contains no rows to judge; {REMEDY}")
    return list(items.values())


def _words(item: Item) -> list[list[str]]:
    """Return the texts of an item without differences of white space, which tables have around marked spans."""
    return [text.split() for text in item]


def read_ratings(path: Path, aspect: str | None = None) -> Ratings:
    """Read human scores. aspect: which of several scores of an item to use. Raises DataError for other contents."""
    if path.suffix == ".tsv":
        header, rows = _table(path)
        scores = _mqm(path, header, rows) if set(_MQM) <= set(header) else _averages(path, header, rows)
    elif path.suffix == ".json":
        scores = {_summary_key(row, where): (_aspect(row, aspect, where),) for row, where in _summaries(path)}
    else:
        scores = _lines_of_scores(path, aspect)
    return _checked(path, Ratings(path.name, scores))


def read_answers_of_geval(path: Path, aspect: str | None) -> Ratings:
    """Read the recorded answers of G-Eval's `results/*.json`. The number of an answer must be at its beginning."""
    if aspect not in HIGHEST:
        raise DataError(f"{path} needs --aspect to say which question was answered; give one of {', '.join(ASPECTS)}")
    scores: dict[Key, tuple[float | None, ...]] = {}
    for row, where in _summaries(path):
        answers = row.get("all_responses")
        if not isinstance(answers, list) or not answers or not all(isinstance(a, str) for a in answers):
            raise DataError(f"{where}: all_responses must be a list of texts, not {shown(str(answers)[:60])}; {REMEDY}")
        scores[_summary_key(row, where)] = tuple(number_in(a, 1, HIGHEST[aspect], at_start=True).score for a in answers)
    return _checked(path, Ratings(path.stem, scores, worst=1.0))


def has_answers_of_geval(path: Path) -> bool:
    """Whether a file has the answers that G-Eval recorded, and not only human scores."""
    return path.suffix == ".json" and any("all_responses" in row for row, _ in _summaries(path))


def mean_of(scores: Sequence[float | None]) -> float | None:
    """Return the mean of the scores that are known, None if there are none."""
    known = [score for score in scores if score is not None]
    return sum(known) / len(known) if known else None


def score_of(value: Any, where: str) -> float | None:
    """Return a finite number, or None for null. Raises DataError for anything else."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"{where}: score {shown(str(value))} is no finite number; write null for a missing score")
    return float(value)


def _checked(path: Path, ratings: Ratings) -> Ratings:
    if not any(value is not None for values in ratings.scores.values() for value in values):
        raise DataError(f"{path} contains no score; {REMEDY}")
    return ratings


def _items(path: Path) -> Iterator[tuple[Item, str]]:
    if path.suffix == ".tsv":
        for row, where in _table(path)[1]:
            segment = _segment(row, where)
            source, target = (_MARK.sub("", _text(row, name, where)) for name in ("source", "target"))
            yield Item(_text(row, "system", where), segment, source, target), where
        return
    if path.suffix == ".json":
        for tree, where in _summaries(path):
            system, segment = _summary_key(tree, where)
            source, output = (_text(tree, name, where) for name in ("source", "system_output"))
            yield Item(system, segment, source, output, _optional(tree, "reference", where)), where
        return
    for value, number in read_rows(path, remedy=REMEDY):
        where = f"{path}, line {number}"
        line = _paired(_object(value, where))
        source, output, system = (_text(line, name, where) for name in ("source", "output", "system"))
        segment = str(line["segment"]) if line.get("segment") is not None else source
        more = [_optional(line, name, where) for name in ("reference", "source_language", "target_language")]
        yield Item(system, segment, source, output, *more), where


def _paired(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row of SummEval that has been paired with its article under the names of other rows."""
    if "decoded" not in row:
        return row
    references = row.get("references")
    first = references[0] if isinstance(references, list) and references else None
    names = {"source": "text", "output": "decoded", "system": "model_id", "segment": "id"}
    return {"reference": first, **{ours: row.get(theirs) for ours, theirs in names.items()}}


def _text(row: Mapping[str, Any], name: str, where: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or (name != "output" and not value):
        got = "missing" if value is None else shown(repr(value))
        raise DataError(f"{where}: {name} is {got}; it must be text; {REMEDY}")
    return value


def _optional(row: Mapping[str, Any], name: str, where: str) -> str:
    return "" if row.get(name) is None else _text(row, name, where)


def _object(row: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        raise DataError(f"{where}: {shown(str(row)[:60])} is no JSON object; {REMEDY}")
    return row


def _table(path: Path) -> tuple[list[str], Iterator[tuple[dict[str, str], str]]]:
    """Return the header and the rows of a table. Averages are published with blanks between some of the columns."""
    try:
        lines = text_lines(read_text(path, MAX_FILE_BYTES))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; {REMEDY}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start}); {REMEDY}") from None
    if not lines:
        raise DataError(f"{path} is empty; {REMEDY}")
    tabs = set(_MQM) <= set(lines[0].split("\t"))
    header = lines[0].split("\t") if tabs else lines[0].split()

    def rows() -> Iterator[tuple[dict[str, str], str]]:
        for number, line in enumerate(lines[1:], 2):
            cells, where = line.split("\t") if tabs else line.split(), f"{path}, line {number}"
            if not line.strip():
                continue
            if len(cells) < len(header) - tabs or len(cells) > len(header):  # the last, a comment, may be left out
                raise DataError(f"{where} has {len(cells)} columns, and the header {len(header)}; {REMEDY}")
            yield dict(zip(header, cells, strict=False)), where

    return header, rows()


def _segment(row: Mapping[str, str], where: str) -> str:
    name = next((n for n in _SEGMENT if row.get(n)), None)
    if name is None:
        raise DataError(f"{where} has none of the columns {', '.join(_SEGMENT)}; {REMEDY}")
    return row[name] if name in _SEGMENT[:2] else f"{row.get('doc', '')}/{row[name]}"


def _mqm(
    path: Path, header: list[str], rows: Iterator[tuple[dict[str, str], str]]
) -> dict[Key, tuple[float | None, ...]]:
    """Return minus the weight of all errors of a segment, averaged over raters (Freitag et al. 2021)."""
    errors: dict[Key, dict[str, float]] = {}
    for row, where in rows:
        by_rater = errors.setdefault((row["system"], _segment(row, where)), {})
        by_rater[row["rater"]] = by_rater.get(row["rater"], 0.0) + mqm_weight(row["category"], row["severity"], where)
    return {key: (-sum(by_rater.values()) / len(by_rater),) for key, by_rater in errors.items()}


def mqm_weight(category: str, severity: str, where: str) -> float:
    """Return the weight of an error of WMT's annotations. Raises DataError for a severity without a weight."""
    kind, severity = category.strip().lower(), severity.strip().lower().replace(" ", "-")
    if severity not in _WEIGHTS:
        raise DataError(
            f"{where}: severity {shown(severity)!r} has no weight, only major, minor and neutral have; convert the "
            f"file to JSON lines with a score"
        )
    if kind.startswith("non-translation") and severity == "major":
        return 25.0
    return 0.1 if kind == "fluency/punctuation" and severity == "minor" else _WEIGHTS[severity]


def _averages(
    path: Path, header: list[str], rows: Iterator[tuple[dict[str, str], str]]
) -> dict[Key, tuple[float | None, ...]]:
    column = next((n for n in header if n in ("score", "mqm_avg_score") or n.endswith("_avg_score")), None)
    if column is None or "system" not in header:
        names = shown(", ".join(header))
        raise DataError(f"{path} has the columns {names}; it needs system, seg_id and score; {REMEDY}")
    found: dict[Key, tuple[float | None, ...]] = {}
    for row, where in rows:
        text = row[column]
        try:
            value = None if text == "None" else float(text)
        except ValueError:
            raise DataError(f"{where}: score {shown(text)!r} is no number; write None for a missing score") from None
        _add(found, (row["system"], _segment(row, where)), (score_of(value, where),), where)
    return found


def _add(found: dict[Key, tuple[float | None, ...]], key: Key, scores: tuple[float | None, ...], where: str) -> None:
    if key in found:
        raise DataError(f"{where}: system {shown(key[0])!r} has segment {shown(key[1])!r} a second time; {REMEDY}")
    found[key] = scores


def _summaries(path: Path) -> Iterator[tuple[Mapping[str, Any], str]]:
    try:
        rows = read_json(path, MAX_FILE_BYTES)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; {REMEDY}") from None
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {shown(str(error))}; {REMEDY}") from None
    if not isinstance(rows, list):
        raise DataError(f"{path} is no list of summaries, but {type(rows).__name__}; {REMEDY}")
    return ((_object(row, f"{path}, row {n}"), f"{path}, row {n}") for n, row in enumerate(rows, 1))


def _summary_key(row: Mapping[str, Any], where: str) -> Key:
    return _text(row, "system_id", where), _text(row, "doc_id", where)


def _aspect(row: Mapping[str, Any], aspect: str | None, where: str) -> float | None:
    scores = _object(row.get("scores"), f"{where}, scores")
    if aspect is None or aspect not in scores:
        raise DataError(f"{where} has the scores {shown(', '.join(scores))}; give one of them as --aspect")
    return score_of(scores[aspect], where)


def _lines_of_scores(path: Path, aspect: str | None) -> dict[Key, tuple[float | None, ...]]:
    """Return scores of JSON lines: {system, segment, score}, or SummEval's rows with expert_annotations."""
    found: dict[Key, tuple[float | None, ...]] = {}
    for value, number in read_rows(path, remedy=REMEDY):
        where = f"{path}, line {number}"
        row = _object(value, where)
        if "expert_annotations" in row:
            key = _text(row, "model_id", where), _text(row, "id", where)
            experts = [_object(e, where) for e in row["expert_annotations"] or ()]
            given = [_aspect({"scores": expert}, aspect, where) for expert in experts]
            scores: tuple[float | None, ...] = (mean_of(given),)
        else:
            if row.get("segment") in (None, ""):
                raise DataError(f"{where}: segment is missing; {REMEDY}")
            key = _text(row, "system", where), str(row["segment"])
            name = aspect if aspect is not None and aspect in row else "score"
            if "scores" not in row and name not in row:
                raise DataError(f"{where} has no score, only {shown(', '.join(row))}; {REMEDY}")
            several = row["scores"] if isinstance(row.get("scores"), list) else [row.get(name)]
            scores = tuple(score_of(one, where) for one in several)
        _add(found, key, scores, where)
    return found
