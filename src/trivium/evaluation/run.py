"""Score tasks, and report accuracies with intervals and baselines."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.errors import DataError
from trivium.evaluation.config import Bootstraps, EvaluationConfig
from trivium.evaluation.requests import Likelihoods, Request, Scored, ask
from trivium.evaluation.statistics import bootstrap_mean, sign_test, wilson
from trivium.evaluation.tasks.items import Item, read_items
from trivium.evaluation.tasks.passages import build_task
from trivium.evaluation.tasks.task import Example, Normalisation, Task, choose_shots
from trivium.evaluation.windows import encode_all
from trivium.progress import Progress, silent
from trivium.tokens.encode import add_one
from trivium.tokens.tokenizer import Tokenizer
from trivium.units import counted

FORMAT = "trivium-results-1"
Scores = NDArray[np.float64]


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

    Returns {format, tasks: {name: {shots: result}}, skipped: {name: why}}; `docs/formats/results.md` describes a
    result. A task that cannot be made from these passages is skipped; DataError if none can.
    """
    passages = read_items(items)
    tasks, skipped = _made(config, passages, seed=seed)
    # Build all requests first, so that a task that cannot be run is rejected before anything is scored.
    rounds = [
        (task, shots, requests_of(task, shots=shots, seed=seed))
        for task in tasks
        for shots in (config.shots if task.takes_shots else (0,))
    ]
    done, total = 0, sum(len(requests) for *_, requests in rounds)
    results: dict[str, dict[str, Any]] = {task.name: {} for task in tasks}
    for task, shots, requests in rounds:
        progress(done, total, f"{task.name}, {counted(shots, 'shot')}")
        answers, baseline = ask(scorer, requests), ask(unigram, requests) if unigram else None
        result = result_of(task, answers, config=config, seed=seed, baseline=baseline)
        results[task.name][str(shots)] = result | {"prompt_hash": prompt_hash(requests)}
        done += len(requests)
    progress(done, total, "evaluated")
    return {"format": FORMAT, "items": len(passages), "requests": total, "tasks": results, "skipped": skipped}


def _made(config: EvaluationConfig, passages: Sequence[Item], *, seed: int) -> tuple[list[Task], dict[str, str]]:
    """Return the tasks of the config, and those that the passages do not suffice for, with the reason."""
    tasks: list[Task] = []
    skipped: dict[str, str] = {}
    for name in config.tasks:
        try:
            tasks.append(build_task(name, passages, config, seed=seed))
        except DataError as error:
            skipped[name] = str(error)
    if not tasks:
        raise DataError("\n".join(skipped.values()))
    return tasks, skipped


def requests_of(task: Task, *, shots: int, seed: int) -> list[Request]:
    """Return one request per choice of each example, in the order of the examples."""
    drawn = choose_shots(task, shots=shots, seed=seed)
    return [r for e in task.examples for r in requests_about(task, e, drawn(e))]


def requests_about(task: Task, example: Example, shots: Sequence[Example]) -> list[Request]:
    """Return one request per choice of one example after these shots. Equal contexts are one string."""
    prompts = [task.template.prompt(example, shots, number) for number in range(len(example.contexts) or 1)]
    return [Request(prompts[number % len(prompts)], choice) for number, choice in enumerate(example.choices)]


def prompt_hash(requests: Sequence[Request]) -> str:
    """Return a hash of the requests. Results with equal hashes are comparable: their questions are identical."""
    text = json.dumps([[r.context, r.continuation] for r in requests], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def scores_of(
    normalisation: Normalisation, choices: Sequence[str], answers: Sequence[Scored], alone: Sequence[Scored] | None
) -> Scores:
    """Return each choice's log-likelihood over its size, or minus that after the unconditional context (`alone`)."""
    nats = np.asarray([a.loglikelihood for a in answers])
    if normalisation == "unconditional":
        nats -= np.asarray([a.loglikelihood for a in alone or ()])
        return nats
    bare = [choice.removeprefix(" ") for choice in choices]  # the harness's choices exclude the delimiting space
    sizes = {
        "token": [a.tokens for a in answers],
        "byte": [_bytes(choice) for choice in bare],
        "character": [len(choice) for choice in bare],
        "none": [1] * len(bare),
    }
    scores: Scores = nats / np.asarray(sizes[normalisation])
    return scores


def right(task: Task, answers: Sequence[Scored], alone: Sequence[Scored] | None = None) -> dict[str, list[bool]]:
    """Return for each normalisation, the headline first, whether each example was answered correctly.

    alone: the answers for the same choices after the unconditional context, if the task has one.
    """
    if task.scoring == "greedy":
        return {"greedy": [a.greedy for a in answers]}
    choices = [choice for example in task.examples for choice in example.choices]
    ends = np.cumsum([len(example.choices) for example in task.examples])
    outcome = {}
    every: tuple[Normalisation, ...] = (task.normalisation, "token", "byte", "character", "none")
    for name in dict.fromkeys(every):
        by_example = np.split(scores_of(name, choices, answers, alone), ends[:-1])
        outcome[str(name)] = [int(s.argmax()) == e.answer for s, e in zip(by_example, task.examples, strict=True)]
    return outcome


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
    headline, correct = next(iter(by_normalisation.items()))
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
    """Return the negative log-likelihood per byte of each correct answer, which is comparable across tokenizers."""
    found, first = [], 0
    for example in task.examples:
        found.append(-answers[first + example.answer].loglikelihood / _bytes(example.solution))
        first += len(example.choices)
    return found


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags)


def _paired(model: Sequence[bool], baseline: Sequence[bool]) -> float:
    """Return the p-value of an exact sign test over the examples that only one of the two got right (McNemar)."""
    pairs = list(zip(model, baseline, strict=True))
    return sign_test(sum(m and not b for m, b in pairs), sum(b and not m for m, b in pairs))


class _Unigram:
    """Scores the tokens of a continuation regardless of the context. It uses the same tokens as a model does."""

    def __init__(self, tokenizer: Tokenizer, counts: NDArray[np.int64]) -> None:
        self._tokenizer = tokenizer
        self._logs = np.log(add_one(counts))
        self._likeliest = int(self._logs.argmax())

    def loglikelihood(self, requests: Sequence[Request]) -> list[Scored]:
        return [
            Scored(
                loglikelihood=float(self._logs[ids].sum()),
                tokens=len(ids),
                greedy=all(i == self._likeliest for i in ids),
                truncated=False,
            )
            for _, ids in encode_all(requests, self._tokenizer)
        ]


def unigram_scorer(tokenizer: Tokenizer, counts: NDArray[np.int64]) -> Likelihoods:
    """Return the unigram baseline of a tokenizer. counts: occurrences of its ids in the training text [vocabulary]."""
    if len(counts) != tokenizer.vocabulary:
        raise DataError(
            f"{len(counts)} token counts do not belong to a tokenizer of {tokenizer.vocabulary} ids; tokenize again"
        )
    return _Unigram(tokenizer, counts)
