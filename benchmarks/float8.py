"""What 8-bit products cost in loss: small models on a CPU, every recipe beside bf16 with the same batches and seeds.

    python benchmarks/float8.py --json benchmarks/reports/float8-DATE.json --markdown benchmarks/reports/float8-DATE.md

Numerics alone: on a CPU 8-bit numbers are multiplied as the fp32 numbers that they stand for, so no time is told. Also
told are, by layer, the largest values of its operands, and the shares of them that are clamped and that vanish; and
what a planted outlier channel does to a scale of this step and to one of earlier steps.
"""

import argparse
import json
import lzma
import platform
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from math import sqrt
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch

from trivium.comms.mesh import Mesh
from trivium.config import shipped
from trivium.kernels import scaled
from trivium.kernels.scaled import Operand, Quantised, ScaledProducts
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.provenance import code_commit
from trivium.training.trainer import Samples, Trainer

Tensor = torch.Tensor

VOCABULARY = 256  # bytes
SIZES: Mapping[str, Mapping[str, Any]] = {
    "hidden 128": {"layers": 4, "hidden": 128, "heads": 4, "sequence": 128},
    "hidden 256": {"layers": 6, "hidden": 256, "heads": 4, "sequence": 128},
}
STEPS = {"hidden 128": 300, "hidden 256": 200}
BATCH = {"sequences": 16, "micro": 16}
RECIPES: Mapping[str, Mapping[str, Any] | None] = {
    "bf16": None,
    "tensor": {"recipe": "tensor"},
    "tensor, gradients in e4m3": {"recipe": "tensor", "gradients": "e4m3"},
    "delayed": {"recipe": "delayed"},
    "row": {"recipe": "row", "gradients": "e4m3", "power_of_two": True},
    "block": {"recipe": "block", "gradients": "e4m3"},
}
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # Student's t of 95 % for so many pairs
LAST_SHARE = 0.2  # of the steps, whose mean loss counts
RATE, PLANTED_FACTOR = 1e-3, 100.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--markdown", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    losses: dict[str, dict[str, list[float]]] = {size: {recipe: [] for recipe in RECIPES} for size in SIZES}
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        runs = {
            (size, recipe): [pool.submit(trained, size, recipe, seed) for seed in range(given.seeds)]
            for size in SIZES
            for recipe in RECIPES
        }
        for (size, recipe), of_seeds in runs.items():
            losses[size][recipe] = [run.result() for run in of_seeds]
            print(size, recipe, [f"{loss:.4f}" for loss in losses[size][recipe]], flush=True)
    size, text = next(iter(SIZES)), ids()
    found = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": code_commit(),
        "machine": f"{platform.machine()}, torch {torch.__version__}, one thread",
        "steps": STEPS,
        "losses": losses,
        "shares": {recipe: shares(plan_of(size, recipe), text) for recipe in ("tensor", "delayed", "block")},
        "outlier": {recipe: planted(plan_of(size, recipe), text) for recipe in ("tensor", "delayed")},
    }
    given.json.write_text(json.dumps(found, indent=1) + "\n")
    given.markdown.write_text("\n".join(page(found)) + "\n")


def ids() -> np.ndarray:
    """The bytes of the shipped stories."""
    with lzma.open(shipped("corpus/harvest/stories.jsonl.xz"), "rt", encoding="utf-8") as lines:
        text = "\n".join(str(json.loads(line).get("text", "")) for line in lines)
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)


def plan_of(size: str, recipe: str) -> Plan:
    float8 = RECIPES[recipe]
    return Plan.model_validate(
        {
            "model": {**SIZES[size], "vocabulary": VOCABULARY, "vocabulary_multiple": 1, "end_of_text": 0},
            "batch": BATCH,
            "precision": {"weights": "bf16", "float8": None if float8 is None else {**float8, "keep": []}},
        }
    ).checked()


def trained(size: str, recipe: str, seed: int) -> float:
    """Train a model with batches of its own part of the text, and return the mean loss of the last steps."""
    torch.set_num_threads(1)
    plan, text, steps = plan_of(size, recipe), ids(), STEPS[size]
    trainer = Trainer(plan, Mesh.single(), seed=seed, rule=AdamRule())
    offset = seed * steps * plan.batch.sequences * plan.model.sequence
    every = [trainer.train_step(n, Samples.of_ids(text[offset:], plan, n), RATE).loss for n in range(steps)]
    return mean(every[-max(1, round(LAST_SHARE * steps)) :])


@contextmanager
def watched(see: Any) -> Iterator[None]:
    """Call see(products, x, operand, result) for each operand that is rounded."""
    original = ScaledProducts.quantised

    def quantised(self: ScaledProducts, x: Tensor, operand: Operand, dimensions: str) -> Quantised:
        found = original(self, x, operand, dimensions)
        see(self, x, operand, found)
        return found

    ScaledProducts.quantised = quantised
    try:
        yield
    finally:
        ScaledProducts.quantised = original


