"""A plan whose ranks fail costs its own certificate and nobody else's."""

import pytest
import torch

from trivium.certify import sweep
from trivium.certify.certificate import Certificate
from trivium.certify.random_plans import random_plans
from trivium.certify.sweep import certify
from trivium.certify.ways import AS_IT_IS, LARGE
from trivium.comms.launch import ALONE
from trivium.plan.plan import Plan
from trivium.training.trainer import Trainer

PLANS = [p for p in random_plans(200, 2, seed=0) if p.layout.world_size == 2][:4]


def test_progress_names_the_mode_and_the_plan():
    said: list[tuple[int, int, str]] = []
    sweep._noted(lambda *done: said.append(done), 3, 9, LARGE, PLANS[:2])(1)
    assert said == [(4, 9, f"mode large: {sweep.describe(PLANS[1])}")]


@pytest.mark.broad
def test_ranks_that_break_fail_one_certificate_and_the_others_are_still_made(monkeypatch) -> None:
    bad = PLANS[1]
    right = Trainer.train_step

    def train_step(self, *given, **named):
        if self.plan.model == bad.model:
            raise ZeroDivisionError("this plan breaks")
        return right(self, *given, **named)

    monkeypatch.setattr(Trainer, "train_step", train_step)
    monkeypatch.setattr(sweep, "PLANS_TOGETHER", 3)  # the last one runs in ranks of its own anyway
    known: dict[int, Certificate] = {}
    found = certify(PLANS, timeout_seconds=60, on_known=known.__setitem__)
    assert [known[n] for n in range(len(PLANS))] == found
    assert [c.passed for c in found] == [p.model != bad.model for p in PLANS]
    failed = found[1]
    assert failed.error is not None and " of 2: " in failed.error and "this plan breaks" in failed.error
    assert failed.as_tree()["worst"] == "inf" and failed.by_quantity == {}
    assert Plan.model_validate(failed.plan) == bad
    assert [c.error for c in found if c.passed] == [None] * 3


def test_a_certificate_is_known_while_the_ranks_of_others_still_run() -> None:
    """An exception of on_known, as of Ctrl-C, ends the others."""
    known: list[int] = []

    def stop(number: int, found: Certificate) -> None:
        known.append(number)
        assert found.passed
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        certify(PLANS, timeout_seconds=60, on_known=stop)
    assert known == [0]


def test_ranks_certify_on_processors_also_where_there_are_accelerators(monkeypatch, tmp_path) -> None:
    chosen = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    sweep._certify_rank(ALONE, {}, AS_IT_IS, tmp_path)
    assert not chosen
