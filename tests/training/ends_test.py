"""How a training ends, and trainings that must not begin."""

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest

from chaos.scene import job, plan, write_tokens
from plans import small
from trivium.cli.train import TRAIN
from trivium.errors import ConfigError, DataError
from trivium.tokens.manifest import read_tokens_manifest
from trivium.training import trainer
from trivium.training.loss_scale import LossScale
from trivium.training.metrics import METRICS
from trivium.training.record import CHECKPOINTS
from trivium.training.supervision.job import start
from trivium.training.verified_tokens import refuse_other_ids


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("ends"))


def test_fewer_steps_than_were_done_are_rejected(tokens: Path, tmp_path: Path) -> None:
    start(job(tokens, tmp_path, plan({}), steps=4))
    before = (tmp_path / "result.json").read_text()
    with pytest.raises(ConfigError, match=r"training\.steps \(3\) is below the 4 steps that .*step-00000004"):
        start(job(tokens, tmp_path, plan({}), steps=3))
    assert (tmp_path / "result.json").read_text() == before


def test_training_without_its_metrics_still_reports_its_end(tokens: Path, tmp_path: Path) -> None:
    given = job(tokens, tmp_path, plan({}), steps=4)
    done = start(given)
    (tmp_path / METRICS).unlink()
    again = start(given)
    assert again["validation_loss"] == done["validation_loss"] and done["final_loss"] > 0
    assert again["final_loss"] is None, "no step was done"


def test_separate_documents_need_the_end_of_text_id(tokens: Path) -> None:
    manifest = read_tokens_manifest(tokens)
    end = manifest["end_of_text"]
    for documents, there in (("apart", end), ("joined", end + 1)):
        refuse_other_ids(manifest, shape(documents, there), tokens)
    with pytest.raises(ConfigError, match=rf"plan\.model\.end_of_text is {end + 1}, but .* end with {end}"):
        refuse_other_ids(manifest, shape("apart", end + 1), tokens)
    (problem,) = shape("joined", 300).problems()
    assert problem.startswith("plan.model.end_of_text (300) must be one of the ids below")


def shape(documents: str, end_of_text: int) -> Any:
    model = small().model
    return model.model_copy(update={"vocabulary": 300, "documents": documents, "end_of_text": end_of_text})


def test_training_with_another_end_of_text_id_does_not_begin(tokens: Path, tmp_path: Path) -> None:
    of = plan({})
    model = of.model.model_copy(update={"documents": "apart", "end_of_text": 7})
    with pytest.raises(ConfigError, match="would separate none"):
        start(job(tokens, tmp_path, of.model_copy(update={"model": model}), steps=4))
    assert not (tmp_path / CHECKPOINTS).exists()


def plain(path: Path) -> list[dict[str, Any]]:
    """The records of a file in which every number is one that JSON has."""

    def refuse(word: str) -> NoReturn:
        raise AssertionError(f"{word} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def test_last_validation_loss_that_is_not_finite_fails_and_is_not_in_the_metrics(
    tokens: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(trainer.Trainer, "validate", lambda self, samples: {"loss": float("nan")})
    with pytest.raises(DataError, match="step 2: the validation loss is nan"):
        start(job(tokens, tmp_path, plan({}), steps=2))
    (validated,) = [r for r in plain(tmp_path / METRICS) if "loss" not in r]
    assert validated["step"] == 2 and "validation_loss" not in validated


def test_overflowing_steps_are_valid_json_and_in_the_summary(tokens: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(trainer, "LossScale", lambda: LossScale(2.0**60))
    summary = start(job(tokens, tmp_path, plan({}, weights="fp16"), steps=3))
    steps = [r for r in plain(tmp_path / METRICS) if "loss" in r]
    assert [(r["overflow"], r["loss_scale"]) for r in steps] == [(True, 2.0 ** (60 - n)) for n in (1, 2, 3)]
    assert not any("gradient_norm" in r for r in steps)
    assert any("3 of these steps changed nothing" in line for line in TRAIN.summary(summary))


def test_memory_of_thousands_of_ranks_is_printed_in_a_few_lines() -> None:
    different = ({"weights": float(rank)} for rank in range(2240))
    ranks = [
        {"rank": rank, "coordinate": {"pipeline": rank}, "categories": counted, "predicted": counted}
        for rank, counted in enumerate(different)
    ]
    loss = {"validation_loss": 1.0, "unigram_entropy": 2.0}
    result = loss | {"parameters": 1, "steps": 1, "tokens": 1, "memory": ranks, "layout": plan({}).layout.model_dump()}
    lines = TRAIN.summary(result)
    assert len(lines) <= 12 and lines[-1].endswith("more ranks in training/summary.json")
