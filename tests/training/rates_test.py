"""The learning rate is a function of tokens, as in the paper; contradictions in a config are rejected."""

import math
import re
from dataclasses import asdict
from typing import Any

import pytest

from plans import small
from trivium.parallel.sharding.zero import AdamRule
from trivium.training.config import TrainingConfig
from trivium.training.rates import ENDLESS, learning_rate, lr_of_step, rate_line, recipe_problems
from trivium.training.trainer import adam_rule

PAPER = TrainingConfig(lr=5e-5, warmup_tokens=10**9, decay_tokens=340 * 10**9)
PLAN = small(batch={"sequences": 20, "micro": 2}, model={"sequence": 8})  # 160 tokens a step


def test_rule_has_the_constants_of_the_config_whose_defaults_are_the_papers() -> None:
    """MT-NLG, section 3.2; clip and weight decay as in GPT-3."""
    expected = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1, "clip": 1.0}
    assert asdict(AdamRule()) == asdict(adam_rule(TrainingConfig())) == expected
    given = {name: value / 2 for name, value in expected.items()}
    assert asdict(adam_rule(TrainingConfig(**given))) == given


def test_rate_at_270_b_tokens_is_the_papers() -> None:
    assert learning_rate(PAPER, 270 * 10**9, 0) == pytest.approx(9.6e-6, rel=0.01)  # derived in the facts


def test_step_has_the_rate_of_the_tokens_consumed_at_its_end() -> None:
    ramp = {"start": 8, "increment": 8, "samples": 32}  # 8, 8, 16, then 24 sequences of 8 tokens
    plan = small(batch={"sequences": 24, "micro": 2, "ramp": ramp}, model={"sequence": 8})
    rising = TrainingConfig(lr=1.0, warmup_tokens=1000)
    rates = [lr_of_step(rising, plan, step) for step in range(5)]
    assert rates == pytest.approx([0.064, 0.128, 0.256, 0.448, 0.640])


def megatrons(config: TrainingConfig, tokens: int, last: int) -> float:
    """The rate as Megatron-LM's OptimizerParamScheduler.get_lr has it, in tokens where that has samples."""
    top, low = config.lr, config.lr * config.lr_final_fraction
    warmup, end = config.warmup_tokens, config.decay_tokens or last
    if warmup > 0 and tokens <= warmup:
        return top * tokens / warmup
    if config.decay == "constant":
        return top
    if config.decay == "inverse_sqrt":
        return max(low, top * max(warmup, 1) ** 0.5 / tokens**0.5)
    if tokens > end:
        return low
    ratio = (tokens - warmup) / (end - warmup)
    if config.decay == "linear":
        left = 1.0 - ratio
    elif config.decay == "cosine":
        left = 0.5 * (math.cos(math.pi * ratio) + 1.0)
    else:
        anneal = end - config.final_decay_tokens
        done = (tokens - anneal) / config.final_decay_tokens
        falls = 1.0 - done if config.final_decay_shape == "linear" else 1.0 - max(0.0, done) ** 0.5
        left = 1.0 if tokens <= anneal else falls
    return low + left * (top - low)


DECAYS: tuple[dict[str, Any], ...] = (
    {"decay": "cosine"},
    {"decay": "linear"},
    {"decay": "constant"},
    {"decay": "inverse_sqrt"},
    {"decay": "wsd", "final_decay_tokens": 3000},
    {"decay": "wsd", "final_decay_tokens": 3000, "final_decay_shape": "linear"},
    {"decay": "wsd", "final_decay_tokens": 9000},
)


