"""Saves the state of a trainer to a checkpoint and restores it: the slices of a rank, as boxes of unsharded tensors."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trivium.checkpoint.agree import first_message, problem_of_any, sums
from trivium.checkpoint.format import boxes_of_range
from trivium.checkpoint.load import Checkpoint, widest_kind
from trivium.checkpoint.pieces import is_finite
from trivium.checkpoint.save import Fragment, save
from trivium.checkpoint.verify import NOT_FINITE
from trivium.comms.mesh import Mesh
from trivium.config import to_tree
from trivium.errors import CheckpointError
from trivium.model.initialise import row_norms
from trivium.parallel.sharding.buckets import Bucket, Slot
from trivium.parallel.sharding.shard import Shard
from trivium.plan.adapters import base_name, is_added
from trivium.plan.parameters import Box, local_shape, shard_box
from trivium.plan.plan import Plan
from trivium.stores.remote import Location, location_of
from trivium.training.loss_scale import LossScale
from trivium.training.record import refuse_other_state, refuse_weights_alone
from trivium.training.trainer import Trainer


class Place(NamedTuple):
    """Elements [first, first + box.elements) of a bucket are `box` of the unsharded tensor of a slot."""

    slot: Slot
    first: int
    box: Box


def fragments(trainer: Trainer) -> list[Fragment]:
    """Return the tensors that this rank must write: weights, masters and moments that it owns, and the history of
    delayed scales, so that all ranks together write each element once."""
    found = [] if trainer.amaxes is None else trainer.amaxes.fragments()
    shards = {id(shard.bucket): shard for shard in trainer.optimizer.shards}  # frozen buckets have none
    for number, bucket in enumerate(trainer.buckets):
        # The ranks that replicate a slice take turns in writing their buckets, so that all of them write.
        if bucket.holders.index != (number % bucket.holders.size if bucket.zero >= 1 else 0):
            continue
        for place in _owned_places(trainer, bucket):
            if not place.slot.counts:
                continue
            row, first, count = place.slot.row, place.first - bucket.owned.start, place.box.elements
            state = _state(trainer, shards.get(id(bucket)), first, count)
            tensors = {"weights": bucket.shard[first : first + count], **state}
            found += [Fragment(f"{kind}/{row.name}", row.shape, place.box, values) for kind, values in tensors.items()]
    return found


def _state(trainer: Trainer, shard: Shard | None, first: int, count: int) -> dict[str, torch.Tensor]:
    """Return the separate master weights, if there are any, and the optimizer state of elements of a slice."""
    tensors: dict[str, torch.Tensor] = {} if shard is None else shard.tensors(first, count)
    if not trainer.plan.precision.has_master:
        tensors.pop("master", None)
    return tensors


def soundness(trainer: Trainer, updates: int) -> str:
    """Describe the state for a message about a loss that is not finite: which tensor is not finite, or else which
    weights are largest. Every rank calls this. updates: the number of the last step that updated the weights."""
    held = fragments(trainer)
    bad = first_message(next((f.name for f in held if not is_finite(f.values)), ""), trainer.mesh)
    if bad:
        return f"{bad} {NOT_FINITE} since the update of step {updates}"
    weights = {
        f.name: float(f.values.abs().max())
        for f in held
        if f.name.startswith("weights/") and f.values.is_floating_point()
    }
    here, size = trainer.mesh.rank, trainer.mesh.layout.world_size
    largest = max(weights, key=lambda name: weights[name], default="")
    every = sums([weights.get(largest, 0.0) if rank == here else 0.0 for rank in range(size)], trainer.mesh)
    name = first_message(largest if every.index(max(every)) == here else "", trainer.mesh)
    return f"the state after the update of step {updates} is finite, its largest weight {max(every):.3g} in {name}"


def save_state(trainer: Trainer, root: str | Path, step: int) -> Location:
    """Publish a checkpoint after `step` steps under `root`, a folder or a URL, and return its place; every rank calls
    this.

    It has the format of a run's checkpoints, and `restore` reads it under any layout. Raises CheckpointError on every
    rank if one cannot write.
    """
    samples = trainer.plan.batch.at(step).first_sample
    about = {
        "samples": samples,
        "tokens_seen": trainer.plan.tokens(samples),
        "seed": trainer.seed,
        "plan": to_tree(trainer.plan),
        "data": {},
        **progress_of(trainer),
    }
    return save(location_of(root), step, fragments(trainer), trainer.mesh, about)


def read_together(read: Callable[[Trainer, Checkpoint], None], trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Call `read` (`restore` or `begin_with`) on every rank, however long it takes: on a host with a slow file system
    no collective of other ranks times out. Raises CheckpointError on every rank if one fails."""
    problem = problem_of_any(partial(read, trainer, checkpoint), trainer.mesh, trainer.goes_on)
    if problem:
        raise CheckpointError(problem)


