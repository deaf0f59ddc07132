"""Delayed scales are part of the state: a resumed training continues with the same bits."""

from pathlib import Path
from typing import Any

import pytest
import torch

from plans import small
from training_steps import losses
from trivium.certify.certificate import RULE
from trivium.checkpoint.load import Checkpoint
from trivium.comms.mesh import Mesh
from trivium.plan.plan import Plan
from trivium.training.amaxes import KIND
from trivium.training.state import restore, save_state
from trivium.training.trainer import Trainer


def delayed(weights: str = "bf16", **settings: Any) -> Plan:
    float8 = {"recipe": "delayed", "keep": ["first"], "history": 3, **settings}
    model = {"layers": 2, "hidden": 16, "heads": 2, "sequence": 8}
    return small(model=model, batch={"sequences": 2, "micro": 1}, precision={"weights": weights, "float8": float8})


def trainer_of(plan: Plan, seed: int = 1) -> Trainer:
    return Trainer(plan, Mesh.single(), seed=seed, rule=RULE)


def test_resumed_training_has_the_same_bits_and_without_the_history_others(tmp_path: Path) -> None:
    one, other, without = trainer_of(delayed()), trainer_of(delayed(), 2), trainer_of(delayed(), 3)
    losses(one, range(4))
    checkpoint = Checkpoint.open(save_state(one, tmp_path, 4))
    checkpoint.verify()
    for each in (other, without):
        restore(each, checkpoint)
    assert one.amaxes is not None and other.amaxes is not None and without.amaxes is not None
    assert torch.equal(one.amaxes.history, other.amaxes.history) and bool((one.amaxes.history > 0).all())
    without.amaxes.step.has_past = False
    expected = losses(one, range(4, 7))
    assert losses(other, range(4, 7)) == expected != losses(without, range(4, 7))


def test_history_is_of_the_last_steps_that_updated_the_weights_and_not_of_evaluations() -> None:
    trainer = trainer_of(delayed("fp32"))
    assert trainer.amaxes is not None and len(trainer.amaxes.names) == 4
    histories = []
    for step in range(5):
        losses(trainer, range(step, step + 1))
        histories.append(trainer.amaxes.history.clone())
    assert torch.equal(histories[-1][1:], histories[-2][:-1]), "the oldest step is forgotten"
    trainer.amaxes.begin_pass(1.0, training=False)
    assert torch.equal(trainer.amaxes._past, histories[-1].amax(0))
    trainer.amaxes._seen.fill_(9)
    trainer.amaxes.end_step(1.0, updated=False)
    assert torch.equal(trainer.amaxes.history, histories[-1]) and not trainer.amaxes._seen.any()


@pytest.mark.parametrize("history", [2, 5])
def test_history_of_another_length_keeps_the_newest_steps(tmp_path: Path, history: int) -> None:
    one, other = trainer_of(delayed()), trainer_of(delayed(history=history))
    losses(one, range(4))
    restore(other, Checkpoint.open(save_state(one, tmp_path, 4)))
    assert one.amaxes is not None and other.amaxes is not None
    kept = min(3, history)
    assert torch.equal(other.amaxes.history[:kept], one.amaxes.history[:kept]) and not other.amaxes.history[kept:].any()


def test_training_in_other_products_begins_a_history(tmp_path: Path) -> None:
    """After a change from bf16 to 8 bits or back, state that the other dtype does not have is ignored."""
    plan = delayed()
    exact = plan.model_copy(update={"precision": plan.precision.model_copy(update={"float8": None})})
    for first, second in ((exact, plan), (plan, exact)):
        one, other = trainer_of(first), trainer_of(second)
        losses(one, range(2))
        path = save_state(one, tmp_path / str(first.precision.float8 is None), 2)
        assert any(name.startswith(KIND) for name in Checkpoint.open(path).names) == (first is plan)
        restore(other, Checkpoint.open(path))
        assert other.amaxes is None or not other.amaxes.step.has_past
        losses(other, range(2, 3))
