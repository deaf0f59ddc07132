"""Measure full training steps of a few small models, in one process and over several ranks.

Products and collectives alone do not show the other work of a layer, nor how ranks wait for each other. The models
differ in layers, width, vocabulary, sequence length and micro-batches, so that constants that explain them generalise.
"""

import time
from collections.abc import Mapping
from statistics import median
from types import MappingProxyType
from typing import Any

import torch

from trivium.comms.collectives import all_reduce_
from trivium.comms.mesh import Mesh
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.planner.measured import SmallStep
from trivium.probe.timing import median_seconds
from trivium.seeds import generator_for
from trivium.tokens.rows import Rows
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
# Shapes that measure the GPU and not its host: large enough to take the GPU longer, in bf16 and replayed.
SHAPES_ON_GPU = (
    (4, 1024, 16, 16384, 1024, 1, 16),
    (2, 2048, 16, 8192, 2048, 1, 8),
    (6, 768, 12, 32768, 512, 1, 32),
    (3, 1024, 8, 8192, 2048, 2, 4),
)
ON_GPU = {"precision": {"weights": "bf16"}, "cuda_graphs": True}
WARMUP_STEPS, MEASURED_STEPS = 2, 7  # equal on all ranks


def steps(device: torch.device, budget: float) -> tuple[SmallStep, ...]:
    """Measure a full step of each small model. On a GPU these steps measure the host; larger ones measure the GPU."""
    plans = [_plan(*shape) for shape in SHAPES]
    if device.type == "cuda":
        plans += [_plan(*shape, more=ON_GPU) for shape in SHAPES_ON_GPU]
    return tuple(_timed(plan, device, budget / len(plans)) for plan in plans)


def _timed(plan: Plan, device: torch.device, budget: float) -> SmallStep:
    step = _Step(plan, Mesh.single(device))
    step()  # the first step runs normally; the next one captures the CUDA graph, if there is one
    return _found(plan, median_seconds(step, device, budget=budget))


def split_plan(ranks: int) -> Plan:
    """Return a small model over `ranks` tensor ranks. They communicate in every layer, so collectives alternate with
    products, as in the trainer."""
    heads = max(8, ranks)
    width = max(8, min(32, 512 // heads))  # width of a head; the weights grow with the square of the total width
    return _plan(2, width * heads, heads, 512, 64, 1, 8, tensor=ranks)


def split_step(plan: Plan, mesh: Mesh) -> SmallStep:
    """Measure a step over the tensor ranks of a mesh; all of them must call this."""
    step, seconds = _Step(plan, mesh), []
    for _ in range(WARMUP_STEPS + MEASURED_STEPS):
        all_reduce_(torch.zeros(1, device=mesh.device), mesh.tensor)
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    return _found(plan, median(seconds[WARMUP_STEPS:]))


class _Step:
    """A trainer that repeats its first step."""

    def __init__(self, plan: Plan, mesh: Mesh) -> None:
        on_gpu = mesh.device.type == "cuda"
        self._trainer = Trainer(plan, mesh, seed=SEED, rule=AdamRule(), initial=not on_gpu)
        if on_gpu:  # any values take the same time, and the usual initialisation on the CPU takes seconds
            for bucket in self._trainer.buckets:
                bucket.weights.normal_(0, 0.02)
            self._trainer.optimizer.restart_masters()
        shape = (plan.batch.sequences, plan.model.sequence + 1)
        rows = generator_for(SEED, "probe").integers(0, plan.model.vocabulary, shape)
        self._samples = Samples(0, plan.batch.sequences, lambda first, count: Rows.of_text(rows[first : first + count]))

    def __call__(self) -> None:
        self._trainer.train_step(0, self._samples, 1e-4)


def _plan(
    layers: int,
    hidden: int,
    heads: int,
    vocabulary: int,
    sequence: int,
    micro_batches: int,
    micro: int,
    more: Mapping[str, Any] = MappingProxyType({}),
    **layout: int,
) -> Plan:
    shape = {"layers": layers, "hidden": hidden, "heads": heads, "vocabulary": vocabulary, "sequence": sequence}
    batch = {"sequences": micro * micro_batches, "micro": micro}
    return Plan.model_validate({"model": shape, "batch": batch, "layout": layout, "schedule": "1f1b", **more}).checked()


def _found(plan: Plan, seconds: float) -> SmallStep:
    layout = plan.layout.model_dump(mode="json") if plan.layout.world_size > 1 else {}
    return SmallStep(
        plan.model.model_dump(mode="json"),
        plan.batch.model_dump(mode="json"),
        seconds,
        layout,
        plan.precision.weights,
        plan.cuda_graphs,
    )
