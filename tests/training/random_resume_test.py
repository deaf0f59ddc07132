"""A training resumed under one random layout after another equals uninterrupted training on one process."""

import json
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokens.curated import tokenized
from trivium.certify.layouts import CHOICES, ROTARY, Base, bases
from trivium.certify.random_plans import random_order, with_random_table
from trivium.config import merge
from trivium.plan.layout import divisors
from trivium.plan.plan import Plan
from trivium.seeds import generator_for
from trivium.training.config import TrainingConfig
from trivium.training.loop import TrainingJob
from trivium.training.metrics import METRICS, read
from trivium.training.supervision.job import start

# Sizes that many degrees divide.
MODEL = {"vocabulary": 300, "layers": 6, "hidden": 48, "heads": 12, "ffn": 48, "sequence": 24}
# A loss of the whole batch: others depend on how it is cut into micro-batches.
EXPERTS = {
    "count": 12,
    "chosen": 2,
    "columns": 12,
    "bias_rate": 0.01,
    "balance_loss": 0.1,
    "balance_scope": "global_batch",
}
SEQUENCES = 12
HOW = ("zero", "sequence", "recompute", "attention", "rows")  # choices that leave the training what it is
MAX_PLAN_RANKS = 6
STEPS = (2, 4, 6)  # each under another layout
IN_BUDGET, MORE = 1, 30  # trainings


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("random-resume")
    return tokenized(root, {"prose": 120}, words=60, validation_fraction=0.3)


def model(generator: np.random.Generator) -> dict[str, Any]:
    """Draw the shape of a model."""
    family = generator.choice(["gpt", "llama", "experts"])
    head, dropout = generator.choice(["tied", "untied"]), float(generator.choice([0.0, 0.1]))
    settings = {"gpt": {}, "llama": ROTARY, "experts": {**ROTARY, "feed_forward": "experts", "experts": EXPERTS}}
    shape = {**MODEL, **settings[str(family)], "head": str(head), "dropout": dropout}
    qwen = {"bias": "qkv", "qk_norm": "each_head", "head_width": 6}
    return shape if family == "gpt" or generator.integers(2) else {**shape, **qwen}


def plan(shape: dict[str, Any], **given: Any) -> Plan:
    tree = {"batch": {"sequences": SEQUENCES}, "precision": {"weights": "fp64"}, "model": shape}
    return Plan.model_validate(merge(tree, given))


def random_layout(shape: dict[str, Any], generator: np.random.Generator) -> Plan:
    """A legal way to run it on several ranks."""
    every = [b for b in bases(MAX_PLAN_RANKS) if b.ranks > 1 and not SEQUENCES % b.degrees["data"]]
    while True:
        base = every[int(generator.integers(len(every)))]
        found = drawn(shape, base, generator)
        if not found.check():
            return found


def drawn(shape: dict[str, Any], base: Base, generator: np.random.Generator) -> Plan:
    choices: dict[str, Any] = {}
    for key in HOW:
        choices = merge(choices, CHOICES[key][int(generator.integers(len(CHOICES[key])))])
    share = SEQUENCES // base.degrees["data"]
    micro = int(generator.choice([n for n in range(1, share + 1) if share % n == 0]))
    found = plan(
        shape,
        **choices,
        layout={**base.degrees, "chunks": base.chunks, "order": random_order(generator)},
        schedule=base.schedule,
        batch={"micro": micro},
    )
    if shape.get("experts"):
        degrees = divisors(gcd(found.layout.replicas, EXPERTS["count"]))
        layout = found.layout.model_copy(update={"expert": int(generator.choice(degrees))})
        found = found.model_copy(update={"layout": layout})
    if base.degrees["pipeline"] == 1 or generator.integers(2):
        return found
    return with_random_table(found, generator)


def losses(out: Path) -> dict[int, float]:
    return {m["step"]: m["loss"] for m in read(out / METRICS) if "loss" in m}


def check(seed: int, tokens: Path, folder: Path) -> None:
    generator = generator_for(seed, "tests", "random resume")
    shape = model(generator)

    def train(name: str, steps: int, under: Plan) -> None:
        recipe = TrainingConfig(
            steps=steps,
            checkpoint_every=2,
            validate_every=6,
            validation_samples=5,  # no layout's whole micro-batches
            restarts=0,
            decay_tokens=4000,
        )
        start(TrainingJob(under, recipe, 5, tokens, folder / name))

    layouts = [random_layout(shape, generator) for _ in STEPS]
    train("alone", STEPS[-1], plan(shape))
    for steps, layout in zip(STEPS, layouts, strict=True):
        train("moved", steps, layout)
    one, two = losses(folder / "alone"), losses(folder / "moved")
    assert sorted(one) == sorted(two) == list(range(1, STEPS[-1] + 1)), layouts
    assert max(abs(one[s] - two[s]) / one[s] for s in one) <= 1e-11, layouts
    told = [json.loads((folder / x / "result.json").read_text())["validation_loss"] for x in ("alone", "moved")]
    assert abs(told[0] - told[1]) / told[0] <= 1e-11, layouts
    batches = [
        {m["step"]: m["batch_hash"] for m in read(folder / x / METRICS) if "loss" in m} for x in ("alone", "moved")
    ]
    assert batches[0] == batches[1]


@pytest.mark.broad
@pytest.mark.parametrize("seed", range(IN_BUDGET))
def test_training_resumes_under_random_layouts(seed: int, tokens: Path, tmp_path: Path) -> None:
    check(seed, tokens, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(IN_BUDGET, IN_BUDGET + MORE))
def test_more_trainings_resume_under_random_layouts(seed: int, tokens: Path, tmp_path: Path) -> None:
    check(seed, tokens, tmp_path)
