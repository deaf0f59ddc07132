"""The validation loss does not depend on the layout; padding has no effect."""

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from plans import small
from ranks import on_ranks
from trivium.certify.reference import random_rows
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.tokens.rows import Rows
from trivium.training.batches import padded
from trivium.training.observers import validation
from trivium.training.trainer import Samples, Trainer

APART = {"documents": "apart", "end_of_text": 3}
# The first stage on the second rank, the second on the first.
SCATTERED = tuple(" ".join(f"{op}{m}.{stage}" for op in "FB" for m in range(4)) for stage in (1, 0))
COUNTS = (1, 5, 7)


def trainer(plan: Plan, mesh: Mesh) -> Trainer:
    return Trainer(plan, mesh, seed=4, rule=AdamRule())


def samples(plan: Plan, count: int) -> Samples:
    """There are no more: who reads past them has asked for what no dataset holds."""
    read = random_rows(plan)

    def read_what_is_there(first: int, number: int) -> Rows:
        assert first >= 0 and number > 0 and first + number <= count, f"{first} + {number} of {count} samples"
        return read(first, number)

    return Samples(0, count, read_what_is_there)


def in_fp64(**more: Any) -> Plan:
    return small(precision={"weights": "fp64"}, **more)


@cache
def of_one_process(documents: str) -> tuple[float, ...]:
    plan = in_fp64(model=APART if documents == "apart" else {}, batch={"micro": 1})
    alone = trainer(plan, Mesh.single())
    return tuple(alone.validate(samples(plan, count))["loss"] for count in COUNTS)


@pytest.mark.broad
@pytest.mark.parametrize("documents", ["joined", "apart"])
@pytest.mark.parametrize(
    "layout",
    [
        {"batch": {"micro": 4}},
        {"data": 4},  # with micro-batches of two, two replicas read nothing but padding
        {"data": 2, "pipeline": 2, "zero": 3},
        {"pipeline": 2, "chunks": 2},
        {"pipeline": 2, "schedule": "given", "rows": SCATTERED, "batch": {"sequences": 8}},
        {"context": 2, "data": 2},
        {"tensor": 2, "sequence_parallel": True},
        {"pipeline": 2, "chunks": 2, "schedule": "zb-turns"},
    ],
    ids=str,
)
def test_every_layout_gives_the_loss_of_one_process(layout: dict[str, Any], documents: str) -> None:
    plan = in_fp64(model=APART if documents == "apart" else {}, **layout)
    on_ranks(plan.layout.world_size, validates, plan, of_one_process(documents))


def validates(place: Place, plan: Plan, expected: tuple[float, ...]) -> None:
    mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
    here = trainer(plan, mesh)
    found = [here.validate(samples(plan, count))["loss"] for count in COUNTS]
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("model", [{}, {"z_loss": 1e-3}, APART], ids=str)
def test_padding_has_no_effect_on_a_training_step(model: dict[str, Any]) -> None:
    told = []
    for micro, sequences in ((1, 3), (4, 4)):
        plan = in_fp64(model=model, batch={"micro": micro, "sequences": sequences})
        three = samples(plan, 3).padded_to(micro)
        result = trainer(plan, Mesh.single()).train_step(0, three, 1e-3)
        told.append((*result.losses.values(), result.gradient_norm))
    assert told[1] == pytest.approx(told[0], rel=1e-12)


def test_padding_repeats_the_last_sample_with_weight_0() -> None:
    """Something that the model can read: ids that are none, or rows of zeros that it never saw, may be anything."""
    numbers = np.arange(6).reshape(3, 2)

    def of_numbers(first: int, count: int) -> Rows:
        part = numbers[first : first + count]
        return Rows(part, -part, np.full(part.shape, 7, np.float32))

    read = padded(of_numbers, 3)
    for first, count, rows in ((0, 2, [0, 1]), (1, 4, [1, 2, 2, 2]), (2, 1, [2]), (3, 2, [2, 2]), (9, 1, [2])):
        tokens, targets, weights, *_ = read(first, count)
        assert (tokens == numbers[rows]).all() and (targets == -numbers[rows]).all()
        there = max(0, min(3 - first, count))
        assert (weights[:there] == 7).all() and not weights[there:].any()


@pytest.mark.parametrize(("rank", "warnings"), [(0, 1), (1, 0), (7, 0)])
def test_one_rank_warns_of_fewer_samples_than_were_wanted(
    rank: int, warnings: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = SimpleNamespace(num_samples=5, rows=None)
    monkeypatch.setattr(validation, "dataset_of", lambda job, split: data)
    for wanted, expected in ((5, 0), (6, warnings)):
        job = SimpleNamespace(training=SimpleNamespace(validation_samples=wanted))
        assert validation.Validation(job, SimpleNamespace(rank=rank)).samples.sequences == 5
        assert capsys.readouterr().err.count("all validation samples are used: 5 instead of 6") == expected
