"""Certificates of more steps, layers and micro-batches than any counter of the engine may be bounded by."""

import math
from collections import Counter
from typing import Any, get_args

import pytest

from faults import steps
from faults.run import CATALOGUE
from plans import small
from ranks import on_ranks
from trivium.certify.certificate import Certificate, certificate, examine
from trivium.certify.courses import LARGEST_SCALE, LONG, LONG_STEPS, OVERFLOWS, PlainScale, rate, schedules
from trivium.certify.layouts import ROTARY
from trivium.certify.random_plans import random_plans
from trivium.certify.reduce import DEEP_LAYERS, MANY_MICRO_BATCHES, MAX_LONG_RANKS, reduced
from trivium.certify.reference import compute_reference, recipe_of, sizes_until, tokens_after
from trivium.certify.ways import DEEP, EVERY_WAY, IN_TURN, LONG_WAY, MANY, WAYS, Way
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.kernels import dropout as randomness
from trivium.model import initialise
from trivium.plan.plan import Plan
from trivium.training.config import DecayName, FinalDecayShape, TrainingConfig
from trivium.training.loss_scale import LossScale

LONGER = (LONG_WAY, DEEP, MANY)
LLAMA = {**ROTARY, "kv_heads": 2, "hidden": 32, "head": "untied", "ffn": 24}
DROPOUT = {"dropout": 0.2}
RAMP = {"ramp": {"start": 2, "increment": 2, "samples": 6}, "sequences": 6, "micro": 1}
PLANS = [reduced(plan) for plan in (small(), small(model=LLAMA), small(model=DROPOUT, batch=RAMP))]


def _certified(plan: Plan, way: Way, mesh: Mesh | None = None) -> Certificate:
    shaped = way.shaped(plan)
    with way.taken():
        found = examine(shaped, mesh or Mesh.single(), compute_reference(shaped, way.course), way)
    return certificate(shaped, found.deviations, way)


@pytest.mark.parametrize("way", LONGER, ids=lambda way: way.name)
@pytest.mark.parametrize("plan", PLANS, ids=["gpt", "llama", "ramp"])
def test_steps_layers_and_micro_batches_agree_with_the_plain_model(plan: Plan, way: Way) -> None:
    found = _certified(plan, way)
    assert found.passed, str(found.first)


def _on_a_rank(place: Place, plan: Plan, way: Way) -> None:
    shaped = way.shaped(plan)
    mesh = Mesh.connect(shaped.layout, place.rank, place.world_size)
    found = _certified(plan, way, mesh)
    assert found.passed, str(found.first)


@pytest.mark.parametrize(
    ("degrees", "way"),
    [
        ({"pipeline": 2, "data": 1}, LONG_WAY),
        ({"data": 2, "zero": 1}, LONG_WAY),
        pytest.param({"tensor": 2, "sequence_parallel": True}, DEEP, marks=pytest.mark.broad),
        pytest.param({"pipeline": 2, "chunks": 2}, DEEP, marks=pytest.mark.broad),
        pytest.param({"pipeline": 2, "schedule": "zb-h1"}, MANY, marks=pytest.mark.broad),
        pytest.param({"data": 2, "zero": 3}, DEEP, marks=pytest.mark.broad),
    ],
)
def test_they_agree_on_two_ranks(degrees: dict[str, Any], way: Way) -> None:
    on_ranks(2, _on_a_rank, reduced(small(**degrees, model=DROPOUT)), way)


@pytest.mark.parametrize(
    "fault",
    [
        m
        if m.name in ("correction-stops-growing", "masks-repeat-every-fourth-step")
        else pytest.param(m, marks=pytest.mark.slow)
        for m in CATALOGUE[steps]
    ],
    ids=lambda m: m.name,
)
def test_a_fault_of_later_steps_passes_three_steps_and_fails_the_long_course(fault: Any) -> None:
    plan = small(batch={"sequences": 4, "micro": 1}) if fault.plans[0].batch.ramp is None else fault.plans[0]
    with fault.applied(Mesh.single()):
        assert not _certified(plan, LONG_WAY).passed
        if plan.batch.ramp is None:
            assert _certified(plan, WAYS[0]).passed


