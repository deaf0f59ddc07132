"""What one process computes of a plan's work: the numbers that a certificate compares with.

Layout, schedule, sharding and recompute do not enter, so plans with the same model and batches share a reference.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from trivium.certify.plain import PlainAdamW, Recipe, dropping, first_weights, keep_all, losses_of
from trivium.config import to_tree
from trivium.plan.batch import Batch
from trivium.plan.plan import Plan
from trivium.provenance import fingerprint
from trivium.seeds import generator_for

STEPS = 3
SEED = 7
# A clip that every reduced model exceeds, one that none does, and none: Adam hides a wrong factor that is the same in
# every step. The wide epsilon keeps Adam from blowing up the rounding noise of gradients that are zero by theory (a
# key's bias) into weights.
RECIPE = Recipe(
    beta1=0.9, beta2=0.95, epsilon=1e-5, weight_decay=0.1, clips=(0.5, 1e3, 0.0), lrs=(1e-3, 2e-3, 5e-4)
)

Tensors = dict[str, torch.Tensor]
Reader = Callable[[int, int], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Reference:
    """losses (cross-entropy), z-losses and norms: by step. gradients: by step, before clipping, by parameter. weights:
    after the last step. validation: the cross-entropy after the first step, without dropout, on the first `sequences`
    samples."""

    losses: tuple[float, ...]
    z_losses: tuple[float, ...]
    norms: tuple[float, ...]
    gradients: tuple[Tensors, ...]
    weights: Tensors
    validation: float


def steps_of(plan: Plan) -> int:
    """Three steps, or as many as a ramp needs to reach the full batch."""
    ramp = plan.batch.ramp
    if ramp is None:
        return STEPS
    return max(STEPS, len(sizes_until(plan.batch, ramp.samples)) + 1)


def sizes_until(batch: Batch, samples: int) -> list[int]:
    """Sequences of each step until so many were seen, counted one step after the other.

    Its own arithmetic, not the plan's table of segments: the batch rises when its share of the ramp was seen.
    """
    sizes: list[int] = []
    while (seen := sum(sizes)) < samples:
        sizes.append(_size_at(batch, seen))
    return sizes


def validated(plan: Plan) -> int:
    """How many samples validate: not a whole batch, so that hardly a layout is without padding."""
    return max(1, plan.batch.sequences - 1)


def reference_key(plan: Plan) -> str:
    """Equal keys: the same reference."""
    return fingerprint([to_tree(plan.model), _sizes(plan)])


def random_rows(plan: Plan, seed: int = SEED) -> Reader:
    """Random tokens by sample number, [count, S]: targets are the next tokens, as in training. Where documents are
    apart, every fourth token or so ends one."""
    S, V, end = plan.model.sequence, plan.model.vocabulary, plan.model.end_of_text
    apart = plan.model.documents == "apart"

    def row(n: int) -> np.ndarray:
        tokens = generator_for(seed, "certify", n).integers(0, V, S + 1)
        ends = generator_for(seed, "certify ends", n).random(S + 1) < 0.25
        return np.where(ends, end, tokens) if apart else tokens

    def read(first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        tokens = np.stack([row(n) for n in range(first, first + count)])
        return tokens[:, :-1], tokens[:, 1:]

    return read


def compute_reference(plan: Plan) -> Reference:
    """Train the plain model on the plan's batches, each as one whole."""
    read = random_rows(plan)
    optimizer = PlainAdamW(first_weights(plan.model, SEED), RECIPE)
    losses, z_losses, norms, gradients, first = [], [], [], [], 0
    for step, size in enumerate(_sizes(plan)):
        samples = range(first, first + size)
        weights = {k: w.clone().requires_grad_() for k, w in optimizer.weights.items()}
        tokens, targets = map(torch.from_numpy, read(first, size))
        drop = dropping(plan.model, SEED, step, samples)
        loss, z_loss = losses_of(weights, plan.model, tokens, targets, drop)
        gradient = torch.autograd.grad(loss + z_loss, list(weights.values()))
        found = dict(zip(weights, gradient, strict=True))
        losses.append(float(loss.detach()))
        z_losses.append(float(z_loss.detach()))
        norms.append(optimizer.step(found))
        gradients.append(found)
        first += size
        if step == 0:
            validation = _validation(plan, optimizer.weights)
    told = (tuple(losses), tuple(z_losses), tuple(norms))
    return Reference(*told, tuple(gradients), optimizer.weights, validation)


def write_reference(path: Path, reference: Reference) -> None:
    """One safetensors file, read by every rank."""
    told = [*reference.losses, *reference.z_losses, *reference.norms, reference.validation]
    scalars = torch.tensor(told, dtype=torch.float64)
    steps = {f"gradients/{n}/{k}": g for n, found in enumerate(reference.gradients) for k, g in found.items()}
    weights = {f"weights/{k}": w for k, w in reference.weights.items()}
    tensors = {"scalars": scalars, **steps, **weights}
    save_file({k: t.contiguous() for k, t in tensors.items()}, path)


def read_reference(path: Path) -> Reference:
    """What `write_reference` wrote."""
    tensors = load_file(path)
    *scalars, validation = tensors.pop("scalars").tolist()
    steps = len(scalars) // 3

    def under(prefix: str) -> Tensors:
        return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}

    return Reference(
        losses=tuple(scalars[:steps]),
        z_losses=tuple(scalars[steps : 2 * steps]),
        norms=tuple(scalars[2 * steps :]),
        gradients=tuple(under(f"gradients/{n}/") for n in range(steps)),
        weights=under("weights/"),
        validation=validation,
    )


def _validation(plan: Plan, weights: Tensors) -> float:
    tokens, targets = map(torch.from_numpy, random_rows(plan)(0, validated(plan)))
    with torch.no_grad():
        return float(losses_of(weights, plan.model, tokens, targets, keep_all).cross_entropy)


def _sizes(plan: Plan) -> list[int]:
    sizes: list[int] = []
    for _ in range(steps_of(plan)):
        sizes.append(_size_at(plan.batch, sum(sizes)))
    return sizes


def _size_at(batch: Batch, seen: int) -> int:
    if batch.ramp is None or seen >= batch.ramp.samples:
        return batch.sequences
    rises = (batch.sequences - batch.ramp.start) // batch.ramp.increment
    return batch.ramp.start + seen * rises // batch.ramp.samples * batch.ramp.increment
