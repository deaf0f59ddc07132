"""A z-loss applies to training alone and is reported next to the loss; a model without one computes nothing for it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from chaos.scene import SEED, VOCABULARY, write_tokens
from plans import small
from trivium.certify.reference import random_rows
from trivium.comms.mesh import Mesh
from trivium.model.inputs import Inputs
from trivium.parallel.sharding.zero import AdamRule
from trivium.parallel.tensor import regions as tensor
from trivium.parallel.tensor import vocabulary
from trivium.training.config import TrainingConfig
from trivium.training.loop import TrainingJob
from trivium.training.metrics import METRICS, read
from trivium.training.supervision.job import start
from trivium.training.trainer import Samples, Trainer

Z = 0.01


def trainer(z_loss: float, **more: Any) -> Trainer:
    model = {"z_loss": z_loss, **more.pop("model", {})}
    return Trainer(small(model=model, **more), Mesh.single(), seed=4, rule=AdamRule())


def batch(of: Trainer) -> Samples:
    read = random_rows(of.plan)
    return Samples(0, of.plan.batch.sequences, read)


def mean_by_logits(of: Trainer) -> float:
    """Return the mean over the tokens of the batch that count, from materialised logits."""
    tokens = random_rows(of.plan)(0, of.plan.batch.sequences).tokens
    rows = torch.from_numpy(tokens.copy())
    with torch.no_grad():
        logits = of.stages[0](None, Inputs(rows.T)).double()
    squares = Z * logits.logsumexp(-1).square().T
    apart = of.plan.model.documents == "apart"
    return float(squares[rows != of.plan.model.end_of_text].mean() if apart else squares.mean())


@pytest.mark.parametrize("weights", ["fp64", "fp32", "bf16", "fp16"])
def test_the_loss_that_is_told_is_that_without_one_and_gradients_are_of_both(weights: str) -> None:
    here, there = (trainer(z, precision={"weights": weights}) for z in (Z, 0.0))
    assert here.validate(batch(here)) == there.validate(batch(there))
    expected = mean_by_logits(here)
    ours, theirs = (t.train_step(0, batch(t), 1e-3) for t in (here, there))
    assert ours.loss == theirs.loss and ours.gradient_norm != theirs.gradient_norm
    rounding = {"fp64": 1e-12, "fp32": 1e-5, "bf16": 2e-2, "fp16": 3e-3}[weights]
    assert ours.losses["z_loss"] == pytest.approx(expected, rel=rounding) and set(theirs.losses) == {"loss"}


def test_tokens_that_do_not_count_are_not_in_it() -> None:
    """The blocks of the model add nothing, so that the scores of a token depend on that token alone."""
    here = trainer(Z, model={"documents": "apart", "end_of_text": 3, "layers": 1})
    for name, parameter in here.stages[0].named_parameters():
        if name.startswith(("layers", "embedding.positions")):
            parameter.data.zero_()
    expected = mean_by_logits(here)
    assert here.train_step(0, batch(here), 1e-3).losses["z_loss"] == pytest.approx(expected, rel=1e-5)


def test_where_there_is_none_nothing_is_done_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*given: Any) -> None:
        raise AssertionError(f"asked of {given}")

    for module in (tensor, vocabulary):
        for name in ("stretch", "with_terms"):
            monkeypatch.setattr(module, name, asked)
    without, other = trainer(0.0), trainer(Z)
    assert set(without.train_step(0, batch(without), 1e-3).losses) == {"loss"}
    with pytest.raises(Exception, match="asked of"):
        other.train_step(0, batch(other), 1e-3)


def test_metrics_have_a_figure_of_their_own_for_it(tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path)
    found = {}
    for z_loss in (0.0, Z):
        plan = small(model={"vocabulary": VOCABULARY, "z_loss": z_loss}, batch={"sequences": 8})
        config = TrainingConfig(steps=3, validation_samples=8, restarts=0)
        start(TrainingJob(plan, config, SEED, tokens, tmp_path / str(z_loss)))
        found[z_loss] = read(tmp_path / str(z_loss) / METRICS)
    steps = [m for m in found[Z] if "loss" in m]
    assert [m["step"] for m in steps] == [1, 2, 3] and all(m["z_loss"] > 0 for m in steps)
    assert not any("z_loss" in m for m in found[0.0])
    assert not any("z_loss" in m for m in found[Z] if "validation_loss" in m)
    assert steps[0]["loss"] == next(m["loss"] for m in found[0.0] if "loss" in m)