@pytest.mark.parametrize("plan", [*PLANS, *random_plans(25, 8, seed=5)])
def test_the_longer_plans_are_legal_and_larger_where_they_should_be(plan: Plan) -> None:
    long, deep, many = (way.shaped(plan) for way in LONGER)
    for way, shaped in zip(LONGER, (long, deep, many), strict=True):
        assert shaped.check() == [] and way.shaped(shaped) == shaped
    assert long.model.dropout > 0 and long.model.layers <= plan.model.layers
    assert long.layout.world_size <= max(MAX_LONG_RANKS, plan.layout.world_size // plan.layout.data)
    assert (long.batch.ramp is None) == (plan.batch.ramp is None)
    assert deep.model.layers >= DEEP_LAYERS and deep.layout == plan.layout == many.layout
    if plan.schedule != "given":
        assert many.batch.micro_batches(many.layout) >= MANY_MICRO_BATCHES


def test_the_long_course_clips_overflows_and_follows_a_schedule_to_its_end() -> None:
    plan = LONG_WAY.shaped(PLANS[2])
    tokens, rates = tokens_after(plan, LONG), recipe_of(plan, LONG).lrs
    assert len(tokens) == len(rates) == LONG_STEPS >= 64 > max(OVERFLOWS)
    assert rates[0] < max(rates) and rates[-1] == pytest.approx(0.1 * max(rates), rel=0.05)
    ramp = plan.batch.ramp
    assert ramp is not None and 32 < len(sizes_until(plan.batch, ramp.samples)) < LONG_STEPS
    scale, values = PlainScale(1024.0), []
    for step in range(LONG_STEPS):
        if step in OVERFLOWS:
            scale.overflowed()
        scale.finite()
        values.append(scale.value)
    assert max(values) == LARGEST_SCALE > values[0] > min(values)


def test_one_plan_goes_every_way_and_a_sweep_takes_all_of_them_in_turn() -> None:
    assert set(EVERY_WAY) == set(IN_TURN) == {*WAYS, *LONGER}
    assert set(Counter(way.name for way in IN_TURN if way in WAYS).values()) == {9}


def test_the_schedules_are_of_every_kind_of_decay() -> None:
    every = schedules(1000).values()
    assert {each.decay for each in every} == set(get_args(DecayName))
    assert {s.final_decay_shape for s in every if s.decay == "wsd"} == set(get_args(FinalDecayShape))
    assert {each.decay_tokens > 0 for each in every} == {True, False}


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ("cosine", {50: 0.5, 100: 1.0, 300: 0.6 + 0.4 / math.sqrt(2), 500: 0.6, 900: 0.2, 2000: 0.2}),
        ("linear", {50: 0.5, 100: 1.0, 300: 0.8, 500: 0.6, 900: 0.2, 2000: 0.2}),
        ("constant", {50: 0.5, 100: 1.0, 300: 1.0, 2000: 1.0}),
        ("inverse_sqrt", {50: 0.5, 100: 1.0, 400: 0.5, 1600: 0.25, 10000: 0.2}),
        ("wsd", {50: 0.5, 100: 1.0, 500: 1.0, 600: 0.6, 900: 0.2, 2000: 0.2}),
    ],
)
def test_the_plain_rate_has_the_values_of_its_formula(decay: str, expected: dict[int, float]) -> None:
    """Peak 1, final rate 0.2; the warm-up ends at 100 and the decay at 900; for wsd it starts at 500, as 1-sqrt."""
    final = {"final_decay_tokens": 400} if decay == "wsd" else {}
    recipe = TrainingConfig(lr=1.0, lr_final_fraction=0.2, warmup_tokens=100, decay_tokens=900, decay=decay, **final)
    assert {n: rate(recipe, n, 5000) for n in expected} == pytest.approx(expected)


def test_the_plain_loss_scale_is_the_engines_with_the_same_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, engine = PlainScale(1024.0), LossScale(1024.0)
    with LONG_WAY.taken():
        for step in range(200):
            finite = step % 23 != 11
            engine.update(finite=finite)
            plain.finite() if finite else plain.overflowed()
            assert engine.value == plain.value, step


def test_every_parameter_layer_step_sample_and_place_has_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the engine, names that differ in anything have different seeds, and each name is used once."""
    names: list[tuple[Any, ...]] = []
    seeds: list[int] = []

    def spy(*given: Any) -> int:
        names.append(given)
        seeds.append(right(*given))
        return seeds[-1]

    right = randomness.seed_for
    for module in (randomness, initialise):
        monkeypatch.setattr(module, "seed_for", spy)
    plan = DEEP.shaped(reduced(small(model=DROPOUT)))
    reference = compute_reference(plan)
    examine(plan, Mesh.single(), reference)
    layers, samples, done = plan.model.layers, plan.batch.sequences, len(reference.losses)
    matrices = 2 + 4 * layers
    assert len(names) == len(set(names)) == len(set(seeds)) == matrices + (1 + 2 * layers) * samples * done
