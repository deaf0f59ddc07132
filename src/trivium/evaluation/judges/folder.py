"""The folder that a judge writes: recorded answers, scores by item, and a summary."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trivium.errors import DataError
from trivium.evaluation.judges.asking import Judged
from trivium.evaluation.judges.parse import Parsed
from trivium.evaluation.judges.prompts import Prompt
from trivium.evaluation.judges.ratings import (
    Ratings,
    has_answers_of_geval,
    mean_of,
    read_answers_of_geval,
    read_ratings,
    score_of,
)
from trivium.finite import dumps
from trivium.provenance import read_described, write_json, write_whole

FORMAT = "trivium-judge-1"
SUMMARY, SCORES = "judge.json", "scores.jsonl"
REMEDY = "run `trivium judge` with --out again; it asks nothing twice"


def write_scores(folder: Path, judged: Sequence[Judged], prompt: Prompt, about: Mapping[str, Any]) -> dict[str, Any]:
    """Write the scores and the summary of a judge, and return the summary."""
    samples = [parsed for one in judged for parsed in one.samples]
    known = [parsed.score for parsed in samples if parsed.score is not None]
    counted = [one for one in judged if one.has_tokens]
    answers = sum(len(one.samples) for one in counted)
    reasoning = [one.reasoning_tokens for one in counted if one.reasoning_tokens is not None]
    # Likelihoods have no lowest value, and every output has one.
    mean, worst = mean_of(known), min(known, default=None) if prompt.reads == "likelihood" else prompt.lowest
    summary = {
        "format": FORMAT,
        **about,
        "items": len(judged),
        "answers": len(samples),
        "unparsable": len(samples) - len(known),
        "reasons": dict(Counter(parsed.reason for parsed in samples if parsed.score is None)),
        "repeated": sum(one.attempts - len(one.samples) for one in judged),
        "errors": _errors(samples) if prompt.reads == "errors" else None,
        "mean": mean,
        "worst": worst,
        "tokens_per_answer": sum(one.answer_tokens for one in counted) / answers if answers else None,
        "reasoning_tokens_per_answer": sum(reasoning) / answers if reasoning and answers else None,
        "answers_without_token_counts": len(samples) - answers,
        "systems": _systems(judged, worst, mean),
    }
    write_whole(folder / SCORES, "".join(f"{dumps(one.line(), ensure_ascii=False)}\n" for one in judged))
    write_json(folder / SUMMARY, summary)
    return summary


def read_judge(path: Path, aspect: str | None = None) -> Ratings:
    """Read a judge: a folder of `trivium judge`, G-Eval's recorded answers, or scores as of people."""
    if not path.is_dir():
        return read_answers_of_geval(path, aspect) if has_answers_of_geval(path) else read_ratings(path, aspect)
    missing = f"{path} has no {SUMMARY}; {REMEDY}"
    about = read_described(path / SUMMARY, FORMAT, missing=missing, remedy=REMEDY)
    if not (path / SCORES).is_file():
        raise DataError(f"{path} has no {SCORES}; {REMEDY}")
    scores = read_ratings(path / SCORES).scores
    worst, tokens = (score_of(about.get(name), f"{path / SUMMARY}, {name}") for name in ("worst", "tokens_per_answer"))
    return Ratings(path.name or path.resolve().name, scores, worst=worst, tokens=tokens, about=about)


def _errors(samples: Sequence[Parsed]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for parsed in samples:
        total.update(parsed.errors)
    return dict(total)


def _systems(judged: Sequence[Judged], worst: float | None, mean: float | None) -> dict[str, dict[str, Any]]:
    """Return each system's number of items, those without a score, and its mean score for each treatment of answers
    that could not be parsed."""
    found: dict[str, list[Judged]] = {}
    for one in judged:
        found.setdefault(one.item.system, []).append(one)
    instead = {"drop": None, "worst": worst, "mean": mean}
    return {
        system: {
            "n": len(some),
            "without_score": sum(one.score is None for one in some),
            "mean": {policy: mean_of([one.score_with(value) for one in some]) for policy, value in instead.items()},
        }
        for system, some in found.items()
    }
