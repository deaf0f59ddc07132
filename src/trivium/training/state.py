"""What a rank gives to a checkpoint and takes from one: its owned slices, as boxes of unsplit tensors."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trivium.checkpoint.agree import problem_of_any, sums, told_by_first
from trivium.checkpoint.format import boxes_of_range
from trivium.checkpoint.load import Checkpoint, widest_kind
from trivium.checkpoint.pieces import is_finite
from trivium.checkpoint.save import Fragment, save
from trivium.checkpoint.verify import NOT_FINITE
from trivium.config import to_tree
from trivium.errors import CheckpointError
from trivium.parallel.sharding.buckets import Bucket, Slot
from trivium.parallel.sharding.shard import Shard
from trivium.plan.parameters import Box, local_shape, shard_box
from trivium.plan.plan import Plan
from trivium.training.loss_scale import LossScale
from trivium.training.same_work import refuse_other_state, refuse_weights_alone
from trivium.training.trainer import Trainer


class Place(NamedTuple):
    """Elements [first, first + box.elements) of a bucket hold `box` of the unsplit tensor of a slot."""

    slot: Slot
    first: int
    box: Box


def fragments(trainer: Trainer) -> list[Fragment]:
    """Every tensor this rank must write: weights, masters and moments of what it owns, each element once over
    all ranks."""
    found = []
    for number, (bucket, shard) in enumerate(_kept(trainer)):
        owned = bucket.owned
        # Of the holders of a slice one writes it, in turn: all ranks that share copies write.
        if bucket.holders.index != (number % bucket.holders.size if bucket.zero >= 1 else 0):
            continue
        for place in places(bucket, owned, trainer.plan, trainer.mesh.tensor.index):
            if not place.slot.counts:
                continue
            row, first, count = place.slot.row, place.first - owned.start, place.box.elements
            tensors = {"weights": bucket.shard[first : first + count], **_state(trainer, shard, first, count)}
            found += [Fragment(f"{kind}/{row.name}", row.shape, place.box, values) for kind, values in tensors.items()]
    return found


def _kept(trainer: Trainer) -> Iterator[tuple[Bucket, Shard | None]]:
    """Every bucket, with its shard of the optimizer where it is trained."""
    shards = {id(shard.bucket): shard for shard in trainer.optimizer.shards}
    return ((bucket, shards.get(id(bucket))) for bucket in trainer.buckets)


def _state(trainer: Trainer, shard: Shard | None, first: int, count: int) -> dict[str, torch.Tensor]:
    """The master weights, where they are apart, and the states of elements of a slice, all of one parameter."""
    found = {} if shard is None else shard.tensors(first, count)
    if not trainer.plan.precision.has_master:
        found.pop("master", None)
    return found


def soundness(trainer: Trainer, updates: int) -> str:
    """Which tensor of the state holds what is not finite, and where none does, which weights are largest: for the
    message about a loss that is not finite. Every rank must ask. updates: the step whose update was the last."""
    held = fragments(trainer)
    bad = next((f.name for f in held if not is_finite(f.values)), "")
    told = told_by_first(bad, trainer.mesh)
    if told:
        return f"{told} {NOT_FINITE} since the update of step {updates}"
    sizes = {f.name: float(f.values.abs().max()) for f in held if f.values.is_floating_point()}
    weights = {name: size for name, size in sizes.items() if name.startswith("weights/")}
    largest = max(weights, key=lambda name: weights[name], default="")
    here = trainer.mesh.rank
    each = [weights.get(largest, 0.0) if rank == here else 0.0 for rank in range(trainer.mesh.layout.world_size)]
    of_ranks = sums(each, trainer.mesh)
    mine = largest if of_ranks.index(max(of_ranks)) == here else ""
    name = told_by_first(mine, trainer.mesh)
    return f"the state after the update of step {updates} is finite, its largest weight {max(of_ranks):.3g} in {name}"


def save_state(trainer: Trainer, root: str | Path, step: int) -> Path:
    """Publish a checkpoint of the first `step` steps under `root`, and return its directory; every rank calls this.

    `restore` takes it into any layout, and what reads a run's checkpoints reads it. Raises CheckpointError on every
    rank where one cannot write.
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
    return save(Path(root), step, fragments(trainer), trainer.mesh, about)


