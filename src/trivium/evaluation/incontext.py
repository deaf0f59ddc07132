"""Study how the answers to a multiple-choice task depend on its solved examples (MT-NLG, section 5).

The grid of shots, draws, orders, balances and sources is configurable, because the paper does not publish its own.
Shots are drawn once for all questions of a condition, so that only the condition makes a difference and the shared
prefix is read once.

Legend: n questions, C choices.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from trivium.errors import DataError
from trivium.evaluation.benchmark import Benchmark, prepare
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
from trivium.evaluation.requests import Likelihoods, Request, ask
from trivium.evaluation.run import requests_about, scores_of
from trivium.evaluation.statistics import by_group, share_of
from trivium.evaluation.tasks.definition import Definition
from trivium.evaluation.tasks.readers import BY_FIELDS, as_sentence, completed
from trivium.evaluation.tasks.rows import Rows
from trivium.evaluation.tasks.task import Example, Task, others_than
from trivium.progress import Progress, silent
from trivium.seeds import generator_for

FORMAT = "trivium-incontext-1"
NOTHING = ("N/A", "[MASK]", "")  # inputs without content (Zhao et al. 2021)
Draw = Callable[[Example], list[Example]]  # returns the shots of a question
Making = Callable[[int], Draw]  # draws the shots of a condition, by the number of the draw


@dataclass(frozen=True)
class Study:
    """A task and the conditions to vary. scoring: the task whose normalisation is used for both wordings."""

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
        said: Labels = self.scores.argmax(1)
        return said


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
    config, task = study.config, study.benchmark.task
    conditions, left_out = _conditions(study)
    done, total = 0, sum(len(draws) for kind in conditions.values() for draws in kind.values())
    found: dict[str, Any] = {kind: {} for kind in conditions}
    for kind, several in conditions.items():
        for name, draws in several.items():
            outcomes = []
            for draw in draws:
                progress(done, total, f"{task.name}, {kind} {name}")
                outcomes.append(_outcome(study, scorer, draw, calibrated=kind == "shots"))
                done += 1
            found[kind][name] = _measures(study, outcomes)
    found["template"] = _templates(study, scorer, found["shots"].get(str(config.compare_at)))
    progress(total, total, "measured")
    return {
        "labels": study.labels,
        "n": len(task.examples),
        "chance": task.chance,
        "normalisation": study.scoring.normalisation,
        "order_complete": len(found["order"]) == math.factorial(config.compare_at),
        "left_out": left_out,
        **found,
    }


def _conditions(study: Study) -> tuple[dict[str, dict[str, list[Draw]]], dict[str, dict[str, str]]]:
    """Return the draws of each condition, and the reason for each balance or source that has too few shots."""
    config, task, at = study.config, study.benchmark.task, study.config.compare_at
    found: dict[str, dict[str, list[Draw]]] = {
        "shots": {str(k): [drawn(task, k, config.seed, d) for d in range(config.draws)] for k in config.shots},
        "order": {
            str(o): [in_order(drawn(task, at, config.seed, 0), order)]
            for o, order in enumerate(orders(config.orders, at, config.seed))
        },
    }
    left_out: dict[str, dict[str, str]] = {}
    for kind, conditions in (("balance", _balances(study)), ("source", _sources(study))):
        found[kind], left_out[kind] = {}, {}
        for name, make in conditions.items():
            try:
                found[kind][name] = [make(draw) for draw in range(config.draws)]
            except TooFewError as error:
                left_out[kind][name] = str(error)
    return found, left_out


def _templates(study: Study, scorer: Likelihoods, here: dict[str, Any] | None) -> dict[str, Any]:
    """Measure both wordings at `compare_at` shots. `here` is the study's own wording, if it was measured already."""

    def measured(benchmark: Benchmark) -> dict[str, Any]:
        one, config = replace(study, benchmark=benchmark), study.config
        draws = [drawn(benchmark.task, config.compare_at, config.seed, d) for d in range(config.draws)]
        return _measures(one, [_outcome(one, scorer, draw, calibrated=False) for draw in draws])

    own = study.config.wording
    if study.other_wording is None:
        return {own: here}
    return {own: here or measured(study.benchmark), "the other": measured(study.other_wording)}