@pytest.mark.parametrize("decay", DECAYS, ids=str)
@pytest.mark.parametrize("final", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("end", [0, 12_000, 8000])
def test_every_decay_equals_that_of_megatron_lm(decay: dict[str, Any], final: float, end: int) -> None:
    end = 0 if decay["decay"] in ENDLESS else max(end, 10_000 if decay.get("final_decay_tokens") == 9000 else 0)
    config = TrainingConfig(lr=3e-3, lr_final_fraction=final, warmup_tokens=1000, decay_tokens=end, **decay)
    for tokens in range(7, 10_000, 7):
        rate = learning_rate(config, tokens, 10_000)
        assert rate == pytest.approx(megatrons(config, tokens, 10_000), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("shape", ["linear", "1-sqrt"])
def test_wsd_is_bit_for_bit_constant_until_its_final_decay(shape: str) -> None:
    """A decay can therefore branch off a training that has none."""
    stable = TrainingConfig(decay="constant", warmup_tokens=100, lr=0.3)
    wsd = {"decay": "wsd", "final_decay_tokens": 200, "final_decay_shape": shape, "lr_final_fraction": 0.3}
    config = stable.model_copy(update=wsd)
    rates = [learning_rate(config, n, 1000) for n in range(1, 1001)]
    assert rates[:800] == [learning_rate(stable, n, 0) for n in range(1, 801)]
    assert rates[800:] == sorted(rates[800:], reverse=True) and rates[800] < 0.3
    assert rates[-1] == pytest.approx(0.09)


WSD = {"decay": "wsd"}
DECAY_ENDS = r"decay_tokens \(499\) is where the decay ends, and training.warmup_tokens \(500\)"


@pytest.mark.parametrize(
    "given, words",
    [
        ({"decay": "inverse_sqrt"}, r"warmup_tokens \(0\) must be above 0 .*; give the tokens"),
        (WSD, r"final_decay_tokens \(0\) must be above 0 .*=constant for the stable part"),
        (
            WSD | {"final_decay_tokens": 1500, "warmup_tokens": 150},
            r"\(150\) and .* \(1500\) must fit into the 1600 tokens .*\(10 training.steps\).* at most 100 or 1450, or",
        ),
        (WSD | {"final_decay_tokens": 20, "decay_tokens": 10}, r"fit into the 10 tokens .*\(training.decay_tokens\)"),
        ({"decay": "cosine", "warmup_tokens": 500, "decay_tokens": 499}, DECAY_ENDS),
        ({"decay": "linear", "warmup_tokens": 500, "decay_tokens": 499}, DECAY_ENDS),
        ({"warmup_tokens": 500, "decay_tokens": 1}, r"put it at 500 or later, or shorten the warm-up"),
        ({"keep_every": 75}, r"keep_every \(75\) must be a multiple of training.checkpoint_every \(50\).* 50 or 100$"),
        ({"keep_every": 20}, r"nearest: 50$"),
        ({"start_with": "state"}, "training.start_from names no checkpoint"),
        ({"profile": {"steps": (3, 11, 12)}}, r"profile.steps has 11, 12, and training.steps is 10"),
        ({"profile": {"steps": (3,), "on_ranks": (0, 2)}}, r"profile.on_ranks has 2, and there are 1 ranks"),
    ],
    ids=str,
)
def test_contradiction_is_rejected_with_value_rule_and_remedy(given: dict[str, Any], words: str) -> None:
    (problem,) = recipe_problems(TrainingConfig(steps=10, **given), PLAN)
    assert re.search(words, problem), problem


@pytest.mark.parametrize(
    "given",
    [
        {"spikes": {"batches": 2, "limit": 3, "window": 8}, "profile": {"memory": True}, "keep_every": 100},
        {"decay": "constant", "lr_final_fraction": 0, "final_decay_tokens": 5, "decay_tokens": 9},
        {"start_with": "state", "start_from": "there"},
        {"decay": "linear", "warmup_tokens": 500, "decay_tokens": 500},
        {"decay": "linear", "decay_tokens": 1, "lr_final_fraction": 0},
        *({"steps": 100, "warmup_tokens": 1000, **decay} for decay in DECAYS),
    ],
    ids=str,
)
def test_valid_config_is_accepted(given: dict[str, Any]) -> None:
    assert recipe_problems(TrainingConfig(**{"steps": 10, **given}), PLAN) == []


@pytest.mark.parametrize(
    "given, told",
    [
        ({"warmup_tokens": 500, "decay": "linear"}, "up to 0.003 at 500 tokens, linear to 0.0003 at 1.6K"),
        ({"decay": "constant"}, "0.003 from the start, 0.003 at the last step (1.6K)"),
        (
            {"warmup_tokens": 400, "decay": "inverse_sqrt"},
            "up to 0.003 at 400 tokens, then by the inverse root, 0.0015 at the last step (1.6K)",
        ),
        (
            {"decay": "wsd", "final_decay_tokens": 600, "decay_tokens": 3200, "lr_final_fraction": 0},
            "0.003 from the start, stable until 2.6K, 1-sqrt to 0 at 3.2K, 0.003 at the last step (1.6K)",
        ),
        (
            {"warmup_tokens": 4800},
            "warm-up to the end: 0.001 at the last step (1.6K); 0.003 is reached only at 4.8K tokens",
        ),
    ],
)
def test_course_of_the_rate_is_described(given: dict[str, Any], told: str) -> None:
    assert rate_line(TrainingConfig(steps=10, **given), PLAN) == f"learning rate: {told}"
