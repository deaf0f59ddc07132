"""Certificate of a layout: compare a plan with an independent implementation in one process.

The plan runs on a reduced model in fp64. Compared with `reference` are the table of parameters, their initial values,
the loss and the global gradient norm of every step, the gradient of every parameter in every step as the optimizer
reads it, the weights after the last step, and a validation loss between two steps. Gradients are compared, and not only
the weights after Adam, because Adam ignores a constant factor.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch

from trivium.certify.courses import SHORT, Course, PlainScale, rate, schedules
from trivium.certify.oracle.layers import rules_of
from trivium.certify.oracle.optimizer import Recipe
from trivium.certify.reference import (
    RECIPE,
    SEED,
    Reference,
    Tensors,
    recipe_of,
    steps_of,
    tokens_after,
    validated,
    weighted_rows,
)
from trivium.certify.rules import table_problems
from trivium.certify.ways import AS_IT_IS, Way
from trivium.comms.mesh import Mesh
from trivium.config import to_tree
from trivium.finite import finite_or_text
from trivium.objectives.objective import LOSS
from trivium.parallel.sharding.buckets import Bucket
from trivium.parallel.sharding.zero import AdamRule, Totals
from trivium.plan.parameters import Box, parameters
from trivium.plan.plan import Plan
from trivium.plan.precision import Precision
from trivium.training import rates
from trivium.training.state import places
from trivium.training.trainer import Samples, StepResult, Trainer

TOLERANCE = 1e-10  # relative, in fp64

RULE = AdamRule(
    beta1=RECIPE.beta1,
    beta2=RECIPE.beta2,
    epsilon=RECIPE.epsilon,
    weight_decay=RECIPE.weight_decay,
    clip=RECIPE.clip(0),
)


class Least(NamedTuple):
    """Lower bounds for the size of a parameter's values, by which its deviation is divided, as fractions of the largest
    gradient or weight of all parameters.

    In theory a gradient may be zero, as of the norms of queries and keys if no target's token attends to two different
    ones; rounding noise is then all there is. In 16 bits Adam makes weights of that noise, so that a bias is hardly
    more than noise, either.
    """

    gradient: float
    weight: float


IN_FP64 = Least(gradient=1e-4, weight=0.0)


class Deviation(NamedTuple):
    """|here - one process| / largest |one process| of a quantity after a step, and of which parameter."""

    quantity: str
    parameter: str
    value: float
    step: int = 0


@dataclass(frozen=True)
class First:
    """The step in which a plan first deviates (0-based; -1: before the first step), the quantities that deviate in it,
    and the largest deviation among those that belong to a parameter."""

    step: int
    quantities: tuple[str, ...]
    parameter: str
    value: float | str

    def __str__(self) -> str:
        when = f"in step {self.step + 1}" if self.step >= 0 else "before step 1"
        by = f"{self.value:.2g}" if isinstance(self.value, float) else self.value
        where = f", at most by {by}" + (f" in {self.parameter}" if self.parameter else "")
        return f"first wrong {when}: {', '.join(self.quantities)}{where}"


class Findings(NamedTuple):
    """Deviations on one rank. updated: number of elements of each parameter that this rank counts; over all ranks each
    element is counted exactly once."""

    deviations: list[Deviation]
    updated: dict[str, int]


@dataclass(frozen=True)
class Certificate:
    """The verdict on a plan. by_quantity: the worst deviation of each quantity over all ranks and steps.
    worst_by_quantity: its parameter. first: where it first went wrong; None when it passed. error: what its ranks
    failed with, where they did not get as far as numbers. way: which the engine went."""

    plan: dict[str, Any]
    passed: bool
    worst: float
    worst_parameter: str
    tolerance: float
    by_quantity: dict[str, float]
    worst_by_quantity: dict[str, str]
    first: First | None
    error: str | None = None
    way: str = AS_IT_IS.name

    def as_tree(self) -> dict[str, Any]:
        """Return plain data, with numbers that are not finite as text, because JSON has none."""
        tree = asdict(self)
        tree["worst"] = finite_or_text(self.worst)
        tree["by_quantity"] = {k: finite_or_text(v) for k, v in self.by_quantity.items()}
        return tree


def in_fp64(plan: Plan) -> Plan:
    """The plan with everything in fp64, where only the order of sums can differ."""
    return plan.model_copy(update={"precision": Precision(weights="fp64", float8=plan.precision.float8)})


def examine(plan: Plan, mesh: Mesh, reference: Reference, way: Way = AS_IT_IS) -> Findings:
    """Return the deviations on this rank of the plan in fp64 from one process. Every rank of the mesh calls it, within
    `way.taken()`."""
    return compare(in_fp64(plan), mesh, reference, way)


def compare(plan: Plan, mesh: Mesh, reference: Reference, way: Way = AS_IT_IS, least: Least = IN_FP64) -> Findings:
    """Return the deviations on this rank of the plan in its own precision from a reference, which may be in that
    precision. Every rank of the mesh calls it, within `way.taken()`."""
    wrong = table_problems(rules_of(plan.model), {p.name: p for p in parameters(plan.model)})
    if wrong:  # its tensors cannot be compared
        table = [Deviation(f"parameter table ({what})", name, math.inf, -1) for name, what in wrong.items()]
        return Findings(table, {})
    trainer = Trainer(plan, mesh, seed=SEED, rule=RULE)
    way.prepare(trainer)
    recipe = recipe_of(plan, way.course)
    found = [*_initial(trainer, reference), *_rates(plan, way.course)]
    scale = PlainScale(trainer.loss_scale.value) if trainer.loss_scale else None
    for step in range(len(reference.losses)):
        seen: list[Deviation] = []
        if step == 1:  # not at the end, so that what it leaves behind is seen
            validation = trainer.validate(_samples(plan, 0, validated(plan)))[LOSS]
            seen.append(_scalar("validation loss", validation, reference.validation))
        if step in way.refuses:
            _refuse(trainer, step, recipe)
            if scale is not None:
                scale.overflowed()
        captured = _capture(trainer)
        here = _train(trainer, step, recipe)
        seen += [_scalar(name, here.losses.get(name, 0.0), loss) for name, loss in reference.losses[step].items()]
        seen += _gradients(trainer, captured, reference.gradients[step], least.gradient)
        seen.append(_scalar("gradient norm", here.gradient_norm, reference.norms[step]))
        if scale is not None and trainer.loss_scale is not None:
            scale.finite()
            seen.append(_scalar("loss scale", trainer.loss_scale.value, scale.value))
        found += [d._replace(step=step) for d in seen]
    found += [d._replace(step=step) for d in _weights("weights", trainer, reference.weights, least.weight)]
    trainer.forget_recording()
    return Findings(found, _answered_for(trainer))


def train_alone(plan: Plan, device: torch.device, course: Course = SHORT) -> Reference:
    """Return what the engine itself computes for the plan's work in one process, in the plan's precision and on this
    device.

    With it as the reference, `compare` measures the effect of the layout and of messages, without the rounding of a
    device.
    """
    alone = plan.on_one_process()
    trainer = Trainer(alone, Mesh.single(device), seed=SEED, rule=RULE)
    recipe, initial = recipe_of(alone, course), _whole_weights(trainer)
    results: list[StepResult] = []
    gradients: list[Tensors] = []
    for step in range(steps_of(alone, course)):
        if step == 1:
            validation = trainer.validate(_samples(alone, 0, validated(alone)))[LOSS]
        captured = _capture(trainer)
        results.append(_train(trainer, step, recipe))
        gradients.append(_whole(trainer, trainer.trained, captured.__getitem__))
    return Reference(
        losses=tuple(dict(result.losses) for result in results),
        norms=tuple(result.gradient_norm for result in results),
        gradients=tuple(gradients),
        weights=_whole_weights(trainer),
        validation=validation,
        initial=initial,
        departures={},
        repetitions={},
    )


def certificate(
    plan: Plan, found: Sequence[Deviation], way: Way = AS_IT_IS, tolerance: float = TOLERANCE
) -> Certificate:
    """The verdict from the deviations of all ranks; a number that is not finite never passes."""
    by_quantity: dict[str, Deviation] = {}
    for d in found:
        if d.quantity not in by_quantity or _size(d) > _size(by_quantity[d.quantity]):
            by_quantity[d.quantity] = d
    worst = max(by_quantity.values(), key=_size)
    return Certificate(
        plan=to_tree(plan),
        passed=all(d.value <= tolerance for d in by_quantity.values()),
        worst=worst.value,
        worst_parameter=_named(worst),
        tolerance=tolerance,
        by_quantity={q: d.value for q, d in by_quantity.items()},
        worst_by_quantity={q: d.parameter for q, d in by_quantity.items()},
        first=_first([d for d in found if not d.value <= tolerance]),
        way=way.name,
    )


def not_finished(plan: Plan, error: str, way: Way = AS_IT_IS) -> Certificate:
    """The verdict on a plan whose ranks failed or hung."""
    return Certificate(to_tree(plan), False, math.inf, "not finished", TOLERANCE, {}, {}, None, error, way.name)


def coverage(plan: Plan, updated: Sequence[dict[str, int]]) -> list[Deviation]:
    """Return for each parameter the share of its elements that no rank updates, or that several update. Without this, a
    parameter that no rank holds would never deviate."""
    return [
        Deviation("coverage", name, abs(sum(u.get(name, 0) for u in updated) / math.prod(rule.shape) - 1))
        for name, rule in rules_of(plan.model).items()
    ]


def _first(wrong: Sequence[Deviation]) -> First | None:
    if not wrong:
        return None
    step = min(d.step for d in wrong)
    here = [d for d in wrong if d.step == step]
    worst = max(here, key=lambda d: (bool(d.parameter), _size(d)))
    quantities = tuple(dict.fromkeys(d.quantity for d in here))
    return First(step, quantities, worst.parameter, finite_or_text(worst.value))


def _initial(trainer: Trainer, reference: Reference) -> Iterator[Deviation]:
    """Whether the initial values are the reference's, and those what the papers' rules say."""
    for each in _weights("initial values", trainer, reference.initial):
        yield each._replace(step=-1)
    for name, value in reference.departures.items():
        yield Deviation("initial distribution", name, value, -1)
    for name, share in reference.repetitions.items():
        yield Deviation("repeated random draws", name, share, -1)


def _rates(plan: Plan, course: Course) -> Iterator[Deviation]:
    """The learning rate of every step under every schedule."""
    if not course.scheduled:
        return
    tokens = tokens_after(plan, course)
    for name, schedule in schedules(tokens[-1]).items():
        longest = schedule.model_copy(update={"steps": len(tokens)})
        for step, n in enumerate(tokens):
            away = _scalar("learning rate", rates.lr_of_step(longest, plan, step), rate(schedule, n, tokens[-1]))
            yield away._replace(parameter=name, step=step)


def _train(trainer: Trainer, step: int, recipe: Recipe) -> StepResult:
    """A step of the recipe. It is asked about as a training's, but for the step without a clip, whose update need not
    wait for the totals."""
    trainer.optimizer.rule = replace(RULE, clip=recipe.clip(step))
    accepts = None if recipe.clip(step) == 0 else _accept
    batch = _samples(trainer.plan, *trainer.plan.batch.at(step))
    return trainer.train_step(step, batch, recipe.lr(step), measure=step == 1, accepts=accepts)


def _refuse(trainer: Trainer, step: int, recipe: Recipe) -> None:
    """A step whose update is not made, because gradients overflow where the loss is scaled, else by decision."""
    batch, optimizer = _samples(trainer.plan, *trainer.plan.batch.at(step)), trainer.optimizer
    if trainer.loss_scale is None:
        trainer.train_step(step, batch, recipe.lr(step), accepts=lambda totals: False)
        return

    def overflow(number: int, gradient: torch.Tensor) -> None:
        optimizer.shards[number].summed().fill_(math.inf)

    optimizer.on_reduced = overflow
    trainer.train_step(step, batch, recipe.lr(step), accepts=_accept)


def _accept(totals: Totals) -> bool:
    return True


def _samples(plan: Plan, first: int, sequences: int) -> Samples:
    return Samples(first, sequences, weighted_rows(plan))


def _capture(trainer: Trainer) -> dict[int, torch.Tensor]:
    """Filled, by shard number, with the reduced gradients of the next step, as they are before clipping."""
    captured: dict[int, torch.Tensor] = {}

    def keep(number: int, gradient: torch.Tensor) -> None:
        captured[number] = gradient.clone()

    trainer.optimizer.on_reduced = keep
    return captured


def _gradients(
    trainer: Trainer, captured: dict[int, torch.Tensor], whole: Tensors, least_share: float
) -> Iterator[Deviation]:
    least = _share_of_largest(least_share, whole)
    for number, shard in enumerate(trainer.optimizer.shards):
        owned = shard.bucket.owned
        for place in places(shard.bucket, owned, trainer.plan, trainer.mesh):
            first = place.first - owned.start
            here = captured[number][first : first + place.box.elements]
            yield _tensor("gradient", place.slot.row.name, here, whole, place.box, least)


def _weights(quantity: str, trainer: Trainer, whole: Tensors, least_share: float = 0.0) -> Iterator[Deviation]:
    least = _share_of_largest(least_share, whole)
    for bucket in trainer.buckets:
        bucket.hold()
        rounds = bucket.narrow is not None  # what is gathered is rounded, the slices are not
        part, values = (bucket.owned, bucket.shard) if rounds else (slice(0, bucket.padded), bucket.weights)
        for place in places(bucket, part, trainer.plan, trainer.mesh):
            first = place.first - part.start
            here = values[first : first + place.box.elements]
            yield _tensor(quantity, place.slot.row.name, here, whole, place.box, least)
        bucket.drop()


def _share_of_largest(share: float, whole: Tensors) -> float:
    """Return `share` of the largest absolute value in all tensors."""
    return max(share * max(float(x.abs().max()) for x in whole.values()), 1e-300)


def _whole(trainer: Trainer, buckets: Sequence[Bucket], values_of: Callable[[int], torch.Tensor]) -> Tensors:
    """Return the full tensor of each parameter, in a process that holds the whole model. values_of: returns the flat
    tensor of a bucket by number."""
    return {
        place.slot.row.name: values_of(number)[place.first : place.first + place.box.elements]
        .view(place.box.shape)
        .to("cpu", torch.float64, copy=True)
        for number, bucket in enumerate(buckets)
        for place in places(bucket, bucket.owned, trainer.plan, trainer.mesh)
    }


def _whole_weights(trainer: Trainer) -> Tensors:
    return _whole(trainer, trainer.buckets, lambda number: trainer.buckets[number].weights)


def _answered_for(trainer: Trainer) -> dict[str, int]:
    answered: dict[str, int] = {}
    for bucket in trainer.buckets:
        if bucket.holders.index != 0:
            continue
        for place in places(bucket, bucket.owned, trainer.plan, trainer.mesh):
            if place.slot.counts:
                name = place.slot.row.name
                answered[name] = answered.get(name, 0) + place.box.elements
    return answered


def _scalar(quantity: str, here: float, expected: float) -> Deviation:
    return Deviation(quantity, "", abs(here - expected) / max(abs(expected), 1e-300))


def _tensor(quantity: str, name: str, here: torch.Tensor, whole: Tensors, box: Box, least: float = 1e-300) -> Deviation:
    everything = whole[name]
    expected = everything[tuple(slice(a, a + n) for a, n in zip(box.start, box.shape, strict=True))]
    away = (here.view(box.shape).cpu() - expected).abs().max()
    return Deviation(quantity, name, float(away) / max(float(everything.abs().max()), least))


def _size(deviation: Deviation) -> float:
    return math.inf if math.isnan(deviation.value) else deviation.value


def _named(deviation: Deviation) -> str:
    return f"{deviation.quantity}: {deviation.parameter}" if deviation.parameter else deviation.quantity