def read_together(read: Callable[[Trainer, Checkpoint], None], trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Let every rank `read` in its own time, `restore` or `begin_with`: a host whose file system is slow makes no
    collective of others time out, and who reads or waits gives signs of life. CheckpointError on every rank when one
    fails."""
    problem = problem_of_any(partial(read, trainer, checkpoint), trainer.mesh, trainer.goes_on)
    if problem:
        raise CheckpointError(problem)


@torch.no_grad()
def restore(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Fill weights, masters and moments from a checkpoint written under any layout; a rank reads its own boxes.

    checkpoint: verified, as `Checkpoint.open_together` gives it. Raises CheckpointError before anything is filled where
    it is of another model or precision, or holds weights alone.
    """
    plan, index = trainer.plan, trainer.mesh.tensor.index
    refuse_weights_alone(checkpoint.directory, checkpoint.manifest)
    if "plan" in checkpoint.manifest:
        refuse_other_state(checkpoint.directory, checkpoint.plan, plan)
    _fill_weights(trainer, checkpoint)
    for shard in trainer.optimizer.shards:
        bucket = shard.bucket
        for place in places(bucket, bucket.owned, plan, index):
            first = place.first - bucket.owned.start
            for kind, values in _state(trainer, shard, first, place.box.elements).items():
                _fill(values, 0, checkpoint, kind, place)
                trainer.goes_on()
    # An fp16 step that overflows updates nothing, so the optimizer may have done fewer.
    trainer.optimizer.steps_done = int(checkpoint.manifest.get("updates", checkpoint.step))
    scale = checkpoint.manifest.get("loss_scale")
    if scale and trainer.loss_scale:
        trainer.loss_scale = LossScale(**scale)


@torch.no_grad()
def begin_with(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Take the weights of a checkpoint, of any dtype, and nothing else: moments are zero, no step is done.

    Masters are its masters, where it has any, and otherwise its weights: neither is rounded.
    """
    _fill_weights(trainer, checkpoint, from_widest=True)
    trainer.optimizer.restart_masters()
    if trainer.plan.precision.has_master:
        for shard in trainer.optimizer.shards:
            bucket = shard.bucket
            for place in places(bucket, bucket.owned, trainer.plan, trainer.mesh.tensor.index):
                kind = widest_kind(checkpoint, place.slot.row.name)
                _fill(shard.master, place.first - bucket.owned.start, checkpoint, kind, place)
                trainer.goes_on()


def progress_of(trainer: Trainer) -> dict[str, Any]:
    """What a checkpoint's manifest keeps of the trainer besides tensors."""
    scale = trainer.loss_scale
    return {"updates": trainer.optimizer.steps_done, "loss_scale": asdict(scale) if scale else None}


def _fill_weights(trainer: Trainer, checkpoint: Checkpoint, *, from_widest: bool = False) -> None:
    plan = trainer.plan
    for bucket in trainer.buckets:
        whole = slice(0, bucket.padded) if plan.zero < 3 else bucket.owned
        values = bucket.weights if plan.zero < 3 else bucket.shard
        for place in places(bucket, whole, plan, trainer.mesh.tensor.index):
            kind = widest_kind(checkpoint, place.slot.row.name) if from_widest else "weights"
            _fill(values, place.first - whole.start, checkpoint, kind, place)
            trainer.goes_on()


def _fill(values: torch.Tensor, first: int, checkpoint: Checkpoint, kind: str, place: Place) -> None:
    read = checkpoint.read(f"{kind}/{place.slot.row.name}", place.box, values.dtype)
    values[first : first + place.box.elements] = read.reshape(-1).to(values.device)


def places(bucket: Bucket, part: slice, plan: Plan, tensor: int) -> Iterator[Place]:
    """The boxes of unsplit tensors that elements `part` of a bucket hold; padding holds none."""
    for slot in bucket.slots:
        start, stop = max(part.start, slot.start), min(part.stop, slot.stop)
        shape = local_shape(slot.row, plan.model, plan.layout)
        shard = shard_box(slot.row, plan.model, plan.layout, tensor)
        real = Box(tuple(0 for _ in shape), shard.shape)
        for first, local in boxes_of_range(start - slot.start, stop - slot.start, shape):
            box = local.intersect(real)
            if box is not None:
                moved = tuple(a + b for a, b in zip(box.start, shard.start, strict=True))
                yield Place(slot, slot.start + first, Box(moved, box.shape))
