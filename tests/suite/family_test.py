"""The sizes of a family, their checkpoints, and what makes their batches equal."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.config import read_preset
from trivium.errors import ConfigError
from trivium.plan.plan import Plan
from trivium.suite.curves import same_batches
from trivium.suite.family import checkpoint_steps, chosen, order_of, order_problems, schedule, sizes_of

PUBLISHED = [0, *(2**n for n in range(10)), *range(1000, 143_001, 1000)]
SIZES = ("14m", "31m", "70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b")


def test_a_training_of_the_published_length_has_the_published_warm_up_and_154_checkpoints() -> None:
    assert len(PUBLISHED) == 154
    for preset in sizes_of("pythia").values():
        plan, training = Plan.from_preset(preset), read_preset(preset)["training"]
        found = schedule(plan, training["steps"])
        assert found["training.warmup_tokens"] == training["warmup_tokens"]
        assert found["training.milestones"] == found["training.checkpoint_every"] == 1000
        assert training["milestones"] == "pythia"
    assert checkpoint_steps(143_000, 1000) == checkpoint_steps(143_000, "pythia") == PUBLISHED


@settings(max_examples=25)
@given(st.integers(1, 143_000))
def test_a_shorter_training_has_at_most_154_checkpoints_from_its_first_to_its_last_step(steps: int) -> None:
    found = checkpoint_steps(steps, schedule(Plan.from_preset("pythia-14m"), steps)["training.milestones"])
    assert found == sorted(set(found)) and (found[0], found[-1]) == (0, steps)
    assert len(found) <= 154


def test_sizes_are_chosen_by_name_and_ordered_by_parameters() -> None:
    assert tuple(sizes_of("pythia")) == SIZES
    assert list(chosen("pythia", " 160m,14M,14m")) == ["14m", "160m"]
    with pytest.raises(ConfigError, match="--sizes 1600m: pythia has 14m, .* 12b; did you mean '160m'"):
        chosen("pythia", "14m,1600m")
    with pytest.raises(ConfigError, match="there is no suite 'pythias'; did you mean 'pythia'"):
        chosen("pythias", "14m")
    with pytest.raises(ConfigError, match="names no size"):
        chosen("pythia", ",")


def test_all_published_sizes_have_one_order_of_samples_and_another_batch_seed_or_sequence_is_another_order() -> None:
    plans = {size: Plan.from_preset(preset) for size, preset in sizes_of("pythia").items()}
    assert order_problems({size: order_of(plan, 1234, 143_000) for size, plan in plans.items()}) == []
    small, other = plans["14m"], Plan.from_preset("pythia-14m", "batch.sequences=512", "model.sequence=1024")
    orders = {"14m": order_of(small, 1, 10), "31m": order_of(small, 2, 10), "70m": order_of(other, 1, 10)}
    found = order_problems(orders)
    assert len(found) == 3 and "31m would not be trained on the batches of 14m (seed: 1 -> 2)" in found[0]


def test_batches_are_compared_in_every_step_that_two_sizes_have_done() -> None:
    hashes = {"14m": {1: "a", 2: "b", 3: "c"}, "31m": {1: "a", 2: "x"}}
    assert same_batches(hashes) == {"compared": 2, "differ": [2]}
    assert same_batches({"14m": {1: "a"}}) == {"compared": 0, "differ": []}
