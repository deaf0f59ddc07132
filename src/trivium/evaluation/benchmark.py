"""Published benchmarks, run with the paper's prompts, shots and scoring, and reported next to the published figures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trivium.errors import DataError
from trivium.evaluation.config import BenchmarkConfig
from trivium.evaluation.contamination import Overlap, split_result
from trivium.evaluation.requests import Likelihoods, Request, Scored, ask
from trivium.evaluation.run import prompt_hash, requests_about, result_of, right
from trivium.evaluation.statistics import wilson
from trivium.evaluation.tasks.definition import Definition, Shots, Wording
from trivium.evaluation.tasks.readers import read_examples
from trivium.evaluation.tasks.rows import Rows
from trivium.evaluation.tasks.task import Example, Task, Template, choose_examples, choose_shots, others_than
from trivium.progress import Progress, silent

FORMAT = "trivium-task-results-1"


@dataclass(frozen=True)
class Benchmark:
    """A task that is ready to run, with its definition and rows."""

    definition: Definition
    task: Task
    rows: Rows

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.definition.name


def prepare(of: Definition, rows: Rows, config: BenchmarkConfig) -> Benchmark:
    """Build a task from rows. Raises DataError if there are no rows or one is damaged."""
    prompts = of.prompts(config.wording)
    asked = read_examples(rows.asked, of, config.wording, where=rows.asked_from)
    pool = _pool(of, rows, config.wording, asked)
    examples = (
        tuple(asked)
        if config.limit is None
        else choose_examples(asked, limit=config.limit, seed=config.seed, task=of.name)
    )
    normalisation = prompts.normalisation or of.normalisation
    task = Task(
        name=of.name,
        version=of.version,
        scoring=of.scoring,
        # The prompt is already formatted, so the template only places the shots.
        template=Template(alone="{context}", among=_among(prompts.among)),
        examples=examples,
        pool=tuple(pool),
        chance=0.0 if of.scoring == "greedy" else sum(1 / len(e.choices) for e in examples) / len(examples),
        normalisation=normalisation,
        unconditional=of.unconditional if normalisation == "unconditional" else None,
    )
    return Benchmark(of, task, rows)


def evaluate_benchmarks(
    benchmarks: Sequence[Benchmark],
    scorer: Likelihoods,
    config: BenchmarkConfig,
    *,
    overlap: Overlap | None = None,
    progress: Progress = silent,
) -> dict[str, dict[str, Any]]:
    """Run every benchmark at every number of shots.

    Returns {task: {shots: result}}; docs/formats/results.md describes a result.
    """
    # Build all requests first, so that a task that cannot be run is rejected before anything is scored.
    rounds = [(b, shots, benchmark_requests(b, shots, config)) for b in benchmarks for shots in config.shots]
    done, total = 0, sum(len(requests) for _, _, requests in rounds)
    found: dict[str, dict[str, Any]] = {b.name: {} for b in benchmarks}
    for benchmark, shots, requests in rounds:
        progress(done, total, f"{benchmark.name}, {shots} shots")
        found[benchmark.name][str(shots)] = _ask(benchmark, shots, requests, scorer, config, overlap)
        done += len(requests)
    progress(done, total, "evaluated")
    return found


def benchmark_requests(benchmark: Benchmark, shots: Shots, config: BenchmarkConfig) -> list[Request]:
    """Return one request for each choice of each question."""
    number, task = benchmark.definition.shots(shots), benchmark.task
    drawn = _drawn(task, number, config)
    return [r for e in task.examples for r in requests_about(task, e, drawn(e))]


def by_group(examples: Sequence[Example], correct: Sequence[bool], *, confidence: float) -> dict[str, Any]:
    """Return {grouping: {group: {n, accuracy, interval}}}."""
    found: dict[str, dict[str, list[bool]]] = {}
    for example, good in zip(examples, correct, strict=True):
        for name, group in example.groups.items():
            found.setdefault(name, {}).setdefault(group, []).append(good)
    return {
        name: {
            group: {
                "n": len(flags),
                "accuracy": sum(flags) / len(flags),
                "interval": list(wilson(sum(flags), len(flags), confidence=confidence)),
            }
            for group, flags in sorted(groups.items())
        }
        for name, groups in found.items()
    }


def _ask(
    benchmark: Benchmark,
    shots: Shots,
    requests: list[Request],
    scorer: Likelihoods,
    config: BenchmarkConfig,
    overlap: Overlap | None,
) -> dict[str, Any]:
    of, task = benchmark.definition, benchmark.task
    answers = ask(scorer, requests)
    alone: list[Scored] | None = None
    if task.unconditional is not None:
        alone = ask(scorer, [Request(task.unconditional, r.continuation) for r in requests])
    result = result_of(task, answers, config=config, seed=config.seed, alone=alone)
    correct = next(iter(right(task, answers, alone).values()))
    published = of.published.get(str(shots))
    more: dict[str, Any] = {
        "shots": of.shots(shots),
        "shots_drawn": config.shots_drawn,
        "seed": config.seed,
        "limit": config.limit,
        "wording": config.wording,
        "prompt_hash": prompt_hash(requests),
        "requests": len(requests),
        "truncated": sum(a.truncated for a in answers),
        "asked_from": benchmark.rows.asked_from,
        "shots_from": benchmark.rows.shots_from,
        "published": None if published is None else round(published / 100, 4),
        "gpt3": None if str(shots) not in of.gpt3 else round(of.gpt3[str(shots)] / 100, 4),
        "by_group": by_group(task.examples, correct, confidence=config.confidence),
    }
    if overlap is not None:
        flags = overlap.flags(task.examples)
        more["contamination"] = split_result(flags, correct, confidence=config.confidence)
    return result | more


def _drawn(task: Task, number: int, config: BenchmarkConfig) -> Callable[[Example], list[Example]]:
    """Return the function that chooses the shots of a question. With "once", all questions of a task share their
    shots, which are taken from examples that are not questions."""
    if config.shots_drawn == "each":
        return choose_shots(task, shots=number, seed=config.seed)
    apart = replace(task, pool=others_than(task.examples, task.pool))
    nobody = Example("the same for all", "", "", ("",), 0)
    same = choose_shots(apart, shots=number, seed=config.seed)(nobody)
    return lambda example: same


def _pool(of: Definition, rows: Rows, wording: Wording, asked: list[Example]) -> Iterable[Example]:
    if rows.shots is None:
        return asked
    return read_examples(rows.shots, of, wording, where=rows.shots_from)


def _among(template: str | None) -> str:
    if template is not None and "{context}" not in template:
        raise DataError(f"the few-shot prompt {template!r} has no {{context}}; fix the task's file")
    return template or "{context}"


def series_of(found: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return {task: {shots: accuracy}}, the values plotted against training tokens."""
    return {task: {s: r["accuracy"] for s, r in by_shots.items()} for task, by_shots in found.items()}