def shares(plan: Plan, text: np.ndarray, steps: int = 6) -> dict[str, dict[str, list[float]]]:
    """By layer and operand: the largest value of the last step, and the shares of its numbers that were clamped, and
    that became zero and were not."""
    trainer = Trainer(plan, Mesh.single(), seed=0, rule=AdamRule())
    names = {id(p): name for stage in trainer.stages.values() for name, p in stage.scaled.items()}
    found: dict[str, dict[str, list[float]]] = {}

    def see(products: ScaledProducts, x: Tensor, operand: Operand, result: Quantised) -> None:
        of = products.scaling.formats[scaled.OPERANDS[operand]]
        sizes = x.float().abs() / scaled.spread(result.inverse, x.shape, result.block)
        clamped = float((sizes > of.largest * (1 + 2**-6)).float().mean())
        gone = float(((result.codes.float() == 0) & (x != 0)).float().mean())
        found.setdefault(names[id(products)], {})[operand] = [float(x.abs().max()), clamped, gone]

    for step in range(steps):
        with watched(see if step == steps - 1 else lambda *seen: None):
            trainer.train_step(step, Samples.of_ids(text, plan, step), RATE)
    return found


def planted(plan: Plan, text: np.ndarray, at: int = 4, steps: int = 7) -> list[float]:
    """By step: the largest error of rounded activations of one layer, over their largest value. From step `at` on a
    channel of them is a hundred times as large."""
    trainer = Trainer(plan, Mesh.single(), seed=0, rule=AdamRule())
    weight = "layers.0.mlp.up.weight"
    products = trainer.stages[0].scaled[weight]
    errors: dict[int, list[float]] = defaultdict(list)
    now = 0

    def see(of: ScaledProducts, x: Tensor, operand: Operand, result: Quantised) -> None:
        if of is products and operand == "activations" and x.shape[1] == plan.model.hidden:
            errors[now].append(float((result.values() - x.float()).abs().max() / x.float().abs().max()))

    norm = trainer.stages[0].get_submodule("layers.0.mlp.norm")
    with watched(see):
        for now in range(steps):
            if now == at:
                with torch.no_grad():
                    norm.weight[3] *= PLANTED_FACTOR
            trainer.train_step(now, Samples.of_ids(text, plan, now), 0.0)
    return [max(errors[step]) for step in range(steps)]


def page(found: Mapping[str, Any]) -> Iterator[str]:
    """The report in Markdown."""
    yield f"# Products with 8-bit operands, {found['date']}"
    yield ""
    yield f"- machine: {found['machine']}; commit {found['commit']}"
    steps = ", ".join(f"{size}: {steps} steps" for size, steps in found["steps"].items())
    yield f"- {steps}, on bytes of the shipped stories; every linear layer of every block in 8 bits"
    yield "- numerics alone: a CPU multiplies the numbers that codes stand for, and is slower with them than in bf16"
    yield ""
    yield f"Loss: mean of the last {LAST_SHARE:.0%} of the steps, in nats per byte, over seeds. Gap: to bf16 with the "
    yield "same seed, its mean and 95 % interval (Student's t)."
    yield ""
    yield "| model | recipe | loss | gap | interval |"
    yield "|---|---|---:|---:|---|"
    for size, by_recipe in found["losses"].items():
        for recipe, losses in by_recipe.items():
            gaps = [a - b for a, b in zip(losses, by_recipe["bf16"], strict=True)]
            half = T_95[len(gaps)] * stdev(gaps) / sqrt(len(gaps))
            told = "" if recipe == "bf16" else f"{mean(gaps) - half:+.4f} to {mean(gaps) + half:+.4f}"
            yield f"| {size} | {recipe} | {mean(losses):.4f} | {mean(gaps):+.4f} | {told} |"
    yield ""
    yield "## Operands by layer, in step 6"
    yield ""
    yield "Largest value; share clamped; share that became zero. (Of the three products, the operand of the last.)"
    yield ""
    yield "| recipe | layer | activations | weights | gradients |"
    yield "|---|---|---|---|---|"
    for recipe, layers in found["shares"].items():
        for name, operands in sorted(layers.items()):
            cells = [
                f"{amax:.2g}; {clamped:.2%}; {gone:.2%}"
                for amax, clamped, gone in (operands[o] for o in ("activations", "weights", "gradients"))
            ]
            yield f"| {recipe} | {name.removesuffix('.weight')} | {' | '.join(cells)} |"
    yield ""
    yield f"## A planted channel, {PLANTED_FACTOR:.0f} times as large from step 5 on"
    yield ""
    yield "Largest error of the rounded activations over their largest value, by step."
    yield ""
    planted_steps = len(next(iter(found["outlier"].values())))
    yield f"| recipe | {' | '.join(str(n + 1) for n in range(planted_steps))} |"
    yield f"|---|{'---:|' * planted_steps}"
    for recipe, errors in found["outlier"].items():
        yield f"| {recipe} | {' | '.join(f'{error:.3f}' for error in errors)} |"


if __name__ == "__main__":
    main()
