"""The reference of preferences is computed once, stored with the hash of its weights, and refused for others."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chaos.scene import SEED
from plans import small
from ranks import on_ranks
from tokens.chat.conversations import bare
from trivium.checkpoint.format import published
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.errors import CheckpointError, DataError
from trivium.objectives.preferences.losses import MEASURES
from trivium.plan.plan import Plan
from trivium.plan.precision import Precision
from trivium.tokens.chat.conversation import Pair, Turn
from trivium.tokens.chat.pairs import write_pairs
from trivium.tokens.chat.shard import PackSettings
from trivium.tokens.chat.template import read_template
from trivium.tokens.samples import TokenDataset
from trivium.training.config import TrainingConfig
from trivium.training.lineage.replay import replay_to
from trivium.training.loop import Loop, TrainingJob
from trivium.training.metrics import METRICS, read
from trivium.training.rank import observers_of
from trivium.training.record import CHECKPOINTS, read_record

LENGTH = 128


def pairs(count: int) -> list[Pair]:
    """Pairs that prefer the answer "yes", of different lengths."""
    return [
        Pair(
            (Turn("user", f"{n} " * (n % 3 + 1)),),
            (Turn("assistant", "yes"),),
            (Turn("assistant", "no" * (n % 4 + 1)),),
            f"p.jsonl:{n}",
        )
        for n in range(count)
    ]


def written(out: Path, count: int = 24) -> Path:
    out.mkdir()
    template = read_template(None, bare())
    write_pairs(pairs(count), out, template, bare(), PackSettings(LENGTH, SEED, 0.2))
    return out


def plan_for(**more: Any) -> Plan:
    tokenizer = bare()
    model = {"vocabulary": tokenizer.vocabulary, "end_of_text": tokenizer.end_of_text, "documents": "apart"}
    model |= {"sequence": LENGTH, "layers": 2, **more.pop("model", {})}
    return small(model=model, batch={"sequences": 4, "micro": 2}, precision={"weights": "fp64"}, **more)


def job(tokens: Path, out: Path, steps: int = 2, *, plan: Plan | None = None, **training: Any) -> TrainingJob:
    given = {"objective": {"method": "dpo"}, "steps": steps, "checkpoint_every": 1, "validate_every": 1}
    given |= {"decay": "constant", "validation_samples": 2, "keep_last": 9, **training}
    out.mkdir(exist_ok=True)
    return TrainingJob(plan or plan_for(), TrainingConfig(**given), SEED, tokens, out)


def train(given: TrainingJob, mesh: Mesh | None = None) -> list[dict[str, Any]]:
    mesh = mesh or Mesh.single()
    Loop(given, mesh, observers_of(given, mesh, lambda: None)).run()
    return read(given.out / METRICS)


def test_the_first_loss_is_ln_2_and_a_training_logs_rewards_and_resumes(tmp_path: Path) -> None:
    tokens = written(tmp_path / "tokens")
    records = train(job(tokens, tmp_path / "run", 1))
    steps = [r for r in records if "lr" in r]
    assert steps[0]["loss"] == math.log(2) and steps[0]["reward_margin"] == 0 and steps[0]["reward_accuracy"] == 0.5
    assert steps[0]["log_probability_chosen"] < 0
    validated = [r for r in records if "validation_loss" in r]
    assert validated[-1]["validation_loss"] < math.log(2) and validated[-1]["validation_reward_margin"] > 0
    before = (tokens / "reference.json").stat().st_mtime_ns
    resumed = train(job(tokens, tmp_path / "run", 3))
    whole = train(job(tokens, tmp_path / "other", 3))
    assert (tokens / "reference.json").stat().st_mtime_ns == before
    losses = [[r["loss"] for r in of if "lr" in r] for of in (resumed, whole)]
    assert losses[0] == losses[1] and losses[0][-1] < math.log(2)


def test_the_reference_is_the_model_at_the_start_with_the_adapters_it_has_by_then(tmp_path: Path) -> None:
    tokens = written(tmp_path / "tokens")
    stored = tokens / "train-conversations.reference-reference"

    def first_loss(name: str, **more: Any) -> float:
        for path in tokens.glob("*reference*"):
            path.unlink()
        return train(job(tokens, tmp_path / name, 2, lr=0.05, **more))[0]["loss"]

    plan = plan_for(model={"adapters": [{"match": "*"}]})
    assert first_loss("bare") == math.log(2)
    bare = np.fromfile(stored)
    assert first_loss("run", plan=plan) == math.log(2)
    np.testing.assert_allclose(np.fromfile(stored), bare, rtol=1e-13)  # new adapters change nothing
    start = str(published(tmp_path / "run" / CHECKPOINTS)[-1])
    assert first_loss("next", plan=plan, start_from=start) == math.log(2)
    assert abs(np.fromfile(stored) - bare).max() > 1e-6


def test_a_reference_of_another_checkpoint_is_refused(tmp_path: Path) -> None:
    tokens = written(tmp_path / "tokens")
    train(job(tokens, tmp_path / "run", 1))
    start = str(published(tmp_path / "run" / CHECKPOINTS)[-1])
    with pytest.raises(
        CheckpointError, match=r"reference\.json was computed by the weights .* delete .*reference\.json"
    ):
        train(job(tokens, tmp_path / "next", 1, start_from=start))
    (tokens / "reference.json").unlink()
    assert train(job(tokens, tmp_path / "next", 1, start_from=start))[0]["loss"] == math.log(2)


def test_a_lost_or_damaged_reference_is_refused(tmp_path: Path) -> None:
    tokens = written(tmp_path / "tokens")
    train(job(tokens, tmp_path / "run", 1))
    numbers = tokens / "validation-conversations.reference-reference"
    numbers.write_bytes(numbers.read_bytes()[:-8] + b"\1" * 8)
    with pytest.raises(DataError, match=r"validation-conversations\S* is missing or was damaged"):
        train(job(tokens, tmp_path / "run", 2))
    (tokens / "reference.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no reference\.json any more"):
        train(job(tokens, tmp_path / "run", 2))


def test_tokens_of_pairs_and_of_text_are_not_taken_for_each_other(tmp_path: Path) -> None:
    tokens = written(tmp_path / "tokens")
    with pytest.raises(DataError, match=r"has preference pairs, and training.objective.method next_token takes text"):
        train(job(tokens, tmp_path / "run", objective={"method": "next_token"}))
    manifest = json.loads((tokens / "manifest.json").read_text())
    manifest["packed"]["train"].pop("pairs")
    (tokens / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="has no preference pairs, and training.objective.method dpo takes pairs"):
        train(job(tokens, tmp_path / "run"))


def test_pairs_are_written_whole_and_those_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    tmp_path.joinpath("tokens").mkdir()
    long = pairs(1)[0]._replace(chosen=(Turn("assistant", "yes" * 200),))
    settings = PackSettings(LENGTH, SEED, 0.2)
    manifest = write_pairs([*pairs(24), long], tmp_path / "tokens", read_template(None, bare()), bare(), settings)
    counts = manifest["packed"]
    assert counts["train"]["pairs"] + counts["validation"]["pairs"] == 24
    assert counts["train"]["too_long"] + counts["validation"]["too_long"] == 1
    data = TokenDataset.open(tmp_path / "tokens", "train", sequence=LENGTH, seed=1)
    assert set(np.unique(data.rows(0, data.num_samples).weights).tolist()) == {0, 1, 2}


def on_a_rank(place: Place, given: TrainingJob) -> None:
    mesh = Mesh.connect(given.plan.layout, place.rank, place.world_size, ends=given.plan.ends)
    train(given, mesh)


@pytest.mark.broad
@pytest.mark.parametrize("layout", [{"data": 2, "zero": 3}, {"pipeline": 2}, {"context": 2}, {"tensor": 2}], ids=str)
def test_a_layout_computes_the_reference_and_trains_as_one_process(layout: dict[str, Any], tmp_path: Path) -> None:
    found = []
    for name, plan in (("one", plan_for()), ("several", plan_for(**layout))):
        given = job(written(tmp_path / f"tokens-{name}"), tmp_path / name, 3, plan=plan)
        on_ranks(plan.layout.world_size, on_a_rank, given)
        found.append([r["loss"] for r in read(given.out / METRICS) if "lr" in r])
    assert found[1] == pytest.approx(found[0], rel=1e-10) and found[1][0] == pytest.approx(math.log(2), abs=1e-12)


def test_a_step_is_replayed_with_its_objective(tmp_path: Path) -> None:
    tokens = written(tmp_path / "tokens")
    logged = [r for r in train(job(tokens, tmp_path / "run", 3)) if "lr" in r]
    replay = replay_to(read_record(tmp_path / "run"), 3)
    assert dict(replay.advance().losses) == {name: pytest.approx(logged[2][name]) for name in ("loss", *MEASURES)}


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_the_first_loss_is_ln_2_in_other_precisions(weights: str, tmp_path: Path) -> None:
    plan = plan_for().model_copy(update={"precision": Precision(weights=weights)})
    assert train(job(written(tmp_path / "tokens"), tmp_path / "run", 1, plan=plan))[0]["loss"] == math.log(2)
