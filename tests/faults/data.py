"""Faults of data parallelism, of the sharded optimizer, of precision, and of the order of samples."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from faults.mutant import fault, plan, with_own
from trivium.comms.group import Group, PendingResult
from trivium.kernels.dropout import DropoutKey
from trivium.parallel.sharding import buckets, zero
from trivium.parallel.sharding.buckets import Bucket, GradientWatch
from trivium.plan.batch import Batch, Step
from trivium.plan.buckets import BucketRow
from trivium.plan.precision import Precision
from trivium.tokens.rows import Rows
from trivium.training import trainer
from trivium.training.batches import Read
from trivium.training.trainer import Samples

Tensor = torch.Tensor

REPLICAS = plan(data=2, zero=0)
SHARDED = plan(data=2, zero=1)
IN_COPIES = plan(data=4, shards=2, zero=1)
# Both ends are on the first rank, and the head's weight gradients come after everything else.
HEAD_LAST = (
    "F0.0 F1.0 F0.3 I0.3 F1.3 I1.3 I0.0 W0.0 I1.0 W1.0 W0.3 W1.3",
    "F0.1 F0.2 F1.1 F1.2 I0.2 I0.1 W0.2 W0.1 I1.2 I1.1 W1.2 W1.1",
)
TIED_ON_ONE_RANK = plan(pipeline=2, data=2, chunks=2, schedule="given", rows=HEAD_LAST, zero=0, batch={"sequences": 4})
RAMP = {"ramp": {"start": 2, "increment": 2, "samples": 6}, "sequences": 6}


@fault(buckets, "all_reduce_begin", REPLICAS)
def replicas_not_summed(original, mesh):
    """The sum of gradients over data ranks is missing: each replica trains alone."""
    return lambda x, group: PendingResult(None, x)


@fault(buckets, "reduce_scatter_begin", SHARDED)
def slices_not_summed(original, mesh):
    """Each data rank updates its slice with its own replica's gradient."""

    def begin(x: Tensor, group: Group) -> PendingResult:
        return PendingResult(None, x.chunk(group.size)[group.index].clone())

    return begin


@fault(buckets, "all_reduce_begin", IN_COPIES, plan(data=2, context=2, shards=2, zero=3))
def copies_not_summed(original, mesh):
    """Where several copies of the sharded state exist, each is trained by the gradients of its own ranks alone."""
    return lambda x, group: PendingResult(None, x)


@fault(zero.ShardedOptimizer, "_shares", IN_COPIES)
def every_copy_counted(original, mesh):
    """The norm counts a slice once for each of the ranks that hold it."""

    def shares(self: zero.ShardedOptimizer, *arguments: Any) -> Tensor:
        holders = [bucket.holders for bucket in self.buckets]
        for bucket in self.buckets:
            bucket.holders = replace(bucket.holders, index=0)
        found: Tensor = original(self, *arguments)
        for bucket, own in zip(self.buckets, holders, strict=True):
            bucket.holders = own
        return found

    return shares


@fault(Bucket, "reduced", REPLICAS, SHARDED)
def average_taken_twice(original, mesh):
    """Gradients are divided by the number of replicas in the loss and again after the sum; Adam hides the factor,
    the clip does not."""
    return lambda self: original(self) / (self.sharers.size * self.holders.size)


@fault(GradientWatch, "start_step", REPLICAS, SHARDED)
def reduced_before_the_last_micro_batch(original, mesh):
    """The reduction of a bucket starts in the backward of the first micro-batch; what follows is not reduced."""

    def start_step(self: GradientWatch) -> None:
        original(self)
        self._last.update((s.stage, False) for b in self._buckets for s in b.slots)
        for bucket in self._buckets:
            vars(bucket)["_begin_reduction"] = partial(_reduced_at_once, bucket)

    return start_step


def _reduced_at_once(bucket: Bucket) -> None:
    """Reduce synchronously: a slow neighbour that reads this memory later would find later micro-batches in it."""
    Bucket._begin_reduction(bucket)
    assert bucket._pending is not None, "the reduction was begun just above"
    bucket._pending.wait()


@fault(Bucket, "__init__", TIED_ON_ONE_RANK)
def tied_table_reduced_early(original, mesh):
    """The reduction of a tied table starts in the last backward of the embedding, before the deferred
    weight gradients of the head are added."""

    def init(self: Bucket, *arguments: Any) -> None:
        original(self, *arguments)
        if self.tied:
            self.tied = False
            vars(self)["_begin_reduction"] = partial(_reduced_at_once, self)

    return init


