"""Does a layout compute what one process computes?

The plan runs on a reduced model in fp64, and so does one process with the whole batch at once. Compared are the
loss, every parameter's gradient as the optimizer sees it, the global norm, and the weights after some steps.
Gradients, not only losses after Adam: Adam ignores a constant factor.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from trivium.config import to_tree
from trivium.parallel.mesh import Mesh
from trivium.parallel.zero import AdamRule
from trivium.plan.layout import Layout
from trivium.plan.partition import Partition
from trivium.plan.plan import Plan
from trivium.plan.precision import Precision
from trivium.plan.recompute import Recompute
from trivium.seeds import generator_for
from trivium.training.state import places
from trivium.training.trainer import Rows, Samples, Trainer

TOLERANCE = 1e-10  # relative, in fp64
STEPS = 3
LR = 1e-3
# Clips at 1.0, which the reduced models exceed, so the clipped update is compared too. The wide epsilon keeps Adam
# from blowing up the rounding noise of gradients that are zero by theory (a key's bias) into weights.
RULE = AdamRule(epsilon=1e-5)


class Deviation(NamedTuple):
    """|here - one process| / largest |one process| of a quantity, and of which parameter."""

    quantity: str
    parameter: str
    value: float


@dataclass(frozen=True)
class Certificate:
    """The verdict on a plan. `by_quantity`: the worst deviation of each quantity over all ranks."""

    plan: dict[str, Any]
    passed: bool
    worst: float
    worst_parameter: str
    tolerance: float
    by_quantity: dict[str, float]

    def as_tree(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def alone(plan: Plan) -> Plan:
    """The same work in one process: whole batch at once, nothing split, sharded, recomputed or scheduled."""
    micro = plan.batch.sequences if plan.batch.ramp is None else 1
    return plan.model_copy(
        update={
            "layout": Layout(),
            "batch": plan.batch.model_copy(update={"micro": micro}),
            "partition": Partition(),
            "schedule": "1f1b",
            "recompute": Recompute(),
            "zero": 0,
            "sequence_parallel": False,
        }
    )


def in_fp64(plan: Plan) -> Plan:
    """The plan with everything in fp64, where only the order of sums can differ."""
    return plan.model_copy(update={"precision": Precision(weights="fp64")})


def random_rows(plan: Plan, seed: int) -> Callable[[int, int], Rows]:
    """Random tokens by sample number: targets are the next tokens, as in training."""
    S, V = plan.model.sequence, plan.model.vocabulary

    def read(first: int, count: int) -> Rows:
        rows = [generator_for(seed, "certify", n).integers(0, V, S + 1) for n in range(first, first + count)]
        tokens = np.stack(rows)
        return Rows(tokens[:, :-1], tokens[:, 1:])

    return read


def deviations(plan: Plan, mesh: Mesh, *, seed: int = 7) -> list[Deviation]:
    """What this rank sees of the plan against one process; every rank of the mesh calls it."""
    plan = in_fp64(plan)
    read = random_rows(plan, seed)
    trainer = Trainer(plan, mesh, seed=seed, rule=RULE)
    single = Trainer(alone(plan), Mesh.single(mesh.device), seed=seed, rule=RULE)
    found: list[Deviation] = []
    for step in range(STEPS):
        batch = plan.batch.at(step)
        samples = Samples(batch.first_sample, batch.sequences, read)
        captured, reference = _capture(trainer), _capture(single)
        here, expected = trainer.train_step(step, samples, LR), single.train_step(step, samples, LR)
        found.append(_scalar("loss", here.loss, expected.loss))
        found.append(_scalar("gradient norm", here.gradient_norm, expected.gradient_norm))
        if step == 0:
            found += _gradients(trainer, captured, single, reference)
    found += _weights(trainer, single)
    validation = Samples(0, plan.batch.sequences, read)
    found.append(_scalar("validation loss", trainer.validate(validation), single.validate(validation)))
    return found


def certificate(plan: Plan, found: list[Deviation]) -> Certificate:
    """The verdict from the deviations of all ranks; a number that is not finite never passes."""
    worst = max(found, key=lambda d: d.value if d.value == d.value else float("inf"))
    by_quantity: dict[str, float] = {}
    for d in found:
        by_quantity[d.quantity] = max(by_quantity.get(d.quantity, 0.0), d.value)
    return Certificate(
        plan=to_tree(plan),
        passed=all(d.value <= TOLERANCE for d in found),
        worst=worst.value,
        worst_parameter=f"{worst.quantity}: {worst.parameter}" if worst.parameter else worst.quantity,
        tolerance=TOLERANCE,
        by_quantity=by_quantity,
    )


Gradients = dict[int, torch.Tensor]  # by shard number


def _capture(trainer: Trainer) -> Gradients:
    """Filled with the reduced gradients of the next step, as they are before clipping."""
    captured: Gradients = {}

    def keep(number: int, gradient: torch.Tensor) -> None:
        captured[number] = gradient.clone()

    trainer.optimizer.on_reduced = keep
    return captured


def _scalar(quantity: str, here: float, expected: float) -> Deviation:
    return Deviation(quantity, "", abs(here - expected) / max(abs(expected), 1e-300))


def _gradients(
    trainer: Trainer, captured: Gradients, single: Trainer, reference: Gradients
) -> list[Deviation]:
    whole = {}
    for number, shard in enumerate(single.optimizer.shards):
        for slot in shard.bucket.slots:
            flat = reference[number][slot.start : slot.stop]
            whole[slot.row.name] = flat.view(slot.parameter.shape)
    found = []
    for number, shard in enumerate(trainer.optimizer.shards):
        owned = shard.bucket.owned
        for place in places(shard.bucket, owned, trainer.plan, trainer.mesh.tensor.index):
            first = place.first - owned.start
            here = captured[number][first : first + place.box.elements]
            found.append(
                _tensor("gradient", place.slot.row.name, here, whole[place.slot.row.name], place.box)
            )
    return found


def _weights(trainer: Trainer, single: Trainer) -> list[Deviation]:
    whole = {slot.row.name: slot.parameter.detach() for b in single.buckets for slot in b.slots}
    found = []
    for bucket in trainer.buckets:
        for place in places(bucket, slice(0, len(bucket.weights)), trainer.plan, trainer.mesh.tensor.index):
            here = bucket.weights[place.first : place.first + place.box.elements]
            found.append(_tensor("weights", place.slot.row.name, here, whole[place.slot.row.name], place.box))
    return found


def _tensor(quantity: str, name: str, here: torch.Tensor, whole: torch.Tensor, box: Any) -> Deviation:
    expected = whole[tuple(slice(a, a + n) for a, n in zip(box.start, box.shape, strict=True))]
    scale = max(float(whole.abs().max()), 1e-300)
    return Deviation(quantity, name, float((here.view(box.shape) - expected).abs().max()) / scale)
