"""Routers in a training step: their losses are means over the batch, biases follow loads, and loads are logged."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chaos.scene import SEED, VOCABULARY, write_tokens
from plans import small
from trivium.certify.reference import random_rows
from trivium.checkpoint.load import Checkpoint
from trivium.cli import metrics as verb
from trivium.comms.mesh import Mesh
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.tokens.rows import Rows
from trivium.training.config import TrainingConfig
from trivium.training.loop import TrainingJob
from trivium.training.metrics import METRICS, last_step, read
from trivium.training.routers import LayerLoad
from trivium.training.state import restore, save_state
from trivium.training.supervision.job import start
from trivium.training.trainer import Samples, StepResult, Trainer

MODEL = {"layers": 2, "norm": "rms_norm", "feed_forward": "experts", "bias": "none", "positions": "rotary"}
RATE = 0.01


def plan(experts: dict[str, Any], weights: str = "fp64", model: dict[str, Any] = {}, **more: Any) -> Plan:
    own = {"count": 4, "chosen": 2, "columns": 8, **experts}
    return small(model={**MODEL, "experts": own, **model}, precision={"weights": weights}, **more)


def trainer(of: Plan, rule: AdamRule = AdamRule()) -> Trainer:
    return Trainer(of, Mesh.single(), seed=4, rule=rule)


def batch(of: Trainer, weights: np.ndarray | None = None) -> Samples:
    reader = random_rows(of.plan)

    def read_weighted(first: int, count: int) -> Rows:
        rows = reader(first, count)
        return rows if weights is None else rows._replace(weights=rows.weights * weights[first : first + count])

    return Samples(0, of.plan.batch.sequences, read_weighted)


def step(of: Trainer, number: int = 0, weights: np.ndarray | None = None, **more: Any) -> StepResult:
    return of.train_step(number, batch(of, weights), 1e-3, **more)


def biases(of: Trainer) -> torch.Tensor:
    named = dict(of.stages[0].named_parameters())
    return torch.stack([named[f"layers.{n}.mlp.router.bias"].detach().clone() for n in range(2)])


def router_gradients(of: Trainer, weights: np.ndarray | None = None) -> list[torch.Tensor]:
    """Return the gradients of the routers' weights after a step. weights: how much each target counts."""
    seen: dict[int, torch.Tensor] = {}
    of.optimizer.on_reduced = lambda number, gradient: seen.update({number: gradient.clone()})
    step(of, weights=weights)
    slots = [
        (number, slot)
        for number, bucket in enumerate(of.trained)
        for slot in bucket.slots
        if slot.row.name.endswith("router.weight")
    ]
    return [seen[number][slot.start : slot.stop] for number, slot in slots]


def directions(result: StepResult) -> torch.Tensor:
    loads = [[sum(load.counts) / 4 - count for count in load.counts] for load in result.loads.values()]
    return torch.tensor(loads, dtype=torch.float64).sign()


# Losses


@pytest.mark.parametrize("name", ["balance_loss", "router_z_loss"])
def test_validation_has_none_and_training_tells_them_apart_from_the_loss(name: str) -> None:
    here, without = trainer(plan({name: 0.1})), trainer(plan({}))
    assert here.validate(batch(here)) == without.validate(batch(without))
    ours, theirs = step(here), step(without)
    assert ours.loss == theirs.loss and ours.gradient_norm != theirs.gradient_norm
    assert set(ours.losses) == {"loss", name} and ours.losses[name] > 0


@pytest.mark.parametrize("convention", ["megatron", "transformers"])
@pytest.mark.parametrize("scope", ["sequence", "global_batch"])
def test_accumulation_changes_neither_value_nor_gradient(scope: Any, convention: Any) -> None:
    """A balance loss over micro-batches is another one for other micro-batches; that over the batch is not."""
    own = {"balance_loss": 0.1, "balance_scope": scope, "balance_convention": convention}
    whole, parts = (trainer(plan(own, batch={"sequences": 8, "micro": micro})) for micro in (8, 2))
    one, several = step(whole), step(parts)
    assert one.losses["balance_loss"] == pytest.approx(several.losses["balance_loss"], rel=1e-12)
    assert one.gradient_norm == pytest.approx(several.gradient_norm, rel=1e-12)


