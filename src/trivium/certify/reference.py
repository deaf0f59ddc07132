"""The reference of a certificate: the result of a plan's work in one process.

Layout, schedule, sharding and recompute do not matter, so plans with the same model and batches share a reference.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from trivium.certify.courses import SHORT, Course, rate, schedules
from trivium.certify.oracle.float8 import Amaxes, Scaled, expert_sets
from trivium.certify.oracle.layers import rules_of
from trivium.certify.oracle.optimizer import PlainOptimizer, Recipe
from trivium.certify.oracle.routers import moved_biases, router_losses
from trivium.certify.plain import dropping, first_weights, keep_all, losses_of, noise
from trivium.certify.rules import departures, repetitions
from trivium.config import to_tree
from trivium.plan.batch import Batch
from trivium.plan.plan import Plan
from trivium.provenance import fingerprint
from trivium.seeds import generator_for
from trivium.tokens.rows import Rows

SEED = 7
# One clip is exceeded by every reduced model, one by none, and one step has none, because Adam hides a wrong factor
# that is equal in every step. With a small epsilon, Adam would enlarge the rounding noise of gradients that are zero in
# theory (a key's bias) into weights.
RECIPE = Recipe(beta1=0.9, beta2=0.95, epsilon=1e-5, weight_decay=0.1, clips=(0.5, 1e3, 0.0), lrs=(1e-3, 2e-3, 5e-4))

Tensors = dict[str, torch.Tensor]
Reader = Callable[[int, int], Rows]


@dataclass(frozen=True)
class Reference:
    """losses (by name) and norms: by step. gradients: by step, before clipping, by parameter. weights:
    after the last step. validation: the cross-entropy after the first step, without dropout, on the first `sequences`
    samples.

    initial: the weights before the first step. departures: how far they are from their distributions, by parameter.
    repetitions: the share of them that is drawn twice, by parameter; of dropout masks, under "dropout", the share whose
    stream another mask has."""

    losses: tuple[dict[str, float], ...]
    norms: tuple[float, ...]
    gradients: tuple[Tensors, ...]
    weights: Tensors
    validation: float
    initial: Tensors
    departures: dict[str, float]
    repetitions: dict[str, float]


def steps_of(plan: Plan, course: Course = SHORT) -> int:
    """Return the steps of the course, or as many as a ramp needs to reach the full batch."""
    ramp = plan.batch.ramp
    if ramp is None:
        return course.steps
    return max(course.steps, len(sizes_until(plan.batch, ramp.samples)) + 1)


def tokens_after(plan: Plan, course: Course) -> list[int]:
    """Return the tokens that the training has consumed after each step."""
    return list(accumulate(size * plan.model.sequence for size in _sizes(plan, course)))


def recipe_of(plan: Plan, course: Course) -> Recipe:
    """Return the recipe of a course, with the rates of the first schedule if the course has schedules."""
    if not course.scheduled:
        return RECIPE
    tokens = tokens_after(plan, course)
    schedule = next(iter(schedules(tokens[-1]).values()))
    return replace(RECIPE, lrs=tuple(rate(schedule, n, tokens[-1]) for n in tokens))


def sizes_until(batch: Batch, samples: int) -> list[int]:
    """Return the number of sequences of each step until `samples` have been read, counted step by step.

    This is independent of the plan's table of segments: the batch grows when its share of the ramp has been read.
    """
    sizes: list[int] = []
    while (seen := sum(sizes)) < samples:
        sizes.append(_size_at(batch, seen))
    return sizes


def validated(plan: Plan) -> int:
    """Return the number of validation samples. It is one less than a batch, so that most layouts pad it."""
    return max(1, plan.batch.sequences - 1)


def reference_key(plan: Plan, course: Course = SHORT) -> str:
    """Return a key that is equal for plans with the same reference."""
    float8 = plan.precision.float8
    micro = plan.batch.micro if plan.micro_changes_numbers else None
    sets = (
        (plan.layout.data, plan.layout.expert, plan.layout.pipeline)
        if float8 is not None and plan.layout.expert > 1
        else None
    )
    return fingerprint(
        [
            *(to_tree(plan.model), to_tree(plan.optimizer), _sizes(plan, course), course.scheduled, micro),
            *(None if float8 is None else to_tree(float8), sets),
        ]
    )


def random_text(plan: Plan, first: int, count: int, seed: int = SEED) -> tuple[np.ndarray, np.ndarray]:
    """Return random token ids by sample number, and how much each counts as a target; both [count, S + 1].

    Where documents are apart, about every fourth token ends one. About every fourth weight is 0, and the others have
    more bits than a short sum keeps.
    """
    S, V, end = plan.model.sequence, plan.model.vocabulary, plan.model.end_of_text
    apart = plan.model.documents == "apart"

    def tokens(n: int) -> np.ndarray:
        found = generator_for(seed, "certify", n).integers(0, V, S + 1)
        ends = generator_for(seed, "certify ends", n).random(S + 1) < 0.25
        return np.where(ends, end, found) if apart else found

    def weights(n: int) -> np.ndarray:
        draws = generator_for(seed, "certify weights", n).random(S + 1)
        return np.where(draws < 0.25, 0, draws).astype(np.float32)

    samples = range(first, first + count)
    return np.stack([tokens(n) for n in samples]), np.stack([weights(n) for n in samples])


def random_rows(plan: Plan, seed: int = SEED) -> Reader:
    """Return a reader of random rows by sample number, in which every target counts 1."""
    return lambda first, count: Rows.of_text(random_text(plan, first, count, seed)[0])


def weighted_rows(plan: Plan) -> Reader:
    """Return a reader of the rows that are certified, in which targets have random weights."""
    return lambda first, count: Rows.of_text(*random_text(plan, first, count))


def compute_reference(plan: Plan, course: Course = SHORT) -> Reference:
    """Train the plain model on the plan's batches, without micro-batches."""
    recipe = recipe_of(plan, course)
    initial, rules = first_weights(plan.model, SEED), rules_of(plan.model)
    weights = {k: w.clone() for k, w in initial.items()}
    optimizer = PlainOptimizer(weights, recipe, plan.model, plan.optimizer.groups)
    losses, norms, gradients, first = [], [], [], 0
    streams, amaxes = list[int](), Amaxes()
    for step, size in enumerate(_sizes(plan, course)):
        samples = range(first, first + size)
        weights = {k: w.clone() for k, w in optimizer.weights.items()}
        trained = {k: weights[k].requires_grad_() for k in optimizer.trained}
        drop = dropping(plan.model, SEED, step, samples, streams)
        text, counts = map(torch.from_numpy, random_text(plan, first, size))
        heard: dict[int, torch.Tensor] = {}
        scaled = _scaled(plan, size, amaxes)
        here = losses_of(weights, plan.model, text, counts, drop, noise(SEED, step), heard, scaled)
        here |= router_losses(weights, plan.model, heard, plan.batch.micro)
        gradient = torch.autograd.grad(torch.stack([*here.values()]).sum(), list(trained.values()))
        found = dict(zip(trained, gradient, strict=True))
        amaxes.end_step()
        losses.append({name: float(loss.detach()) for name, loss in here.items()})
        norms.append(optimizer.step(found))
        optimizer.weights |= moved_biases(weights, plan.model, heard, optimizer.groups)
        gradients.append(found)
        first += size
        if step == 0:
            validation = _validation(plan, optimizer.weights, amaxes)
    masks = {"dropout": 1 - len(set(streams)) / len(streams)} if streams else {}
    return Reference(
        losses=tuple(losses),
        norms=tuple(norms),
        gradients=tuple(gradients),
        weights=optimizer.weights,
        validation=validation,
        initial=initial,
        departures=departures(rules, initial),
        repetitions={**repetitions(rules, initial), **masks},
    )


