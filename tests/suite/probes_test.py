"""Probes that have been made are kept only as long as the same questions would be asked."""

from dataclasses import replace

import pytest

from evaluation.benchmark_test import HANS
from trivium.evaluation.benchmark import prepare
from trivium.evaluation.bias.config import BiasConfig
from trivium.evaluation.config import BenchmarkConfig, EvaluationConfig, IncontextConfig
from trivium.evaluation.incontext import study_of
from trivium.evaluation.tasks.definition import definition
from trivium.evaluation.tasks.passages import VERSIONS
from trivium.evaluation.tasks.rows import Rows
from trivium.suite.probes import Questions
from trivium.suite.sequences import Sequences, Trained

ASKED = BenchmarkConfig(shots=(0, 1))
HEARD = [{**row, "hypothesis": "Nobody heard it ."} for row in HANS]  # other texts with the same ids


def benchmark(rows, shots=HANS):
    return prepare(definition("hans"), Rows(rows, shots, "set", "set"), ASKED)


def study(rows, shots=HANS):
    return study_of(definition("hans"), Rows(rows, shots, "set", "set"), IncontextConfig(shots=(0, 1)))


@pytest.fixture
def questions() -> Questions:
    return Questions(
        evaluation=EvaluationConfig(),
        items=None,
        benchmarks=[benchmark(HANS)],
        asking=ASKED,
        study=study(HANS),
        bias=BiasConfig(),
        bias_files={"jobs.txt": "1"},
        sequences=Sequences(1, (Trained(0, 1, [1, 2]),), ([3, 4],)),
        seed=1,
    )


def test_key_changes_with_the_contents_of_questions_and_files(questions: Questions, monkeypatch) -> None:
    others = [
        {"benchmarks": [benchmark(HEARD)]},
        {"benchmarks": [benchmark(HANS, HEARD)]},
        {"study": study(HEARD)},
        {"study": study(HANS, HEARD)},
        {"bias_files": {"jobs.txt": "2"}},
        {"sequences": replace(questions.sequences, heldout=([3, 5],))},
    ]
    keys = {questions.key, *(replace(questions, **other).key for other in others)}
    assert len(keys) == 1 + len(others)
    assert replace(questions, benchmarks=[benchmark(HANS)], study=study(HANS)).key == questions.key
    before = questions.key
    monkeypatch.setitem(VERSIONS, "names", VERSIONS["names"] + 1)
    assert questions.key != before
