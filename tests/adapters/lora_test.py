"""What holds for LoRA, DoRA and LoRA-GGPO in particular."""

import math
from typing import Any

import pytest
import torch

from plans import small
from trivium.certify.reference import random_rows
from trivium.comms.mesh import Mesh
from trivium.kernels.dropout import DropoutKey
from trivium.model.inputs import Inputs
from trivium.model.layers.linear import Linear
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.training.trainer import Samples, Trainer

FP64 = {"weights": "fp64"}


def adapted(kind: str, **settings: Any) -> Plan:
    return small(model={"layers": 2, "adapters": [{"kind": kind, "settings": settings}]}, precision=FP64)


def trained(plan: Plan, steps: int) -> Trainer:
    trainer = Trainer(plan, Mesh.single(), seed=1, rule=AdamRule())
    for step in range(steps):
        trainer.train_step(step, Samples(step * 16, 16, random_rows(plan)), 1e-2)
    return trainer


def layers_of(trainer: Trainer) -> dict[str, Linear]:
    modules = trainer.stages[0].named_modules()
    return {name: m for name, m in modules if isinstance(m, Linear) and m.adapter is not None}


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in trainer.stages[0].named_parameters()}


def test_a_begins_uniform_within_the_inverse_root_of_its_inputs_and_b_with_zeros() -> None:
    for layer in layers_of(trained(adapted("lora", r=64), 0)).values():
        a, b = (layer.adapter.get_parameter(name) for name in "ab")
        bound = 1 / math.sqrt(a.shape[1])
        assert float(a.detach().abs().max()) <= bound and not b.any()
        errors = math.sqrt(a.numel()) * float(a.mean()) / (bound / math.sqrt(3))
        assert abs(errors) < 5 and float(a.std()) == pytest.approx(bound / math.sqrt(3), rel=0.05)


def test_rslora_is_lora_with_alpha_times_the_root_of_r() -> None:
    one = trained(adapted("lora", r=4, alpha=6.0, rslora=True), 2)
    other = trained(adapted("lora", r=4, alpha=12.0), 2)
    for name, weight in weights_of(one).items():
        torch.testing.assert_close(weight, weights_of(other)[name], rtol=1e-12, atol=1e-12)


def test_dropout_is_off_in_validation() -> None:
    plan = adapted("lora", dropout=0.5)
    without = adapted("lora")
    one, other = trained(plan, 2), trained(without, 0)
    for name, weight in weights_of(one).items():
        other.stages[0].get_parameter(name).data.copy_(weight)
    samples = Samples(64, 16, random_rows(plan))
    assert one.validate(samples) == other.validate(samples)
    assert one.accumulate(2, samples).losses["loss"] != other.accumulate(2, samples).losses["loss"]


def test_merged_dora_has_the_magnitudes_as_norms_of_its_rows() -> None:
    for layer in layers_of(trained(adapted("dora"), 2)).values():
        added = dict(layer.adapter.named_parameters())
        merged = layer.adapter.adapter.merged(layer.weight, added)
        torch.testing.assert_close(merged.norm(dim=-1), added["m"].abs(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", ["lora", "lora_ggpo"])
def test_unmerging_what_was_merged_restores_the_weight_to_rounding(kind: str) -> None:
    for layer in layers_of(trained(adapted(kind), 2)).values():
        added, adapter = dict(layer.adapter.named_parameters()), layer.adapter.adapter
        merged = adapter.merged(layer.weight, added)
        assert not torch.equal(merged, layer.weight)
        torch.testing.assert_close(adapter.unmerged(merged, added), layer.weight.detach(), rtol=0, atol=1e-14)


def test_lora_ggpo_without_noise_is_lora_to_the_bit() -> None:
    one, other = trained(adapted("lora_ggpo", sigma=0, beta=0), 3), trained(adapted("lora"), 3)
    ours = weights_of(one)
    assert all(torch.equal(weight, ours[name]) for name, weight in weights_of(other).items())


def test_noise_of_a_row_has_the_deviation_of_its_norms() -> None:
    """sigma ‖W + s B A‖ + beta ‖s (B dA + dB A)‖², over the root of the number of rows."""
    settings = {"sigma": 0.3, "beta": 2.0}
    trainer = trained(adapted("lora_ggpo", **settings), 1)
    before, captured = weights_of(trainer), {}
    trainer.optimizer.on_reduced = lambda n, gradient: captured.update({n: gradient.clone()})
    plan = trainer.plan
    clip = trainer.optimizer.rule.clip
    norm = trainer.train_step(1, Samples(16, 16, random_rows(plan)), 1e-2).gradient_norm
    factor = clip / (norm + 1e-6) if norm > clip else 1.0
    gradients = {
        slot.row.name: captured[n][slot.start : slot.stop].view(slot.parameter.shape) * factor
        for n, shard in enumerate(trainer.optimizer.shards)
        for slot in shard.bucket.slots
    }
    for name, layer in layers_of(trainer).items():
        w, a, b = (before[f"{name}.{x}"] for x in ("weight", "adapter.a", "adapter.b"))
        d_a, d_b = (gradients[f"{name}.adapter.{x}"] for x in "ab")
        s = layer.adapter.adapter.scale
        g = (s * (b @ d_a + d_b @ a)).norm(dim=-1)
        expected = (0.3 * (w + s * b @ a).norm(dim=-1) + 2.0 * g**2) / math.sqrt(len(w))
        torch.testing.assert_close(layer.adapter.get_parameter("deviation").detach(), expected, rtol=1e-10, atol=0)


def test_variance_of_the_noise_is_that_of_the_formula() -> None:
    """Within 3 standard errors, of draws of 200 steps."""
    trainer = trained(adapted("lora_ggpo"), 1)
    layer = layers_of(trainer)["layers.0.mlp.up"]

    def weight(step: int) -> torch.Tensor:
        key = DropoutKey(1, step, (0,), 8)
        return layer.adapter.weight(layer.weight, Inputs(torch.zeros(8, 1, dtype=torch.int64), dropout=key)).detach()

    noise = torch.stack([weight(step) - layer.weight.detach() for step in range(200)])
    deviation = layer.adapter.get_parameter("deviation").detach()
    draws = noise.shape[0] * noise.shape[2]
    errors = (noise.square().mean(dim=(0, 2)) / deviation**2 - 1) / math.sqrt(2 / draws)
    assert float(deviation.min()) > 0
    # Of as many rows, some lie beyond 3 standard errors by chance; the mean of all does not.
    assert abs(float(errors.mean())) * math.sqrt(len(errors)) < 3 and float((errors.abs() < 3).double().mean()) > 0.97
    again = layer.adapter.weight(layer.weight, Inputs(torch.zeros(8, 1, dtype=torch.int64)))
    assert again is layer.weight  # no noise in evaluation
    assert torch.equal(weight(3), weight(3))
