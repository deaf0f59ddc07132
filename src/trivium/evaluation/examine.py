"""Evaluate published tasks during training, on the ranks that train the model."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trivium.comms.mesh import Mesh
from trivium.evaluation.answer import NativeScorer
from trivium.evaluation.benchmark import Benchmark, evaluate_benchmarks
from trivium.evaluation.config import BenchmarkConfig
from trivium.model.stage import Stage
from trivium.model.whole import WholeModel
from trivium.plan.plan import Plan
from trivium.tokens.tokenizer import Tokenizer

Alive = Callable[[], None]
Examiner = Callable[[Mapping[int, Stage], Plan, Mesh, Alive], dict[str, Any]]


def examiner_of(benchmarks: Sequence[Benchmark], tokenizer: Tokenizer, config: BenchmarkConfig) -> Examiner:
    """Return the function that a training run calls to evaluate tasks, with its stages, plan, mesh and heartbeat.

    It returns the results of `evaluate_benchmarks`, identical on every rank. It reads the training's weights in
    place and changes no parameter, mode or random state.
    """

    def examine(stages: Mapping[int, Stage], plan: Plan, mesh: Mesh, alive: Alive) -> dict[str, Any]:
        scorer = NativeScorer(WholeModel.sharing(stages, plan, mesh), tokenizer, lambda *_: alive())
        return evaluate_benchmarks(benchmarks, scorer, config)

    return examine


def question_digests(benchmarks: Sequence[Benchmark], config: BenchmarkConfig) -> dict[str, str]:
    """Return {label: hash} of every task's questions and answers, and of its solved examples if shots are drawn.

    Hosts with equal hashes ask identical questions. The labels appear in the message about hosts that differ.
    """
    digests = {}
    for benchmark in benchmarks:
        task, digest = benchmark.task, hashlib.sha256()
        draws = any(benchmark.definition.shots(shots) for shots in config.shots)
        for one in (*task.examples, *(task.pool if draws else ())):
            told = (one.id, one.document, one.context, one.contexts, one.choices, one.answer, dict(one.groups))
            digest.update(repr(told).encode("utf-8", "surrogatepass"))
        digests[f"questions of task {benchmark.name}"] = digest.hexdigest()[:16]
    return digests