def _outcome(study: Study, scorer: Likelihoods, draw: Draw, *, calibrated: bool) -> Outcome:
    task = study.benchmark.task
    choices = len(task.examples[0].choices)
    if any(len(e.choices) != choices for e in task.examples):
        raise DataError(f"task {task.name} has questions of different numbers of choices; study another task")
    requests = [r for e in task.examples for r in requests_about(task, e, draw(e))]
    asked, shots = [*requests], draw(task.examples[0])
    if calibrated and study.labels is not None:
        blank = [replace(task.examples[0], context=text, contexts=()) for text in study.empty]
        asked += [r for e in blank for r in requests_about(task, e, shots)]
    answers, alone = ask(scorer, asked), None
    if study.scoring.unconditional is not None:
        alone = ask(scorer, [Request(study.scoring.unconditional, r.continuation) for r in asked])
    # The scores that decide, as in the headline of `trivium evaluate`.
    scores = scores_of(study.scoring.normalisation, [r.continuation for r in asked], answers, alone)
    empty = without_content(scores[len(requests) :].reshape(-1, choices)) if len(asked) > len(requests) else None
    answers = answers[: len(requests)]
    return Outcome(
        scores=scores[: len(requests)].reshape(-1, choices),
        nats=np.asarray([a.loglikelihood for a in answers]).reshape(-1, choices),
        gold=np.asarray([e.answer for e in task.examples]),
        truncated=float(np.mean([a.truncated for a in answers])),
        shots=shots if all(draw(e) == shots for e in task.examples) else [],
        empty=empty,
    )