@torch.no_grad()
def restore(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Load weights, masters and moments from a checkpoint written under any layout; a rank reads its own boxes.

    checkpoint: verified, as by `Checkpoint.open_together`. Raises CheckpointError before anything is loaded if it is of
    another model or precision, or has no optimizer state.
    """
    refuse_weights_alone(checkpoint.directory, checkpoint.manifest)
    if "plan" in checkpoint.manifest:
        refuse_other_state(checkpoint.directory, checkpoint.plan, trainer.plan)
    _load_weights(trainer, checkpoint)
    for shard in trainer.optimizer.shards:
        for place in _owned_places(trainer, shard.bucket):
            first = place.first - shard.bucket.owned.start
            for kind, values in _state(trainer, shard, first, place.box.elements).items():
                _load(values, 0, checkpoint, kind, place)
                trainer.goes_on()
    if trainer.amaxes is not None:
        trainer.amaxes.restore(checkpoint)
    # An fp16 step that overflows updates nothing, so there may be fewer updates than steps.
    trainer.optimizer.steps_done = int(checkpoint.manifest.get("updates", checkpoint.step))
    scale = checkpoint.manifest.get("loss_scale")
    if scale and trainer.loss_scale:
        trainer.loss_scale = LossScale(**scale)


@torch.no_grad()
def begin_with(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Load only the weights of a checkpoint, of any dtype: moments are zero, and no step is done.

    Masters are loaded from its masters, if it has any, and otherwise from its weights; neither is rounded. Adapters
    that the checkpoint does not have stay as they are.
    """
    _load_weights(trainer, checkpoint, from_widest=True)
    trainer.optimizer.restart_masters()
    for shard in trainer.optimizer.shards if trainer.plan.precision.has_master else ():
        for place in _owned_places(trainer, shard.bucket):
            kind = widest_kind(checkpoint, place.slot.row.name)
            _load(shard.master, place.first - shard.bucket.owned.start, checkpoint, kind, place)
            trainer.goes_on()


def progress_of(trainer: Trainer) -> dict[str, Any]:
    """Return what the manifest of a checkpoint keeps of the trainer besides tensors."""
    scale = trainer.loss_scale
    return {"updates": trainer.optimizer.steps_done, "loss_scale": asdict(scale) if scale else None}


def _load_weights(trainer: Trainer, checkpoint: Checkpoint, *, from_widest: bool = False) -> None:
    for bucket in trainer.buckets:
        part, values = slice(0, bucket.padded), bucket.weights
        if trainer.plan.zero >= 3:
            part, values = bucket.owned, bucket.shard
        for place in places(bucket, part, trainer.plan, trainer.mesh):
            kind = widest_kind(checkpoint, place.slot.row.name) if from_widest else "weights"
            _load(values, place.first - part.start, checkpoint, kind, place)
            trainer.goes_on()


def _load(values: torch.Tensor, first: int, checkpoint: Checkpoint, kind: str, place: Place) -> None:
    """Read a box of a parameter. An adapter that the checkpoint does not have stays as it is, but for norms of rows,
    which are those of the checkpoint's weights."""
    row, box = place.slot.row, place.box
    if is_added(row) and f"{kind}/{row.name}" not in checkpoint.manifest["tensors"]:
        if row.initial == "row_norms":
            base = base_name(row.name)
            kind = widest_kind(checkpoint, base)
            inputs = checkpoint.manifest["tensors"][f"{kind}/{base}"]["shape"][-1]
            wide = torch.promote_types(values.dtype, torch.float32)
            weight = checkpoint.read(f"{kind}/{base}", Box((*box.start, 0), (*box.shape, inputs)), wide)
            values[first : first + box.elements] = row_norms(weight).flatten().to(values)
        return
    read = checkpoint.read(f"{kind}/{place.slot.row.name}", place.box, values.dtype)
    values[first : first + place.box.elements] = read.reshape(-1).to(values.device)


def _owned_places(trainer: Trainer, bucket: Bucket) -> Iterator[Place]:
    return places(bucket, bucket.owned, trainer.plan, trainer.mesh)


def places(bucket: Bucket, part: slice, plan: Plan, mesh: Mesh) -> Iterator[Place]:
    """Yield the boxes of unsharded tensors in elements `part` of a bucket of this rank, without padding."""
    for slot in bucket.slots:
        start, stop = max(part.start, slot.start), min(part.stop, slot.stop)
        shape = local_shape(slot.row, plan.model, plan.layout)
        shard = shard_box(slot.row, plan.model, plan.layout, mesh.tensor.index, mesh.expert.index)
        real = Box(tuple(0 for _ in shape), shard.shape)
        for first, local in boxes_of_range(start - slot.start, stop - slot.start, shape):
            box = local.intersect(real)
            if box is not None:
                moved = tuple(a + b for a, b in zip(box.start, shard.start, strict=True))
                yield Place(slot, slot.start + first, Box(moved, box.shape))
