"""Evaluation of published tasks during training: it changes nothing, and its results are the checkpoint's."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from evaluation.benchmark_test import HANS
from plans import EXPERTS, small
from tokens.curated import tokenized
from trivium.errors import TriviumError
from trivium.evaluation.answer import NativeScorer
from trivium.evaluation.benchmark import evaluate_benchmarks, examiner_of, prepare, question_digests
from trivium.evaluation.config import BenchmarkConfig
from trivium.evaluation.tasks.definition import definition
from trivium.evaluation.tasks.rows import Rows
from trivium.tokens.tokenizer import load_tokenizer
from trivium.training.config import TrainingConfig
from trivium.training.loop import TrainingJob
from trivium.training.metrics import EVENTS, METRICS, TASKS, read
from trivium.training.record import CHECKPOINTS
from trivium.training.supervision.job import start

ASKED = BenchmarkConfig(shots=(0, 1), limit=6, resamples=20, seed=5)
# All ways in which training may divide its weights: tensor, interleaved stages, ZeRO, and sequence.
LAYOUTS = {
    "interleaved, sequence split": {"tensor": 2, "pipeline": 2, "chunks": 2, "sequence_parallel": True},
    "v-shaped": {"pipeline": 2, "chunks": 2, "schedule": "zb-v"},
    "heads in turns": {"pipeline": 2, "chunks": 2, "schedule": "zb-turns"},
    "shared sequences, weights in slices": {"context": 2, "data": 2, "zero": 3},
    "sequences shared by the farthest ranks": {
        "context": 2,
        "pipeline": 2,
        "order": ("context", "pipeline", "data", "tensor"),
    },
    "experts in slices on two of four ranks": {"context": 2, "data": 2, "zero": 3, "expert": 2, "model": EXPERTS},
    "from the last rank to the first": {
        "pipeline": 2,
        "schedule": "given",
        "rows": ("F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1", "F0.0 F1.0 B0.0 F2.0 B1.0 F3.0 B2.0 B3.0"),
    },
}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("examined")
    return tokenized(root, {"prose": 40}, words=60, validation_fraction=0.2)


def job(tokens: Path, out: Path, every: int, **degrees) -> TrainingJob:
    model = {"vocabulary": 300, "layers": 4, "sequence": 32, "dropout": 0.1, **degrees.pop("model", {})}
    plan = small(model=model, batch={"sequences": 4, "micro": 1}, **degrees)
    training = TrainingConfig(
        steps=5, checkpoint_every=2, validation_samples=4, keep_last=5, evaluation={"every": every}
    )
    return TrainingJob(plan, training, 5, tokens, out)


def benchmarks():
    of = definition("hans")
    return [prepare(of, Rows(HANS, None, "set", "set"), ASKED)]


def digests(rows=HANS, shots=None, asked=ASKED) -> dict[str, str]:
    return question_digests([prepare(definition("hans"), Rows(rows, shots, "set", "set"), asked)], asked)


def test_digests_differ_exactly_if_questions_differ():
    assert digests() == digests([dict(row) for row in HANS]) and list(digests()) == ["questions of task hans"]
    asked = [e.context for e in benchmarks()[0].task.examples]
    changed = {}
    for number in range(len(HANS)):
        rows = [{**row, "premise": row["premise"] + "!" * (n == number)} for n, row in enumerate(HANS)]
        changed[number] = digests(rows, shots=HANS) != digests(HANS, shots=HANS)
        shots_only = digests(HANS, shots=rows)
        assert shots_only != digests(HANS, shots=HANS), "any solved example may become a shot"
        alone = ASKED.model_copy(update={"shots": (0,)})
        assert digests(HANS, rows, alone) == digests(HANS, HANS, alone), "without shots none is shown"
    assert sum(changed.values()) == len(asked) == ASKED.limit
    answers = [{**row, "gold_label": "entailment", "label": 0} for row in HANS]
    assert digests(answers) != digests()


def examined(tokens: Path, out: Path, **degrees) -> TrainingJob:
    examiner = examiner_of(benchmarks(), load_tokenizer(tokens / "tokenizer.json"), ASKED)
    return replace(job(tokens, out, 2, **degrees), examiner=examiner)


def of_steps(out: Path) -> dict:
    return {m["step"]: {k: m.get(k) for k in ("loss", "gradient_norm", "batch_hash")} for m in read(out / METRICS)
            if "loss" in m}  # fmt: skip


@pytest.mark.broad
@pytest.mark.parametrize("name", LAYOUTS)
def test_evaluation_changes_no_loss_and_equals_that_of_the_checkpoint(name, tokens, tmp_path):
    start(examined(tokens, tmp_path / "asked", **LAYOUTS[name]))
    start(job(tokens, tmp_path / "left alone", 0, **LAYOUTS[name]))
    assert of_steps(tmp_path / "asked") == of_steps(tmp_path / "left alone")
    told = read(tmp_path / "asked" / TASKS)
    assert [t["step"] for t in told] == [2, 4, 5]  # every second step, and the last
    assert not (tmp_path / "left alone" / TASKS).exists()
    for line in told[1:]:
        checkpoint = tmp_path / "asked" / CHECKPOINTS / f"step-{line['step']:08d}"
        scorer = NativeScorer.open(checkpoint, tokens / "tokenizer.json")
        expected = json.loads(json.dumps(evaluate_benchmarks(benchmarks(), scorer, ASKED)))
        for shots, result in expected["hans"].items():
            found = line["tasks"]["hans"][shots]
            assert found["nats_per_byte"] == pytest.approx(result["nats_per_byte"], rel=1e-5)
            for key in ("accuracy", "n", "prompt_hash", "truncated", "interval"):
                assert found[key] == result[key], key


@pytest.mark.broad
@pytest.mark.parametrize("cut", [3, 4])
def test_resumed_training_reports_each_step_once(tokens, tmp_path, cut):
    """Results of repeated steps are removed and then reported again, identically."""
    unbroken, broken = (examined(tokens, tmp_path / name) for name in ("unbroken", "broken"))
    whole = unbroken.training.model_copy(update={"decay_tokens": 10_000})
    start(replace(unbroken, training=whole))
    start(replace(broken, training=whole.model_copy(update={"steps": cut})))
    start(replace(broken, training=whole))
    told, expected = (
        [(t["step"], t["tokens"], t["tasks"]) for t in read(tmp_path / name / TASKS)] for name in ("broken", "unbroken")
    )
    assert [step for step, *_ in told] == sorted({2, 4, 5, cut})  # it was the last step
    assert [t for t in told if t[0] != 3] == expected


def test_interrupted_evaluation_is_repeated_without_losing_steps(tokens, tmp_path):
    """An evaluation may exceed the grace period, so the step is saved first and the resumed run evaluates first."""

    def cut_short(*_):
        raise RuntimeError("killed while it was evaluated")

    def of(name, examiner=None):
        given = examined(tokens, tmp_path / name)
        about = {"evaluation": {"every": 3}, "validate_every": 3, "restarts": 0}
        tree = given.training.model_dump() | about
        return replace(given, training=TrainingConfig(**tree), examiner=examiner or given.examiner)

    start(of("unbroken"))
    with pytest.raises(TriviumError, match="killed while"):
        start(of("broken", cut_short))
    start(of("broken"))
    assert [e["step"] for e in read(tmp_path / "broken" / EVENTS) if e["event"] == "resumed"] == [3]
    told, expected = (
        [(t["step"], t["tokens"], t["tasks"]) for t in read(tmp_path / name / TASKS)] for name in ("broken", "unbroken")
    )
    assert [step for step, *_ in told] == [3, 5] and told == expected
    judged = [m["step"] for m in read(tmp_path / "broken" / METRICS) if "validation_loss" in m]
    assert judged == [3, 5]
    assert of_steps(tmp_path / "broken") == of_steps(tmp_path / "unbroken")
