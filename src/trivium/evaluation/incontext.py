"""Study how the answers to a multiple-choice task depend on its solved examples (MT-NLG, section 5).

The grid of shots, draws, orders, balances and sources is configurable, because the paper does not publish its own.
Shots are drawn once for all questions of a condition, so that only the condition makes a difference and the shared
prefix is read once.

Legend: n questions, C choices.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from trivium.errors import DataError
from trivium.evaluation.benchmark import Benchmark, by_group, prepare
from trivium.evaluation.calibration import (
    Labels,
    Scores,
    calibration_error,
    contextual,
    histogram,
    separation,
    threshold_accuracy,
    without_content,
)
from trivium.evaluation.config import BenchmarkConfig, IncontextConfig
from trivium.evaluation.requests import Likelihoods, Request, Scored, ask
from trivium.evaluation.run import requests_about, size_of
from trivium.evaluation.shots import Draw, TooFewError, drawn, in_order, in_turn, order, orders
from trivium.evaluation.statistics import wilson
from trivium.evaluation.tasks.definition import Definition
from trivium.evaluation.tasks.readers import BY_FIELDS, as_sentence, completed
from trivium.evaluation.tasks.rows import Rows
from trivium.evaluation.tasks.task import Example, Task
from trivium.progress import Progress, silent

FORMAT = "trivium-incontext-1"
NOTHING = ("N/A", "[MASK]", "")  # inputs without content (Zhao et al. 2021)
Making = Callable[[], list[Draw]]  # builds the draws of a condition


@dataclass(frozen=True)
class Study:
    """A task and the conditions to vary.

    scoring: the task whose normalisation is used for all scores, including those with the other wording.
    """

    benchmark: Benchmark
    config: IncontextConfig
    scoring: Task
    other_wording: Benchmark | None = None
    empty: tuple[str, ...] = NOTHING

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The choices, if all questions share them, else None."""
        choices = {e.choices for e in (*self.benchmark.task.examples, *self.benchmark.task.pool)}
        return next(iter(choices)) if len(choices) == 1 else None


@dataclass
class Outcome:
    """The answers under one condition: scores and log-likelihoods [n, C], and scores without content [1, C] (`empty`).

    truncated: fraction of the prompts whose beginning was cut off.
    """

    scores: Scores
    nats: Scores
    gold: Labels
    truncated: float
    shots: list[Example] = field(default_factory=list)  # empty if questions have different shots
    empty: Scores | None = None

    @property
    def said(self) -> Labels:
        """The predicted choice of each question [n]."""
        found: Labels = self.scores.argmax(1)
        return found


def study_of(of: Definition, rows: Rows, config: IncontextConfig) -> Study:
    """Build the study of a task. Raises DataError if the task has no choices."""
    if of.scoring != "likelihood":
        raise DataError(f"task {of.name} has no choices to score; name a multiple-choice task, as hans or boolq")
    asking = BenchmarkConfig(limit=config.limit, seed=config.seed, wording=config.wording)
    other = "harness" if config.wording == "paper" else "paper"
    variant = prepare(of, rows, asking.model_copy(update={"wording": other}))
    found = prepare(of, rows, asking)
    differs = [e.context for e in variant.task.examples] != [e.context for e in found.task.examples]
    return Study(found, config, found.task, variant if differs else None, _without_content(of, rows, config))


def measure(study: Study, scorer: Likelihoods, progress: Progress = silent) -> dict[str, Any]:
    """Measure a model under every condition; docs/formats/results.md describes the result."""
    config, task, at = study.config, study.benchmark.task, study.config.compare_at
    balance, unbalanced = _possible(_balances(study, at))
    source, unsourced = _possible(_sources(study, at))
    conditions: dict[str, dict[str, list[Draw]]] = {
        "shots": {str(k): [drawn(task, k, config.seed, d) for d in range(config.draws)] for k in config.shots},
        "order": {
            str(o): [in_order(drawn(task, at, config.seed, 0), order)]
            for o, order in enumerate(orders(config.orders, at, config.seed))
        },
        "balance": balance,
        "source": source,
    }
    done, total = 0, sum(len(draws) for kind in conditions.values() for draws in kind.values())
    found: dict[str, Any] = {}
    for kind, several in conditions.items():
        found[kind] = {}
        for name, draws in several.items():
            outcomes = []
            for draw in draws:
                progress(done, total, f"{task.name}, {kind} {name}")
                outcomes.append(_outcome(study, scorer, draw, calibrated=kind == "shots"))
                done += 1
            found[kind][name] = _measures(study, outcomes)
    found["template"] = _templates(study, scorer, found["shots"].get(str(at)))
    progress(total, total, "measured")
    return {
        "labels": study.labels,
        "n": len(task.examples),
        "chance": task.chance,
        "normalisation": study.scoring.normalisation,
        "order_complete": len(found["order"]) == math.factorial(at),
        "left_out": {"balance": unbalanced, "source": unsourced},
        **found,
    }


