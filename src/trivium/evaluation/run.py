"""Run every task at every number of shots, and report accuracies with intervals and baselines."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trivium.errors import DataError
from trivium.evaluation.config import Bootstraps, EvaluationConfig
from trivium.evaluation.requests import Likelihoods, Request, Scored, ask
from trivium.evaluation.statistics import bootstrap_mean, sign_test, wilson
from trivium.evaluation.tasks.continuation import continuation_task
from trivium.evaluation.tasks.items import Item, read_items
from trivium.evaluation.tasks.last_word import last_word_task
from trivium.evaluation.tasks.task import Example, Task, choose_shots
from trivium.progress import Progress, silent

FORMAT = "trivium-results-1"


def evaluate(
    config: EvaluationConfig,
    scorer: Likelihoods,
    items: Path,
    *,
    seed: int,
    unigram: Likelihoods | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Score all tasks of the config over the passages in `items`, with `unigram` as the baseline.

    Returns {format, tasks: {name: {shots: result}}}; `docs/formats/results.md` describes a result.
    """
    passages = read_items(items)
    tasks = [build_task(name, passages, config, seed=seed) for name in config.tasks]
    # Build all requests first, so that a task that cannot be run is rejected before anything is scored.
    questions = {(t.name, n): requests_of(t, shots=n, seed=seed) for t in tasks for n in config.shots}
    total = sum(map(len, questions.values()))
    done = 0
    results: dict[str, dict[str, Any]] = {task.name: {} for task in tasks}
    for task in tasks:
        for shots in config.shots:
            progress(done, total, f"{task.name}, {shots} shots")
            requests = questions[task.name, shots]
            answers = ask(scorer, requests)
            baseline = ask(unigram, requests) if unigram else None
            result = result_of(task, answers, config=config, seed=seed, baseline=baseline)
            results[task.name][str(shots)] = result | {"prompt_hash": prompt_hash(requests)}
            done += len(requests)
    progress(done, total, "evaluated")
    return {"format": FORMAT, "items": len(passages), "requests": total, "tasks": results}


def build_task(name: str, items: Sequence[Item], config: EvaluationConfig, *, seed: int) -> Task:
    """Build the task `name` over the passages. Raises DataError for an unknown name."""
    match name:
        case "last_word":
            return last_word_task(items, config, seed=seed)
        case "continuation":
            return continuation_task(items, config, seed=seed)
        case _:
            raise DataError(f"there is no task '{name}'; tasks are last_word and continuation")


def requests_of(task: Task, *, shots: int, seed: int) -> list[Request]:
    """Return one request per choice of each example, in the order of the examples."""
    drawn = choose_shots(task, shots=shots, seed=seed)
    return [r for e in task.examples for r in requests_about(task, e, drawn(e))]


def requests_about(task: Task, example: Example, shots: Sequence[Example]) -> list[Request]:
    """Return one request per choice of one example after these shots. Equal contexts are one string."""
    prompts = [task.template.prompt(example, shots, number) for number in range(len(example.contexts) or 1)]
    return [
        Request(prompts[number if example.contexts else 0], choice) for number, choice in enumerate(example.choices)
    ]


def right(task: Task, answers: Sequence[Scored], alone: Sequence[Scored] | None = None) -> dict[str, list[bool]]:
    """Return for each normalisation whether each example was answered correctly; the headline normalisation comes
    first.

    alone: the answers for the same choices after the unconditional context, if the task has one.
    """
    if task.scoring == "greedy":
        return {"greedy": [a.greedy for a in answers]}
    others = [n for n in ("token", "byte", "character", "none") if n != task.normalisation]
    divided = [task.normalisation] if task.normalisation != "unconditional" else []
    outcome: dict[str, list[bool]] = {}
    if alone is not None:
        outcome["unconditional"] = [
            int(np.argmax([a.loglikelihood - b.loglikelihood for a, b in zip(group, before, strict=True)]))
            == example.answer
            for example, group, before in zip(
                task.examples, _by_example(task, answers), _by_example(task, alone), strict=True
            )
        ]
    outcome |= {name: [] for name in [*divided, *others]}
    for example, group in zip(task.examples, _by_example(task, answers), strict=True):
        for normalisation in [*divided, *others]:
            scores = [
                a.loglikelihood / size_of(a, choice, normalisation)
                for a, choice in zip(group, example.choices, strict=True)
            ]
            outcome[normalisation].append(int(np.argmax(scores)) == example.answer)
    return outcome


def prompt_hash(requests: Sequence[Request]) -> str:
    """Return a hash of the requests. Results with equal hashes are comparable: their questions are identical."""
    text = json.dumps([[r.context, r.continuation] for r in requests], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def result_of(
    task: Task,
    answers: list[Scored],
    *,
    config: Bootstraps,
    seed: int,
    baseline: list[Scored] | None = None,
    alone: list[Scored] | None = None,
) -> dict[str, Any]:
    """Return the result of a task at one number of shots (docs/formats/results.md). alone: see `right`."""
    by_normalisation = right(task, answers, alone)
    headline = next(iter(by_normalisation))
    correct = by_normalisation[headline]
    known = right(task, baseline)[headline] if baseline else None
    nats = _nats_per_byte(task, answers)
    interval = bootstrap_mean(nats, seed=seed, name=task.name, confidence=config.confidence, resamples=config.resamples)
    return {
        "accuracy": _share(correct),
        "interval": list(wilson(sum(correct), len(correct), confidence=config.confidence)),
        "confidence": config.confidence,
        "n": len(correct),
        "chance": task.chance,
        "unigram": _share(known) if known else None,
        "unigram_p": _paired(correct, known) if known else None,
        "normalisation": headline,
        "accuracy_by_normalisation": {name: _share(flags) for name, flags in by_normalisation.items()},
        "nats_per_byte": float(np.mean(nats)),
        "nats_per_byte_interval": list(interval),
        "unigram_nats_per_byte": float(np.mean(_nats_per_byte(task, baseline))) if baseline else None,
        "truncated_fraction": _share([a.truncated for a in answers]),
        "version": task.version,
    }


def _nats_per_byte(task: Task, answers: Sequence[Scored]) -> list[float]:
    """Return the negative log-likelihood per byte of each correct answer. It is finer than accuracy, and comparable
    across tokenizers."""
    return [
        -group[example.answer].loglikelihood / _bytes(example.solution)
        for example, group in zip(task.examples, _by_example(task, answers), strict=True)
    ]


def _by_example(task: Task, answers: Sequence[Scored]) -> list[Sequence[Scored]]:
    ends = np.cumsum([len(e.choices) for e in task.examples]).tolist()
    return [answers[end - len(e.choices) : end] for e, end in zip(task.examples, ends, strict=True)]


def size_of(answer: Scored, choice: str, normalisation: str) -> int:
    """Return the divisor of the log-likelihood of a choice."""
    bare = choice.removeprefix(" ")  # the harness's choices exclude the delimiter between prompt and choice
    return {"token": answer.tokens, "byte": _bytes(bare), "character": len(bare), "none": 1}[normalisation]


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags)


def _paired(model: Sequence[bool], baseline: Sequence[bool]) -> float:
    """Return the p-value of an exact sign test over the examples that only one of the two got right (McNemar)."""
    pairs = list(zip(model, baseline, strict=True))
    return sign_test(sum(m and not b for m, b in pairs), sum(b and not m for m, b in pairs))
