"""Published benchmarks, run with the paper's prompts, shots and scoring, and reported next to the published figures."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trivium.comms.mesh import Mesh
from trivium.errors import DataError
from trivium.evaluation.answer import NativeScorer
from trivium.evaluation.config import BenchmarkConfig, IncontextConfig
from trivium.evaluation.contamination import Overlap, split_result
from trivium.evaluation.joined import COMPARABLE
from trivium.evaluation.requests import Likelihoods, Request, ask
from trivium.evaluation.run import prompt_hash, requests_about, result_of, right
from trivium.evaluation.statistics import by_group
from trivium.evaluation.tasks.definition import Definition, Shots
from trivium.evaluation.tasks.readers import read_examples
from trivium.evaluation.tasks.rows import Rows
from trivium.evaluation.tasks.task import Example, Task, Template, choose_examples, choose_shots, others_than
from trivium.model.stage import Stage
from trivium.model.whole import WholeModel
from trivium.plan.plan import Plan
from trivium.progress import Progress, silent
from trivium.tokens.tokenizer import Tokenizer
from trivium.units import shots_text

FORMAT = "trivium-task-results-2"
Alive = Callable[[], None]
Examiner = Callable[[Mapping[int, Stage], Plan, Mesh, Alive], dict[str, Any]]


@dataclass(frozen=True)
class Benchmark:
    """A task that is ready to run, with its definition and rows."""

    definition: Definition
    task: Task
    rows: Rows

    @property
    def name(self) -> str:
        return self.definition.name


def prepare(of: Definition, rows: Rows, config: BenchmarkConfig) -> Benchmark:
    """Build a task from rows. Raises DataError if there are no rows or one is damaged."""
    prompts = of.prompts(config.wording)
    among = prompts.among or "{context}"
    if "{context}" not in among:
        raise DataError(f"the few-shot prompt {among!r} has no {{context}}; fix the task's file")
    asked = read_examples(rows.asked, of, config.wording, where=rows.asked_from)
    pool = asked if rows.shots is None else read_examples(rows.shots, of, config.wording, where=rows.shots_from)
    examples = tuple(asked)
    if config.limit is not None:
        examples = choose_examples(asked, limit=config.limit, seed=config.seed, task=of.name)
    normalisation = prompts.normalisation or of.normalisation
    task = Task(
        name=of.name,
        version=of.version,
        scoring=of.scoring,
        # The prompt is already formatted, so the template only places the shots.
        template=Template(alone="{context}", among=among),
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
        progress(done, total, f"{benchmark.name}, {shots_text(shots)}")
        found[benchmark.name][str(shots)] = _result(benchmark, shots, requests, scorer, config, overlap)
        done += len(requests)
    progress(done, total, "evaluated")
    return found


def benchmark_requests(benchmark: Benchmark, shots: Shots, config: BenchmarkConfig) -> list[Request]:
    """Return one request for each choice of each question."""
    task, drawn = benchmark.task, _drawn(benchmark.task, benchmark.definition.shots(shots), config)
    return [r for e in task.examples for r in requests_about(task, e, drawn(e))]


def _result(
    benchmark: Benchmark,
    shots: Shots,
    requests: list[Request],
    scorer: Likelihoods,
    config: BenchmarkConfig,
    overlap: Overlap | None,
) -> dict[str, Any]:
    of, task = benchmark.definition, benchmark.task
    answers = ask(scorer, requests)
    alone = None
    if task.unconditional is not None:
        alone = ask(scorer, [Request(task.unconditional, r.continuation) for r in requests])
    result = result_of(task, answers, config=config, seed=config.seed, alone=alone)
    correct = next(iter(right(task, answers, alone).values()))
    percent = {"published": of.published.get(str(shots)), "gpt3": of.gpt3.get(str(shots))}
    result |= {
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
        **{key: None if value is None else round(value / 100, 4) for key, value in percent.items()},
        "by_group": by_group(task.examples, correct, confidence=config.confidence),
    }
    if overlap is not None:
        result["contamination"] = split_result(overlap.flags(task.examples), correct, confidence=config.confidence)
    return result


def _drawn(task: Task, number: int, config: BenchmarkConfig) -> Callable[[Example], list[Example]]:
    """Return the function that chooses the shots of a question. With "once", all questions of a task share their
    shots, which are taken from examples that are not questions."""
    if config.shots_drawn == "each":
        return choose_shots(task, shots=number, seed=config.seed)
    apart = replace(task, pool=others_than(task.examples, task.pool))
    same = choose_shots(apart, shots=number, seed=config.seed)(Example("the same for all", "", "", ("",), 0))
    return lambda example: same


def series_of(found: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return {task: {shots: score}}, a point of the curve against training tokens: accuracies, and the fields that
    tell which of them are comparable."""
    keys = ("accuracy", *COMPARABLE)
    return {task: {s: {key: r[key] for key in keys} for s, r in by_shots.items()} for task, by_shots in found.items()}


def question_digests(benchmarks: Sequence[Benchmark], config: BenchmarkConfig | IncontextConfig) -> dict[str, str]:
    """Return {label: hash} of every task's questions and answers, and of its solved examples if shots are drawn.

    Hosts with equal hashes ask identical questions. The labels appear in the message about hosts that differ.
    """
    digests = {}
    for benchmark in benchmarks:
        task, digest = benchmark.task, hashlib.sha256()
        draws = any(benchmark.definition.shots(shots) for shots in config.shots)
        for e in (*task.examples, *(task.pool if draws else ())):
            content = (e.id, e.document, e.context, e.contexts, e.choices, e.answer, dict(e.groups))
            digest.update(repr(content).encode("utf-8", "surrogatepass"))
        digests[f"questions of task {benchmark.name}"] = digest.hexdigest()[:16]
    return digests


def examiner_of(benchmarks: Sequence[Benchmark], tokenizer: Tokenizer, config: BenchmarkConfig) -> Examiner:
    """Return the function that a training run calls to evaluate tasks, with its stages, plan, mesh and heartbeat.

    It returns the results of `evaluate_benchmarks`, identical on every rank. It reads the training's weights in
    place and changes no parameter, mode or random state.
    """

    def examine(stages: Mapping[int, Stage], plan: Plan, mesh: Mesh, alive: Alive) -> dict[str, Any]:
        scorer = NativeScorer(WholeModel.sharing(stages, plan, mesh), tokenizer, lambda done, total, note: alive())
        return evaluate_benchmarks(benchmarks, scorer, config)

    return examine