def _possible(conditions: Mapping[str, Making]) -> tuple[dict[str, list[Draw]], dict[str, str]]:
    """Return the draws of each condition that has enough shots, and the reasons for the others."""
    found: dict[str, list[Draw]] = {}
    lacking: dict[str, str] = {}
    for name, make in conditions.items():
        try:
            found[name] = make()
        except TooFewError as error:
            lacking[name] = str(error)
    return found, lacking


def _templates(study: Study, scorer: Likelihoods, here: dict[str, Any] | None) -> dict[str, Any]:
    """Measure both wordings at `compare_at` shots. `here` is the study's own wording, if it was measured already."""
    own = study.config.wording
    if study.other_wording is None:
        return {own: here}
    other = replace(study, benchmark=study.other_wording)
    return {own: here or _after_some(study, scorer), "the other": _after_some(other, scorer)}


def _after_some(study: Study, scorer: Likelihoods) -> dict[str, Any]:
    """Measure the task after `compare_at` shots."""
    config, task = study.config, study.benchmark.task
    draws = [drawn(task, config.compare_at, config.seed, d) for d in range(config.draws)]
    return _measures(study, [_outcome(study, scorer, draw, calibrated=False) for draw in draws])


def _outcome(study: Study, scorer: Likelihoods, draw: Draw, *, calibrated: bool) -> Outcome:
    task = study.benchmark.task
    requests = [r for e in task.examples for r in requests_about(task, e, draw(e))]
    same = study.labels is not None
    shots = draw(task.examples[0])
    same_shots = all(draw(e) == shots for e in task.examples)
    nothing: list[Request] = []
    if calibrated and same:
        blank = [replace(task.examples[0], context=text, contexts=()) for text in study.empty]
        nothing = [r for e in blank for r in requests_about(task, e, shots)]
    asked = [*requests, *nothing]
    answers = ask(scorer, asked)
    nats = np.asarray([a.loglikelihood for a in answers])
    choices = max(len(e.choices) for e in task.examples)
    if any(len(e.choices) != choices for e in task.examples):
        raise DataError(f"task {task.name} has questions of different numbers of choices; study another task")
    scores = _scored(study.scoring, scorer, asked, answers).reshape(-1, choices)
    count = len(task.examples)
    empty = without_content(scores[count:]) if nothing else None
    gold = np.asarray([e.answer for e in task.examples])
    cut = float(np.mean([a.truncated for a in answers[: len(requests)]]))
    return Outcome(scores[:count], nats.reshape(-1, choices)[:count], gold, cut, shots if same_shots else [], empty)


def _scored(task: Task, scorer: Likelihoods, asked: Sequence[Request], answers: Sequence[Scored]) -> Scores:
    """Return one score per request, normalised as in the headline of `trivium evaluate`."""
    nats = np.asarray([a.loglikelihood for a in answers])
    if task.unconditional is not None:
        alone = ask(scorer, [Request(task.unconditional, r.continuation) for r in asked])
        less: Scores = nats - np.asarray([a.loglikelihood for a in alone])
        return less
    sizes = [size_of(a, r.continuation, task.normalisation) for r, a in zip(asked, answers, strict=True)]
    divided: Scores = nats / np.asarray(sizes)
    return divided


