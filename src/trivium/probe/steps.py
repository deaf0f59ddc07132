"""Whole steps of small models of ours in one process: what eager operations cost beside their arithmetic."""

import torch

from trivium.parallel.mesh import Mesh
from trivium.parallel.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.planner.measured import SmallStep
from trivium.probe.timing import median_seconds
from trivium.seeds import generator_for
from trivium.training.batches import Rows
from trivium.training.trainer import Samples, Trainer

SEED = 5
# layers, hidden, heads, vocabulary, sequence, micro-batches, micro
SHAPES = (
    (2, 64, 2, 256, 64, 4, 4),
    (6, 64, 4, 512, 32, 2, 8),
    (2, 192, 4, 1024, 96, 2, 4),
    (3, 256, 4, 512, 64, 2, 8),
    (1, 96, 4, 4096, 64, 2, 8),
)


def steps(device: torch.device, budget: float) -> tuple[SmallStep, ...]:
    """Seconds of a step of each small model, forward to update."""
    return tuple(_step(_plan(*shape), device, budget / len(SHAPES)) for shape in SHAPES)


def _plan(
    layers: int, hidden: int, heads: int, vocabulary: int, sequence: int, micro_batches: int, micro: int
) -> Plan:
    shape = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "vocabulary": vocabulary,
        "sequence": sequence,
    }
    return Plan.model_validate(
        {"model": shape, "batch": {"sequences": micro * micro_batches, "micro": micro}}
    ).checked()


def _step(plan: Plan, device: torch.device, budget: float) -> SmallStep:
    trainer = Trainer(plan, Mesh.single(device), seed=SEED, rule=AdamRule())
    shape = (plan.batch.sequences, plan.model.sequence + 1)
    rows = generator_for(SEED, "probe").integers(0, plan.model.vocabulary, shape)

    def read(first: int, count: int) -> Rows:
        return Rows(rows[first : first + count, :-1], rows[first : first + count, 1:])

    def step() -> None:
        trainer.train_step(0, Samples(0, plan.batch.sequences, read), 1e-4)

    seconds = median_seconds(step, device, budget=budget)
    return SmallStep(plan.model.model_dump(mode="json"), plan.batch.model_dump(mode="json"), seconds)
