"""Preferences train as an ordinary step whose targets have signed weights, and every layout computes the same."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from pairs import FORMULAS, Weights, loss_of, plan_of_pairs, reader
from ranks import on_ranks
from trivium.certify.certificate import _capture, _gradients
from trivium.certify.plain import first_weights
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.errors import DataError
from trivium.objectives.config import ObjectiveConfig
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.tokens.rows import Rows
from trivium.training import pairs
from trivium.training.trainer import Samples, Trainer

SEED, OTHER = 7, 8  # of the model's weights, and of the reference's
Expected = tuple[list[float], Weights]


def objective(method: str, **settings: Any) -> Any:
    return ObjectiveConfig(method=method, settings=settings).made()


def trainer_of(plan: Plan, method: str, mesh: Mesh | None = None) -> Trainer:
    return Trainer(plan, mesh or Mesh.single(), seed=SEED, rule=AdamRule(), objective=objective(method))


def expected_of(plan: Plan, method: str, other: int = OTHER) -> Expected:
    """Return loss and gradients of the first batch by autograd through the plain model."""
    model, samples = plan.model, range(plan.batch.sequences)
    weights = {name: x.requires_grad_() for name, x in first_weights(model, SEED).items()}
    loss = loss_of(method, weights, model, samples, first_weights(model, other))
    gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    whole = {
        name: torch.zeros_like(weights[name]) if found is None else found
        for name, found in zip(weights, gradients, strict=True)
    }
    return [loss.item()], whole


def agrees(trainer: Trainer, expected: Expected, read: Any) -> None:
    """Check the first step of a trainer, and the validation before it, against loss and gradients."""
    plan, (losses, whole) = trainer.plan, expected
    batch = Samples(0, plan.batch.sequences, read)
    assert trainer.validate(batch)["loss"] == pytest.approx(losses[0], rel=1e-10)
    captured = _capture(trainer)
    result = trainer.train_step(0, batch, 1e-3)
    assert result.loss == pytest.approx(losses[0], rel=1e-10)
    worst = max(_gradients(trainer, captured, dict(whole), 1e-4), key=lambda d: d.value)
    assert worst.value < 1e-10, worst


@pytest.mark.parametrize("method", FORMULAS)
def test_a_step_has_the_loss_and_the_gradients_of_autograd_through_the_formula(method: str) -> None:
    plan = plan_of_pairs()
    agrees(trainer_of(plan, method), expected_of(plan, method), reader(plan.model, first_weights(plan.model, OTHER)))


LAYOUTS: list[dict[str, Any]] = [
    {"data": 2, "zero": 1},
    {"data": 2, "zero": 3},
    {"tensor": 2},
    {"tensor": 2, "sequence_parallel": True},
    {"context": 2},
    {"pipeline": 2},
    {"pipeline": 2, "schedule": "zb-h1"},
    {"data": 2, "model": {"adapters": [{"match": "*"}]}},
    {"pipeline": 2, "chunks": 2, "model": {"layers": 4, "head": "untied"}, "schedule": "zb-turns"},
]


def on_a_rank(place: Place, plan: Plan, method: str, expected: Expected, read: Any) -> None:
    mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
    agrees(trainer_of(plan, method, mesh), expected, read)


@pytest.mark.broad
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_layout_computes_what_one_process_computes(layout: dict[str, Any]) -> None:
    """Uneven pairs are divided by those of the global batch: data ranks have 3 and 4 of them."""
    method = "kto" if layout.get("data") == 2 else "dpo"  # the drift of KTO is a mean over data ranks
    plan = plan_of_pairs(**layout)
    read = reader(plan.model, first_weights(plan.model, OTHER))
    on_ranks(plan.layout.world_size, on_a_rank, plan, method, expected_of(plan, method), read)


def test_the_loss_is_exactly_ln_2_where_the_model_is_the_reference() -> None:
    plan = plan_of_pairs()
    trainer = trainer_of(plan, "dpo")
    own = trainer.log_probabilities(Samples(0, 8, reader(plan.model)))
    rows = reader(plan.model)(0, 8)._replace(beside={pairs.REFERENCE: own})
    result = trainer.train_step(0, Samples(0, 8, lambda first, count: rows), 1e-3)
    assert result.loss == math.log(2)
    assert result.losses["reward_margin"] == 0 and result.losses["reward_accuracy"] == 0.5
    after = trainer.validate(Samples(0, 8, lambda first, count: rows))
    assert after["loss"] < math.log(2) and after["reward_margin"] > 0 and after["reward_accuracy"] > 0.5


def test_weights_of_targets_are_half_of_beta_where_the_model_is_the_reference() -> None:
    plan = plan_of_pairs()
    rows = reader(plan.model)(0, 3)
    each = np.zeros(rows.targets.shape)
    found = pairs.weighed(
        objective("dpo", beta=0.4), rows._replace(beside={pairs.REFERENCE: each}), range(3), each, Mesh.single()
    )
    assert found.pairs == 3
    expected = np.select([rows.weights == 1, rows.weights == 2], [0.2, -0.2], 0)
    np.testing.assert_allclose(found.rows.weights, expected, rtol=1e-15)


def test_a_batch_without_pairs_has_no_gradient() -> None:
    plan = plan_of_pairs(batch={"sequences": 2})
    read = reader(plan.model, first_weights(plan.model, OTHER))

    def without(first: int, count: int) -> Any:
        rows = read(first, count)
        return rows._replace(weights=np.zeros_like(rows.weights))

    result = trainer_of(plan, "dpo").train_step(0, Samples(0, 2, without), 1e-3)
    assert result.loss == 0 and result.gradient_norm == 0


def test_a_pair_with_equal_completions_has_no_gradient() -> None:
    plan = plan_of_pairs(batch={"sequences": 2})
    text = np.zeros((2, plan.model.sequence + 1), np.int64)
    text[:, :8] = [9, 5, 6, 3, 9, 5, 6, 3]
    codes = np.zeros(text.shape, np.float32)
    codes[:, 1:4], codes[:, 5:8] = 1, 2
    rows = Rows.of_text(text, codes)._replace(beside={pairs.REFERENCE: np.zeros((2, plan.model.sequence))})
    result = trainer_of(plan, "dpo").train_step(0, Samples(0, 2, lambda first, count: rows), 1e-3)
    assert result.gradient_norm < 1e-12 and result.losses["reward_margin"] == pytest.approx(0, abs=1e-12)


def test_a_pair_that_is_split_over_samples_is_refused() -> None:
    plan = plan_of_pairs()
    read = reader(plan.model, first_weights(plan.model, OTHER))

    def split(first: int, count: int) -> Any:
        rows = read(first, count)
        return rows._replace(weights=np.where(rows.weights == 2, 0, rows.weights))

    with pytest.raises(DataError, match=r"sample 0 has a chosen completion without its rejected one"):
        trainer_of(plan, "dpo").train_step(0, Samples(0, 8, split), 1e-3)


@pytest.mark.parametrize("fault", ["mean", "sign", "replica"])
def test_the_oracle_finds_seeded_faults(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean in the place of a sum over tokens, a wrong sign of the weights, and a division by other than all pairs."""
    plan = plan_of_pairs()
    right = pairs.weighed

    def wrong(method: Any, rows: Any, numbers: Any, each: np.ndarray, mesh: Mesh) -> Any:
        if fault == "mean":
            length = np.maximum(1, (rows.weights != 0).sum(1, keepdims=True))
            beside = {pairs.REFERENCE: rows.beside[pairs.REFERENCE] / length}
            return right(method, rows._replace(beside=beside), numbers, each / length, mesh)
        found = right(method, rows, numbers, each, mesh)
        if fault == "sign":
            return found._replace(rows=found.rows._replace(weights=-found.rows.weights))
        return found._replace(pairs=found.pairs / 2)

    monkeypatch.setattr("trivium.training.trainer.weighed", wrong)
    with pytest.raises(AssertionError):
        agrees(trainer_of(plan, "dpo"), expected_of(plan, "dpo"), reader(plan.model, first_weights(plan.model, OTHER)))