def write_reference(path: Path, reference: Reference) -> None:
    """Write a reference to one safetensors file, which every rank reads."""
    scalars = {"norms": reference.norms, "validation": [reference.validation]}
    named = {
        **{f"losses/{k}": [step[k] for step in reference.losses] for k in reference.losses[0]},
        **{f"departures/{k}": [x] for k, x in reference.departures.items()},
        **{f"repetitions/{k}": [x] for k, x in reference.repetitions.items()},
    }
    told = {k: torch.tensor(x, dtype=torch.float64) for k, x in {**scalars, **named}.items()}
    steps = {f"gradients/{n}/{k}": g for n, found in enumerate(reference.gradients) for k, g in found.items()}
    weights = {f"weights/{k}": w for k, w in reference.weights.items()}
    initial = {f"initial/{k}": w for k, w in reference.initial.items()}
    tensors = {**told, **steps, **weights, **initial}
    save_file({k: t.contiguous() for k, t in tensors.items()}, path)


def read_reference(path: Path) -> Reference:
    """Read a reference that `write_reference` wrote."""
    groups: dict[str, Tensors] = {}
    for name, tensor in load_file(path).items():
        group, _, rest = name.partition("/")
        groups.setdefault(group, {})[rest] = tensor
    norms, validation = (groups[name][""].tolist() for name in ("norms", "validation"))
    losses = {name: found.tolist() for name, found in groups["losses"].items()}
    gradients: list[Tensors] = [{} for _ in norms]
    for name, tensor in groups["gradients"].items():
        step, _, parameter = name.partition("/")
        gradients[int(step)][parameter] = tensor
    return Reference(
        losses=tuple({name: found[step] for name, found in losses.items()} for step in range(len(norms))),
        norms=tuple(norms),
        gradients=tuple(gradients),
        weights=groups["weights"],
        validation=validation[0],
        initial=groups["initial"],
        departures={name: float(x) for name, x in groups.get("departures", {}).items()},
        repetitions={name: float(x) for name, x in groups.get("repetitions", {}).items()},
    )