def test_a_balance_loss_over_micro_batches_is_their_mean() -> None:
    of = trainer(plan({"balance_loss": 0.1}, batch={"sequences": 4, "micro": 2}))
    reader = random_rows(of.plan)
    each = []
    for first in (0, 2):
        part = trainer(plan({"balance_loss": 0.1}, batch={"sequences": 2, "micro": 2}))
        each.append(part.train_step(0, Samples(first, 2, reader), 1e-3).losses["balance_loss"])
    assert step(of).losses["balance_loss"] == pytest.approx(sum(each) / 2, rel=1e-12)


def test_gradients_of_routers_do_not_depend_on_how_many_targets_count() -> None:
    """A balance loss is a mean over tokens: tuning on few targets must not make it larger."""
    own = {"balance_loss": 0.1, "router_z_loss": 0.1}
    shape = (16, 8)
    few, many = np.zeros(shape), np.ones(shape)
    few[0, 0] = 1.0
    none = router_gradients(trainer(plan(own)), np.zeros(shape))
    for weights in (few, many):
        both = router_gradients(trainer(plan(own)), weights)
        alone = router_gradients(trainer(plan({})), weights)
        for expected, with_losses, without in zip(none, both, alone, strict=True):
            torch.testing.assert_close(with_losses - without, expected, rtol=1e-9, atol=1e-12)
    assert all(float(gradient.abs().max()) > 1e-6 for gradient in none)


def test_a_loss_scale_leaves_values_and_gradients_as_they_are() -> None:
    own = {"balance_loss": 0.1, "router_z_loss": 0.01}
    half, whole = trainer(plan(own, "fp16")), trainer(plan(own, "fp32"))
    ours, theirs = step(half), step(whole)
    for name, value in theirs.losses.items():
        assert ours.losses[name] == pytest.approx(value, rel=5e-3), name
    assert ours.gradient_norm == pytest.approx(theirs.gradient_norm, rel=2e-2)


# Biases


@pytest.mark.parametrize("weights", ["fp64", "fp32", "bf16"])
def test_biases_move_towards_an_even_load_after_each_step(weights: str) -> None:
    """Biases are in fp32 even if weights are bf16, which would lose a step of this size."""
    of = trainer(plan({"bias_rate": RATE, "scores": "sigmoid"}, weights))
    first = step(of)
    assert torch.equal(biases(of), (RATE * directions(first)).to(biases(of).dtype))
    assert biases(of).dtype == (torch.float64 if weights == "fp64" else torch.float32)
    second = step(of, 1)
    expected = RATE * (directions(first) + directions(second))
    torch.testing.assert_close(biases(of).double(), expected, rtol=1e-6, atol=1e-9)
    assert second.loads != first.loads


def test_directions_sum_to_zero_without_a_load_that_is_the_mean_and_even_loads_move_nothing() -> None:
    of = trainer(plan({"bias_rate": RATE}))
    routers = of._routers
    assert routers is not None
    loads = torch.tensor([[5, 1, 4, 2, 0], [3, 3, 3, 3, 0]], dtype=torch.float64)
    routers.update_biases(loads.flatten())
    assert biases(of).tolist() == [[-RATE, RATE, -RATE, RATE], [0, 0, 0, 0]]


def test_a_refused_step_moves_no_bias() -> None:
    of = trainer(plan({"bias_rate": RATE}))
    step(of, accepts=lambda totals: False)
    assert not biases(of).any()
    step(of, 1)
    assert biases(of).any()


def test_a_step_that_overflows_moves_no_bias() -> None:
    of = trainer(plan({"bias_rate": RATE}, "fp16"))
    assert of.loss_scale is not None
    of.loss_scale.value = 2.0**40
    step(of)
    assert not biases(of).any() and of.optimizer.steps_done == 0


def test_a_step_without_clipping_moves_biases_too() -> None:
    of = trainer(plan({"bias_rate": RATE}), AdamRule(clip=0.0))
    result = step(of)
    assert torch.equal(biases(of), RATE * directions(result))