def _measures(study: Study, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    task, confidence = study.benchmark.task, study.config.confidence
    first, gold = outcomes[0], outcomes[0].gold
    accuracies = [float((o.said == gold).mean()) for o in outcomes]
    mean, count = float(np.mean(accuracies)), len(gold)
    error, bins = calibration_error(first.scores, gold)
    corrected = [
        float((contextual(o.scores, o.empty).argmax(1) == gold).mean()) for o in outcomes if o.empty is not None
    ]
    thresholds = [t for o in outcomes if (t := threshold_accuracy(o.scores, gold)) is not None]
    two = first.nats.shape[1] == 2
    margins = first.nats[:, 0] - first.nats[:, 1] if two else _lead(first)
    labels = study.labels if two and study.labels else None
    return {
        "accuracy": mean,
        "accuracies": accuracies,
        "interval": list(wilson(round(mean * count), count, confidence=confidence)),
        "threshold_accuracy": float(np.mean(thresholds)) if thresholds else None,
        "contextual_accuracy": float(np.mean(corrected)) if corrected else None,
        "truncated_fraction": float(np.mean([o.truncated for o in outcomes])),
        "calibration_error": error,
        "calibration_bins": bins,
        "separation": separation(margins, gold == 0) if two else None,
        "said": _shares(np.concatenate([o.said for o in outcomes]), study.labels),
        "margins": histogram(margins, gold if labels else np.zeros_like(gold), labels or ("right",)),
        "margins_by_group": _margins_by_group(task, margins, gold, labels),
        "by_group": by_group(task.examples, (first.said == gold).tolist(), confidence=confidence),
        "by_label": _by_label(first, study.labels),
        **_label_biases(study, outcomes),
    }


def _label_biases(study: Study, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the majority and recency biases (Zhao et al. 2021).

    The bias is how much more often the model predicts the label of the majority (or of the last shot) than it
    predicts that label under the other draws of as many shots, averaged over draws. It is 0 without bias, and None if
    it cannot be measured.
    """
    nothing: dict[str, Any] = {"majority_bias": None, "recency_bias": None}
    if study.labels is None or len(outcomes) < 2 or not all(o.shots for o in outcomes):
        return nothing
    said = np.asarray([[(o.said == k).mean() for k in range(len(study.labels))] for o in outcomes])
    elsewhere = (said.sum(0) - said) / (len(outcomes) - 1)  # [draws, C]: mean of the other draws

    def lift(label: Callable[[Outcome], int | None]) -> float | None:
        some = [(draw, k) for draw, o in enumerate(outcomes) if (k := label(o)) is not None]
        # A label that never varies cannot be distinguished from the model's own preference.
        if len({k for _, k in some}) < 2:
            return None
        return float(np.mean([said[draw, k] - elsewhere[draw, k] for draw, k in some]))

    return {"majority_bias": lift(_majority), "recency_bias": lift(lambda o: o.shots[-1].answer)}


def _majority(outcome: Outcome) -> int | None:
    ranked = Counter(e.answer for e in outcome.shots).most_common(2)
    return ranked[0][0] if len(ranked) == 1 or ranked[0][1] > ranked[1][1] else None


def _balances(study: Study, shots: int) -> dict[str, Making]:
    """Return draws with the labels balanced, and draws of each single label."""
    if study.labels is None:
        return {}
    labels, draws, seed = study.labels, range(study.config.draws), study.config.seed

    def alone(label: int) -> list[Draw]:
        return [_of_label(study, shots, d, label) for d in draws]

    def mixed() -> list[Draw]:
        each = [alone(label) for label in range(len(labels))]
        # Shuffle the order for each draw: in a fixed order, the same label would always come last.
        return [in_order(in_turn([several[d] for several in each], shots, d), order(shots, seed, d)) for d in draws]

    return {"balanced": mixed, **{f"only{label}": partial(alone, k) for k, label in enumerate(labels)}}


def _of_label(study: Study, shots: int, draw: int, label: int) -> Draw:
    whose = f" of the label{(study.labels or ())[label]}"
    return drawn(study.benchmark.task, shots, study.config.seed, draw, lambda e: e.answer == label, whose)


def _sources(study: Study, shots: int) -> dict[str, Making]:
    """For each grouping, return draws of shots from the question's own group and from other groups."""
    names = [n for n in study.benchmark.task.examples[0].groups if "×" not in n] if shots else []

    def made(kind: str, name: str) -> list[Draw]:
        same = kind == "same"
        return [_from_groups(study, shots, draw, name, same=same) for draw in range(study.config.draws)]

    return {f"{kind} {name}": partial(made, kind, name) for name in names for kind in ("same", "other")}


def _from_groups(study: Study, shots: int, draw: int, name: str, *, same: bool) -> Draw:
    task, seed = study.benchmark.task, study.config.seed

    def of_group(group: str) -> Draw:
        whose = f" of {name} {group}" if same else f" of another {name} than {group}"
        return drawn(task, shots, seed, draw, lambda e: (e.groups[name] == group) == same, whose)

    by_group = {group: of_group(group) for group in sorted({e.groups[name] for e in task.examples})}
    return lambda example: by_group[example.groups[name]](example)


def _without_content(of: Definition, rows: Rows, config: IncontextConfig) -> tuple[str, ...]:
    """Return the task's prompts with empty or meaningless values in their fields."""
    if of.reader not in BY_FIELDS:
        return NOTHING
    prompt, fields = of.prompts(config.wording).prompt, completed(rows.asked[0], of)
    return tuple(prompt.format_map({**dict.fromkeys(fields, text), "sentence": as_sentence(text)}) for text in NOTHING)


def _lead(outcome: Outcome) -> Scores:
    """Return the margin of the correct choice over the best incorrect one [n]."""
    number = np.arange(len(outcome.gold))
    others = outcome.nats.copy()
    others[number, outcome.gold] = -np.inf
    found: Scores = outcome.nats[number, outcome.gold] - others.max(1)
    return found


def _margins_by_group(task: Task, margins: Scores, gold: Labels, labels: Sequence[str] | None) -> Mapping[str, Any]:
    """Return a histogram for each group of the first grouping."""
    name = next(iter(task.examples[0].groups), None)
    if name is None or labels is None:
        return {}
    of = np.asarray([e.groups[name] for e in task.examples])
    return {str(g): histogram(margins[of == g], gold[of == g], labels) for g in np.unique(of)}


def _by_label(outcome: Outcome, labels: Sequence[str] | None) -> dict[str, float]:
    if labels is None:
        return {}
    some = {k: outcome.gold == k for k in range(len(labels))}
    return {labels[k]: float((outcome.said[m] == k).mean()) for k, m in some.items() if m.any()}


def _shares(said: Labels, labels: Sequence[str] | None) -> dict[str, float]:
    return {label: float((said == k).mean()) for k, label in enumerate(labels or ())}