def _validation(plan: Plan, weights: Tensors, amaxes: Amaxes) -> float:
    text, counts = map(torch.from_numpy, random_text(plan, 0, validated(plan)))
    amaxes.collects = False
    if plan.precision.float8 is not None:  # padding shares scales with others: repeat the last one, uncounted
        lacks = -len(text) % plan.validation_unit
        text = torch.cat([text, text[-1:].expand(lacks, -1)])
        counts = torch.cat([counts, torch.zeros(lacks, counts.shape[1], dtype=counts.dtype)])
    with torch.no_grad():
        scaled = _scaled(plan, len(text), amaxes)
        found = losses_of(weights, plan.model, text, counts, keep_all, scaled=scaled)["loss"]
    amaxes.collects = True
    return float(found)


def _scaled(plan: Plan, sequences: int, amaxes: Amaxes) -> Scaled | None:
    """Return how the linear layers of a plan multiply in a pass over `sequences` sequences."""
    float8, micro, layout = plan.precision.float8, plan.batch.micro, plan.layout
    if float8 is None:
        return None
    return Scaled(float8, plan.model.layers, micro, expert_sets(sequences, micro, layout.data, layout.expert), amaxes)


def _sizes(plan: Plan, course: Course) -> list[int]:
    sizes: list[int] = []
    for _ in range(steps_of(plan, course)):
        sizes.append(_size_at(plan.batch, sum(sizes)))
    return sizes


def _size_at(batch: Batch, seen: int) -> int:
    if batch.ramp is None or seen >= batch.ramp.samples:
        return batch.sequences
    rises = (batch.sequences - batch.ramp.start) // batch.ramp.increment
    return batch.ramp.start + seen * rises // batch.ramp.samples * batch.ramp.increment