@pytest.mark.parametrize(
    "frozen",
    [
        {"model": {"adapters": ({"match": "*attention.qkv"},)}},
        {"optimizer": {"groups": ({"match": "*.router.*", "trainable": False},)}},
    ],
    ids=["adapters", "group"],
)
def test_a_frozen_router_keeps_its_bias(frozen: dict[str, Any]) -> None:
    of = trainer(plan({"bias_rate": RATE}, **frozen))
    step(of)
    assert not biases(of).any()


def test_a_resumed_training_goes_on_with_its_biases(tmp_path: Path) -> None:
    own = {"bias_rate": RATE, "balance_loss": 0.01, "balance_scope": "sequence", "scores": "sigmoid"}
    unbroken = trainer(plan(own, "bf16"))
    step(unbroken)
    saved = save_state(unbroken, tmp_path, 1)
    resumed = trainer(plan(own, "bf16"))
    restore(resumed, Checkpoint.open(saved))
    assert torch.equal(biases(resumed), biases(unbroken)) and biases(resumed).any()
    assert step(unbroken, 1).losses == step(resumed, 1).losses
    assert torch.equal(biases(resumed), biases(unbroken))


# Loads


def test_loads_conserve_tokens_and_recomputation_counts_them_once() -> None:
    plain, again = (trainer(plan({}, recompute={"mode": mode})) for mode in ("none", "layer"))
    loads = step(plain).loads
    assert loads == step(again).loads
    tokens = 16 * 8
    assert list(loads) == [0, 1] and all(sum(load.counts) == 2 * tokens for load in loads.values())


def test_load_has_entropy_and_largest_over_mean() -> None:
    assert LayerLoad((2, 2, 2, 2)).told() == {"largest": 1.0, "entropy": 1.0, "shares": [0.25] * 4}
    assert LayerLoad((8, 0), 3).told() == {"largest": 2.0, "entropy": 0.0, "shares": [1.0, 0.0], "dropped": 3}
    assert LayerLoad((7,)).told() == {"largest": 1.0, "entropy": 1.0, "shares": [1.0]}


def test_metrics_have_loads_of_every_step_and_the_result_has_the_losses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"balance_loss": 0.1, "router_z_loss": 0.01}
    of = plan(own, "fp32", {"vocabulary": VOCABULARY, "first": [{"feed_forward": "gated"}]}, batch={"sequences": 8})
    config = TrainingConfig(steps=3, validation_samples=8, restarts=0)
    start(TrainingJob(of, config, SEED, write_tokens(tmp_path), tmp_path / "training"))
    path = tmp_path / "training" / METRICS
    steps = [m for m in read(path) if "loss" in m]
    assert [list(m["experts"]) for m in steps] == [["1"]] * 3  # layer 0 is dense
    for record in steps:
        (load,) = record["experts"].values()
        assert sum(load["shares"]) == pytest.approx(1, abs=0.01) and len(load["shares"]) == 4
        assert load["largest"] >= 1 and 0 <= load["entropy"] <= 1 and "dropped" not in load
        assert record["balance_loss"] > 0 and record["router_z_loss"] > 0
    result = json.loads((tmp_path / "training" / "result.json").read_text())
    assert result["final_balance_loss"] == steps[-1]["balance_loss"]
    verb.metrics([tmp_path])
    shown = capsys.readouterr().out.splitlines()
    largest = max(load["largest"] for load in steps[-1]["experts"].values())
    assert shown[0].split()[-1] == "load" and max(map(len, shown)) <= 80
    assert any(line.split()[0] == "3" and line.split()[-1] == f"{largest:.2f}" for line in shown)


def test_the_newest_steps_are_found_behind_long_lines(tmp_path: Path) -> None:
    """A line with the loads of 60 layers of 256 experts has 100 kB."""
    many = {"experts": {str(n): LayerLoad(tuple(range(1, 257))).told() for n in range(60)}}
    path = tmp_path / METRICS
    path.write_text("".join(json.dumps({"step": n, "loss": 1.0, **many}) + "\n" for n in (1, 2, 3)))
    assert last_step(path) == 3
