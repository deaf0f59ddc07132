import pytest

from plans import small
from trivium.errors import ConfigError
from trivium.planner.campaign import Rates, campaign, steps_by_batch
from trivium.planner.published import mt_nlg_plan


def ramped():
    return small(data=2, batch={"sequences": 32, "ramp": {"start": 8, "increment": 8, "samples": 200}})


@pytest.mark.parametrize("tokens", [1, 64, 65, 3000])
def test_the_steps_are_those_the_trainer_takes(tokens):
    """Counted one by one, as the training loop does; of a sequence that is begun, all is trained on."""
    plan = ramped()
    step = seen = 0
    sizes: dict[int, int] = {}
    while seen * plan.model.sequence < tokens:
        size = plan.batch.at(step).sequences
        sizes[size] = sizes.get(size, 0) + 1
        seen, step = seen + size, step + 1
    assert steps_by_batch(plan, tokens) == list(sizes.items())


def test_a_training_inside_the_ramp_never_reaches_the_full_batch():
    plan = ramped()
    assert [size for size, _ in steps_by_batch(plan, 8 * plan.model.sequence)] == [8]


def test_the_time_is_the_sum_over_the_ramp_and_each_size_is_priced_once():
    plan, asked = ramped(), []

    def seconds(sequences):
        asked.append(sequences)
        return 0.5 + sequences / 100

    found = campaign(plan, 3000, seconds, devices=4)
    by_hand = sum(n * (0.5 + size / 100) for size, n in steps_by_batch(plan, 3000))
    assert found.seconds == pytest.approx(by_hand) and asked == sorted(set(asked))
    assert found.device_hours == pytest.approx(by_hand / 3600 * 4)


def test_energy_and_price_follow_device_hours():
    found = campaign(small(), 10_000, lambda _: 3600.0, 10, rates=Rates(watts=500.0, price_per_hour=2.0))
    assert found.kilowatt_hours == pytest.approx(0.5 * found.device_hours)
    assert found.price == pytest.approx(2.0 * found.device_hours)
    unknown = campaign(small(), 10_000, lambda _: 3600.0, 10)
    assert unknown.kilowatt_hours is None and unknown.price is None


def test_lost_time_lengthens_the_training_and_adds_no_steps():
    plain = campaign(small(), 10_000, lambda _: 1.0, 1)
    losing = campaign(small(), 10_000, lambda _: 1.0, 1, lost_fraction=0.1)
    assert losing.seconds == pytest.approx(1.1 * plain.seconds) and losing.steps == plain.steps


def test_mt_nlg_takes_about_as_many_steps_as_published():
    """270B tokens, 1,920 sequences of 2,048 tokens, from 32 by 32 over the first 12B (arXiv 2201.11990)."""
    steps = sum(n for _, n in steps_by_batch(mt_nlg_plan().model_copy(), 270 * 10**9))
    full_batches = 270e9 / (1920 * 2048)
    assert steps >= full_batches


def test_no_tokens_are_refused():
    with pytest.raises(ConfigError, match="--tokens is 0"):
        campaign(small(), 0, lambda _: 1.0, 1)