@fault(Bucket, "collect", plan(data=2, zero=2))
def sharded_gradients_overwritten(original, mesh):
    """With sharded gradients, the slice of a micro-batch replaces that of the earlier ones."""

    def collect(self: Bucket) -> None:
        if self._pending is not None:
            self.clear_gradients()
        original(self)

    return collect


@fault(Bucket, "clear_gradients", SHARDED)
def gradients_of_the_step_before(original, mesh):
    """Gradients are not cleared after the update."""
    return lambda self: None


@fault(Bucket, "publish", SHARDED, plan(data=2, zero=2))
def stale_after_the_update(original, mesh):
    """The all-gather after the sharded update is skipped: a rank continues with old weights outside its slice."""
    return lambda self: None


@fault(Bucket, "_free_weights", plan(data=2, zero=3))
def stale_gathered_weights(original, mesh):
    """With sharded weights, a module's gathered weights outlive the update and are used again."""
    kept: set[int] = set()

    def free(self: Bucket) -> None:
        if id(self) not in kept:  # freed once, at the start
            kept.add(id(self))
            original(self)

    return free


@fault(Bucket, "reduced", SHARDED)
def slice_off_by_one(original, mesh):
    """A data rank updates its slice with the gradient of one that begins one element early."""
    return lambda self: original(self).roll(1)


@fault(zero, "sum_over_ranks_begin", SHARDED)
def clipped_by_the_local_norm(original, mesh):
    """Each rank clips by the norm of the slice it updates."""

    return with_own(original, place=0)


@fault(trainer, "bucket_table", plan())
def norms_and_biases_decayed(original, mesh):
    """Flat buffers lose sight of what they hold: weight decay falls on norms and biases too."""

    def decayed(row: BucketRow) -> BucketRow:
        return row._replace(spans=tuple(s._replace(decayed=s.stop - s.start) for s in row.spans))

    return lambda plan, pipeline: tuple(decayed(row) for row in original(plan, pipeline))


@fault(Samples, "share", REPLICAS)
def replicas_read_the_same(original, mesh):
    """Every data rank reads the first replica's samples: the batch is smaller than it says."""
    return lambda self, rank, ranks: original(self, 0, ranks)


@fault(trainer, "DropoutKey", plan(data=2, model={"dropout": 0.2}))
def masks_equal_on_all_samples(original, mesh):
    """Every micro-batch of every replica drops the same elements."""

    def key(seed: int, step: int, samples: tuple[int, ...], sequence: int) -> DropoutKey:
        return DropoutKey(seed, step, tuple(range(len(samples))), sequence)

    return key


@fault(trainer, "DropoutKey", plan(model={"dropout": 0.2}))
def masks_equal_in_all_steps(original, mesh):
    """The generator has the same seed at every step."""
    return lambda seed, step, *more: DropoutKey(seed, 0, *more)


@fault(zero, "sum_over_ranks_begin", REPLICAS)
def loss_of_one_replica(original, mesh):
    """The reported loss is that of one replica, scaled up."""

    return with_own(original, place=4, times=mesh.data.size)


@fault(trainer, "padded", REPLICAS, plan(pipeline=2, context=2, model={"documents": "apart"}))
def padding_validated(original, mesh):
    """What fills the last micro-batches of a validation counts in its loss."""

    def padded(read: Read, end: int) -> Read:
        longer = original(read, end)

        def weighted(first: int, count: int) -> Rows:
            rows: Rows = longer(first, count)
            return rows._replace(weights=np.ones_like(rows.weights))

        return weighted

    return padded


@fault(Batch, "at", plan(batch=RAMP), plan(data=2, batch=RAMP))
def ramp_skips_samples(original, mesh):
    """At a rise of the batch, samples are counted as if all steps had been as large."""

    def at(self: Batch, step: int) -> Step:
        right: Step = original(self, step)
        return right._replace(first_sample=step * right.sequences)

    return at


@fault(Precision, "accumulation", plan())
def accumulated_in_bf16(original, mesh):
    """Gradients of micro-batches are added in bf16 although the accumulator has a wider dtype."""
    return lambda self: "bf16"


@fault(Precision, "reduction_of", SHARDED)
def reduced_in_bf16(original, mesh):
    """Gradients are summed over data ranks in bf16 instead of the accumulator's dtype."""
    return lambda self, once: "bf16"
