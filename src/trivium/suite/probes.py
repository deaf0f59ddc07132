"""The probes of every checkpoint of every size: tasks, in-context learning, bias and memorisation."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trivium.config import to_tree
from trivium.evaluation.benchmark import Benchmark, evaluate_benchmarks, question_digests
from trivium.evaluation.bias.config import BiasConfig
from trivium.evaluation.bias.run import measure as measure_bias
from trivium.evaluation.config import BenchmarkConfig, EvaluationConfig
from trivium.evaluation.incontext import Study
from trivium.evaluation.incontext import measure as measure_incontext
from trivium.evaluation.run import evaluate
from trivium.evaluation.tasks.passages import VERSIONS
from trivium.progress import Progress, silent
from trivium.provenance import file_sha256, fingerprint
from trivium.serving.writer import Writer
from trivium.suite.sequences import Sequences, context_gain, memorisation

VERSION = 2  # rises when a probe changes what it measures
_OF_TASKS = ("accuracy", "interval", "chance", "n", "nats_per_byte")
_OF_SHOTS = ("accuracy", "interval", "calibration_error", "majority_bias", "recency_bias")


@dataclass(frozen=True)
class Questions:
    """items: passages held out of the corpus, or None. benchmarks: published tasks, asked as `asking` says. study: of
    the first multiple-choice task among them, or None. bias_files: the hash of each file that `bias` names."""

    evaluation: EvaluationConfig
    items: Path | None
    benchmarks: Sequence[Benchmark]
    asking: BenchmarkConfig
    study: Study | None
    bias: BiasConfig
    bias_files: Mapping[str, str]
    sequences: Sequences
    seed: int

    @property
    def key(self) -> str:
        """Return a hash of everything that decides the answers, besides the checkpoint."""
        return fingerprint(
            {
                "version": VERSION,
                "evaluation": to_tree(self.evaluation),
                "items": file_sha256(self.items) if self.items else None,
                "asking": to_tree(self.asking),
                "passages": {name: VERSIONS[name] for name in self.evaluation.tasks},
                "tasks": [(b.name, b.definition.version) for b in self.benchmarks],
                "questions": question_digests(self.benchmarks, self.asking),
                "study": to_tree(self.study.config) if self.study else None,
                "studied": question_digests([self.study.benchmark], self.study.config) if self.study else None,
                "bias": to_tree(self.bias),
                "bias files": self.bias_files,
                "sequences": fingerprint(asdict(self.sequences)),
                "seed": self.seed,
            }
        )


def probe(questions: Questions, writer: Writer, step: int, progress: Progress = silent) -> dict[str, Any]:
    """Ask a checkpoint of `step` steps everything; docs/formats/results.md describes the result."""
    tasks: dict[str, Any] = {}
    if questions.items is not None:
        found = evaluate(questions.evaluation, writer, questions.items, seed=questions.seed, progress=progress)
        tasks |= _scores(found["tasks"])
    if questions.benchmarks:
        tasks |= _scores(evaluate_benchmarks(questions.benchmarks, writer, questions.asking, progress=progress))
    bias = measure_bias(questions.bias, writer, seed=questions.seed, progress=progress)
    return {
        "tasks": tasks,
        "context": context_gain(questions.sequences, writer.scorer),
        "incontext": _incontext(questions.study, writer, progress),
        "bias": bias.results["effects"],
        "memorisation": memorisation(questions.sequences, writer.scorer, step),
    }


def _scores(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        task: {shots: {name: result[name] for name in _OF_TASKS} for shots, result in by_shots.items()}
        for task, by_shots in tasks.items()
    }


def _incontext(study: Study | None, writer: Writer, progress: Progress) -> dict[str, Any] | None:
    if study is None:
        return None
    found = measure_incontext(study, writer, progress)
    shots = {k: {name: measured.get(name) for name in _OF_SHOTS} for k, measured in found["shots"].items()}
    return {"task": study.benchmark.name, "n": found["n"], "chance": found["chance"], "shots": shots}