def _measures(study: Study, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the measures of a condition: means over draws, and bins and histograms of the answers of all draws."""
    task, confidence = study.benchmark.task, study.config.confidence
    gold, every_gold = outcomes[0].gold, np.concatenate([o.gold for o in outcomes])
    scores, nats = np.concatenate([o.scores for o in outcomes]), np.concatenate([o.nats for o in outcomes])
    correct = np.stack([o.said == gold for o in outcomes])  # [draws, n]
    shares = correct.mean(0)  # of the draws in which each question is answered correctly
    corrected = [(contextual(o.scores, o.empty).argmax(1) == gold).mean() for o in outcomes if o.empty is not None]
    said = scores.argmax(1)
    two = nats.shape[1] == 2
    labels = study.labels if two and study.labels else None
    margins = nats[:, 0] - nats[:, 1] if labels else _lead(nats, every_gold)
    overall = share_of(shares.tolist(), confidence=confidence)
    return {
        "accuracy": overall["accuracy"],
        "accuracies": correct.mean(1).tolist(),
        "interval": overall["interval"],
        "threshold_accuracy": _mean(threshold_accuracy(o.scores, gold) for o in outcomes),
        "contextual_accuracy": _mean(corrected),
        "truncated_fraction": _mean(o.truncated for o in outcomes),
        "calibration_error": _mean(calibration_error(o.nats, gold)[0] for o in outcomes),
        "calibration_bins": calibration_error(nats, every_gold)[1],
        "separation": _mean(separation(o.nats[:, 0] - o.nats[:, 1], gold == 0) for o in outcomes if two),
        "said": {label: float((said == k).mean()) for k, label in enumerate(study.labels or ())},
        "margins": histogram(margins, every_gold if labels else np.zeros_like(every_gold), labels or ("right",)),
        "margins_by_group": _margins_by_group(task, margins, every_gold, labels),
        "by_group": by_group(task.examples, shares.tolist(), confidence=confidence),
        "by_label": {k: float(shares[gold == n].mean()) for n, k in enumerate(study.labels or ()) if n in gold},
        **_label_biases(study, outcomes),
    }


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean over draws; None if the measure applies to none."""
    found = [value for value in values if value is not None]
    return float(np.mean(found)) if found else None


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


class TooFewError(DataError):
    """The pool has fewer examples than the requested number of shots."""


def drawn(
    task: Task, shots: int, seed: int, draw: int, keep: Callable[[Example], bool] | None = None, whose: str = ""
) -> Draw:
    """Draw shots that are used for every question, from examples that are not questions. More shots are added in front.

    keep: filter of the pool. whose: its description in TooFewError.
    """
    pool = [e for e in others_than(task.examples, task.pool) if keep is None or keep(e)]
    if len(pool) < shots:
        raise TooFewError(
            f"task {task.name}: {shots} shots{whose} were requested, but only {len(pool)} examples are left besides "
            f"the {len(task.examples)} questions; lower --limit, --shots or compare_at (--set compare_at=N)"
        )
    order = generator_for(seed, "shots", task.name, draw).permutation(len(pool))
    found = [pool[k] for k in order[:shots].tolist()][::-1]
    return lambda example: found


def orders(number: int, shots: int, seed: int) -> list[tuple[int, ...]]:
    """Return `number` distinct orders of `shots` shots, or all if there are fewer. A larger number appends some."""
    if math.factorial(shots) <= number:
        return list(itertools.permutations(range(shots)))
    keyed = (order(shots, seed, key) for key in itertools.count())
    found: dict[tuple[int, ...], None] = {}
    while len(found) < number:
        found[next(keyed)] = None
    return list(found)


def order(shots: int, seed: int, key: int) -> tuple[int, ...]:
    return tuple(generator_for(seed, "order", key).permutation(shots).tolist())


def in_order(draw: Draw, places: Sequence[int]) -> Draw:

    def ordered(example: Example) -> list[Example]:
        shots = draw(example)
        return [shots[k] for k in places]

    return ordered


def in_turn(each: Sequence[Draw], shots: int, number: int) -> Draw:
    """Take the k-th shot from one of the draws in rotation. `number` rotates the draws that supply one shot more.

    If the number of draws does not divide `shots`, some labels occur once more than others. Successive numbers
    begin where the previous one ended (or, if all labels but one have an extra shot, skip the next label). Over any
    numbers from 0 on, the counts of two labels thus differ by at most one.
    """
    left = shots % len(each)
    step = 1 if left == len(each) - 1 else left
    turns = [(k if k < shots - left else number * step + k) % len(each) for k in range(shots)]
    return lambda example: [each[label](example)[k] for k, label in enumerate(turns)]


def _balances(study: Study) -> dict[str, Making]:
    """Return how to draw shots with the labels balanced, and shots of each single label."""
    task, seed, at, labels = study.benchmark.task, study.config.seed, study.config.compare_at, study.labels or ()

    def of_label(label: int, draw: int) -> Draw:
        return drawn(task, at, seed, draw, lambda e: e.answer == label, f" of the label{labels[label]}")

    def mixed(draw: int) -> Draw:
        each = [of_label(label, draw) for label in range(len(labels))]
        # Shuffle the order for each draw: in a fixed order, the same label would always come last.
        return in_order(in_turn(each, at, draw), order(at, seed, draw))

    alone: dict[str, Making] = {f"only{label}": partial(of_label, k) for k, label in enumerate(labels)}
    return {"balanced": mixed, **alone} if labels else {}


def _sources(study: Study) -> dict[str, Making]:
    """Return for each grouping how to draw shots from the question's own group, and from other groups."""
    task, seed, at = study.benchmark.task, study.config.seed, study.config.compare_at

    def from_groups(name: str, same: bool, draw: int) -> Draw:
        def of_group(group: str) -> Draw:
            whose = f" of {name} {group}" if same else f" of another {name} than {group}"
            return drawn(task, at, seed, draw, lambda e: (e.groups[name] == group) == same, whose)

        by_group = {group: of_group(group) for group in sorted({e.groups[name] for e in task.examples})}
        return lambda example: by_group[example.groups[name]](example)

    names = [n for n in task.examples[0].groups if "×" not in n] if at else []
    kinds = (("same", True), ("other", False))
    return {f"{kind} {name}": partial(from_groups, name, same) for name in names for kind, same in kinds}


def _without_content(of: Definition, rows: Rows, config: IncontextConfig) -> tuple[str, ...]:
    """Return the task's prompts with empty or meaningless values in their fields."""
    if of.reader not in BY_FIELDS:
        return NOTHING
    prompt, fields = of.prompts(config.wording).prompt, completed(rows.asked[0], of)
    return tuple(prompt.format_map({**dict.fromkeys(fields, text), "sentence": as_sentence(text)}) for text in NOTHING)


def _lead(nats: Scores, gold: Labels) -> Scores:
    """Return the margin of the correct choice over the best incorrect one [n], for log-likelihoods [n, C]."""
    right = np.arange(nats.shape[1]) == gold[:, None]
    lead: Scores = nats[right] - np.where(right, -np.inf, nats).max(1)
    return lead


def _margins_by_group(task: Task, margins: Scores, gold: Labels, labels: Sequence[str] | None) -> Mapping[str, Any]:
    """Return a histogram for each group of the first grouping. margins, gold: of every draw, one after another."""
    name = next(iter(task.examples[0].groups), None)
    if name is None or labels is None:
        return {}
    of = np.tile([e.groups[name] for e in task.examples], len(gold) // len(task.examples))
    return {str(g): histogram(margins[of == g], gold[of == g], labels) for g in np.unique(of)}
