"""Parameters and gradients of a rank as flat buffers, as the bucket table of the plan lays them out.

ZeRO stages, by what each replica keeps of a bucket: 0 everything; 1 a slice of the optimizer's state; 2 also
only that slice of the gradients, which are reduced after every micro-batch; 3 also only that slice of the weights,
which are gathered around the module that uses them.

The ranks of a sharding group hold the slices of one copy. Between copies, only the sum of a step's gradients is sent.
At stage 0 each rank has a full copy.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from trivium.comms.collectives import all_gather_into, all_reduce_, all_reduce_begin, reduce_scatter_begin
from trivium.comms.encodings import encoded
from trivium.comms.group import Group, PendingResult, Waitable
from trivium.comms.mesh import Mesh
from trivium.kernels.arithmetic import Arithmetic
from trivium.kernels.scaled import Scaling
from trivium.parallel.sharding.gradient_sum import GradientSum
from trivium.parallel.sharding.narrow_gather import NarrowGather
from trivium.plan.buckets import BucketRow, Item
from trivium.plan.layers.part import Parameter
from trivium.plan.messages import EXACT, Messages

Tensor = torch.Tensor
ZeroStage = Literal[0, 1, 2, 3]

# Gradients with at most this many elements are copied in one launch together: a layer has eight of them.
MAX_WAITING_ELEMENTS = 1 << 16


@dataclass(frozen=True)
class Slot:
    """One parameter's place in a bucket: elements [start, stop). `counts`: this rank's copy enters the norm
    and the checkpoint (copies on other tensor ranks, or of a tied table, do not)."""

    row: Parameter
    parameter: torch.nn.Parameter
    stage: int
    start: int
    stop: int
    counts: bool


@dataclass(frozen=True)
class Dtypes:
    """Dtypes of the weights, of accumulated gradients, of gradients in their reduction, and of master weights.
    messages: how sent values are encoded."""

    weights: torch.dtype
    gradients: torch.dtype
    reduction: torch.dtype
    masters: torch.dtype
    messages: Messages = EXACT


class Bucket:
    """Flat weights [padded], of which the parameters are views; the sum of gradients [padded], or from stage 2 on of
    this rank's slice; `shard`: the slice of the weights that this replica updates (all of them at stage 0)."""

    def __init__(
        self,
        row: BucketRow,
        slots: Sequence[Slot],
        mesh: Mesh,
        zero: ZeroStage,
        dtypes: Dtypes,
        scaling: Scaling | None = None,
    ) -> None:
        groups: Mapping[str, Group] = {"tensor": mesh.tensor, "ends": mesh.ends}
        self.slots, self.tied, self.padded = tuple(slots), row.tied, row.padded
        self.spans, self.trains = row.spans, row.trains
        self.partial_over = tuple(groups[over] for over in row.partial_over)
        alone = Group("sharers", (mesh.rank,), 0, None)
        self.replicas = mesh.expert_replicas if row.by_expert else mesh.replicas
        sharers = mesh.expert_sharers if row.by_expert else mesh.sharers
        self.sharers, self.holders = (sharers, mesh.holders) if zero >= 1 else (alone, self.replicas)
        self.zero, self.dtypes = zero, dtypes
        self._publishers = encoded(self.sharers, "exact" if row.wide else dtypes.messages.weights)
        dtype = dtypes.masters if row.wide else dtypes.weights
        self._flat = torch.zeros(row.padded, dtype=dtype, device=mesh.device)
        for slot in slots:
            view = self._flat[slot.start : slot.stop].view(slot.parameter.shape)
            view.copy_(slot.parameter.detach())
            slot.parameter.data = view
            slot.parameter.requires_grad_(row.trains)
        self.shard = self._flat[self.owned]
        size = row.padded if zero < 2 else len(self.shard)
        self._sum = self._new_sum(size)
        self._open: GradientSum | None = None  # from stage 2 on: full gradients of the current backward
        self._pending: PendingResult | None = None
        # Whether autograd adds gradients into the buffer; then only the last one of a step needs work.
        self.adds_itself = zero < 2 and dtypes.gradients == dtypes.weights
        self._unready = self._unfinished = 0
        self._summing_copies = False
        self._held = 0
        self._gathering: Waitable | None = None  # all-gather before use, at stage 3
        self._publishing: Waitable | None = None  # all-gather after an update, below stage 3
        self.narrow: NarrowGather | None = None
        if zero >= 3:
            self.shard = self.shard.clone()
            self._free_weights()
            if row.float8 and scaling is not None and self.sharers.size > 1:
                matrices = [m for slot in slots for m in _matrices(slot)]
                self.narrow = NarrowGather(matrices, self.owned, scaling, (self.sharers, mesh.tensor))

    def _new_sum(self, size: int) -> GradientSum:
        return GradientSum(size, self.dtypes.gradients, self._flat.device)

    @property
    def weights(self) -> Tensor:
        """The flat weights, after those that other ranks have updated have arrived."""
        self.published()
        return self._flat

    @property
    def gradients(self) -> Tensor:
        """The sum so far: [padded], or from stage 2 on this rank's slice. Empty before the first gradient."""
        return self._sum.flat

    @property
    def owned(self) -> slice:
        """The elements that this rank and the rest of its replicate group update."""
        size = self.padded // self.sharers.size
        return slice(self.sharers.index * size, (self.sharers.index + 1) * size)

    @property
    def has_copies(self) -> bool:
        """Whether other ranks hold the same slice."""
        return self.zero >= 1 and self.holders.size > 1

    # Gradients

    def expect(self) -> None:
        """Prepare for a step: no gradient is accumulated yet."""
        self._unready = self._unfinished = len(self.slots)
        self._summing_copies = False

    def accumulated(self, slot: Slot, *, last: bool) -> bool:
        """Count a parameter's gradient of one more micro-batch. last: whether it is the step's last. Returns whether
        this began the step's last reduction."""
        if not (last and self._waits(slot)):
            self._take(slot)
        # A tied table's gradient has two parts, and is complete only after the step's last backward.
        ends = last and not self.tied
        self._unfinished -= ends
        finished = ends and self._unfinished == 0
        if self.zero < 2:
            if finished:
                self._begin_reduction()
            return finished
        self._unready -= 1
        if self._unready == 0:
            # There were as many contributions as slots. Sums commute, so their micro-batches do not matter.
            self.collect()
            assert self._open is not None, "every contribution was taken"
            self._begin(self._open.whole())
            self._open = None
            self._unready = len(self.slots)
        return finished

    def sum_copies(self) -> None:
        """Start the sum of this rank's slice over the replicate group, if there are several copies. Once a step, after
        its last reduction has begun; called for all buckets before `reduced` waits for the first, so that the messages
        overlap."""
        if self.has_copies and not self._summing_copies:
            self._summing_copies = True
            mine = self._of_sharers().to(self.dtypes.reduction)
            self._pending = all_reduce_begin(mine, encoded(self.holders, self.dtypes.messages.gradients))

    def reduced(self) -> Tensor:
        """Return this rank's slice of the step's gradient, summed over all ranks that hold a part of it."""
        mine = self.over_replicas()
        for group in self.partial_over:
            all_reduce_(mine, group)
        return mine

    def over_replicas(self) -> Tensor:
        """Return this rank's slice of the step's gradient, summed over the replicas."""
        self.sum_copies()
        return (self._taken() if self.has_copies else self._of_sharers()).to(self.gradients.dtype)

    def summed(self) -> Tensor:
        """Return this rank's own sum of the step's gradients, before any reduction (below stage 2)."""
        self._take_small()
        for slot in self.slots:
            self._take(slot)  # autograd has put this gradient into another tensor
        return self._sum.whole()

    def give(self, mine: Tensor) -> None:
        """Use the result of a CUDA graph replay (below stage 2). mine: the tensor that `over_replicas` returned during
        capture."""
        self._summing_copies, self._pending = True, PendingResult(None, mine)

    def _of_sharers(self) -> Tensor:
        """Return this rank's slice, summed over the sharding group; at stage 0 the full gradient, over all replicas."""
        if self.zero < 2:
            self._begin_reduction()
            return self._taken()
        assert self._unready == len(self.slots), "a backward of this step is missing"
        self.collect()
        return self._sum.whole()

    def _taken(self) -> Tensor:
        """Wait for the reduction in progress and return its result."""
        assert self._pending is not None, "a sum was begun just before"
        result, self._pending = self._pending.wait(), None
        return result

    def has_begun(self, slot: Slot) -> bool:
        """Whether the sum holds a gradient of this slot's parameter."""
        return self._sum.has_begun(slot.start)

    def clear_gradients(self) -> None:
        """Free the gradients after a step."""
        if self.adds_itself:
            for slot in self.slots:
                slot.parameter.grad = None
        self._sum.clear()

    def add_product(self, slot: Slot, grad: Tensor, x: Tensor, arithmetic: Arithmetic, matrix: int | None) -> None:
        """Add grad^T x to the sum of a slot's gradient, or of one of its matrices; grad [T, O], x [T, I]."""
        start, stop = slot.start, slot.stop
        if matrix is not None:
            size = grad.shape[1] * x.shape[1]
            start += matrix * size
            stop = start + size
        self._parts().add_product(start, stop, grad, x, arithmetic)

    def _parts(self) -> GradientSum:
        """Return the buffer to which the current backward adds gradients."""
        if self.zero < 2:
            return self._sum
        self._open = self._open or self._new_sum(self.padded)
        return self._open

    def _take(self, slot: Slot) -> None:
        """Add a parameter's gradient to the sum, unless autograd has added it there already."""
        grad = slot.parameter.grad
        if grad is None:
            return
        parts = self._parts()
        if parts.is_at(slot.start, grad):
            return
        place = parts.add(slot.start, grad)
        slot.parameter.grad = place if self.adds_itself else None

    def _waits(self, slot: Slot) -> bool:
        """Whether the step's last gradient of this slot is stored together with others, just before the reduction."""
        return self.zero < 2 and not self.tied and slot.stop - slot.start <= MAX_WAITING_ELEMENTS

    def _take_small(self) -> None:
        """Store, in one launch, the gradients that waited and are the first of their parameters in this step."""
        first = {
            slot.start: (slot.parameter, grad)
            for slot in self.slots
            if self._waits(slot)
            and (grad := slot.parameter.grad) is not None
            and not (grad.is_sparse or self._sum.has_begun(slot.start))
        }
        if len(first) > 1:  # a single one may become the full sum without a copy
            places = self._sum.store({start: grad for start, (_, grad) in first.items()})
            for (parameter, _), place in zip(first.values(), places, strict=True):
                parameter.grad = place if self.adds_itself else None

    def _begin_reduction(self) -> None:
        if self._pending is None:
            self._begin(self.summed())

    def _begin(self, whole: Tensor) -> None:
        """Start the gradient reduction: reduce-scatter in the sharding group; at stage 0 all-reduce over replicas."""
        narrow = whole.to(self.dtypes.reduction)
        if self.zero >= 1:
            self._pending = reduce_scatter_begin(narrow, encoded(self.sharers, self.dtypes.messages.gradients))
        else:
            self._pending = all_reduce_begin(narrow, encoded(self.holders, self.dtypes.messages.gradients))

    @property
    def is_reducing(self) -> bool:
        """Whether a reduction is in progress."""
        return self._pending is not None

    def collect(self) -> None:
        """Wait for the reduced slice and add it to this rank's gradients (ZeRO-2 and -3). The full gradient is free
        afterwards."""
        if self._pending is not None:
            self._sum.add(0, self._pending.wait())
            self._pending = None

    # Weights

    def add_to(self, slot: Slot, change: Tensor) -> None:
        """Add to a frozen parameter. Every rank calls this with the same change, and nothing is sent."""
        if self.zero < 3:
            self.weights[slot.start : slot.stop].add_(change.flatten())
            return
        first, size = self.owned.start, len(self.shard)
        start, stop = max(slot.start, first), min(slot.stop, first + size)
        if start < stop:
            self.shard[start - first : stop - first].add_(change.flatten()[start - slot.start : stop - slot.start])

    def publish(self) -> None:
        """Start to gather the updated slices of the sharding group on all ranks that keep full weights (ZeRO-1 and
        -2)."""
        if 1 <= self.zero <= 2:
            self._publishing = all_gather_into(self._flat, self.shard, self._publishers, wait=False)

    def published(self) -> None:
        """Wait until the all-gather of `publish` is complete."""
        if self._publishing is not None:
            self._publishing.wait()
            self._publishing = None

    def hold(self) -> None:
        """Return when the full weights are gathered. At stage 3 an equal number of `drop` calls frees them."""
        if self.zero < 3:
            self.published()
            return
        self.prefetch()
        if self._gathering is not None:
            self._gathering.wait()
            self._gathering = None
            if self.narrow is not None:
                self.narrow.finish(self._flat)
        self._held += 1

    def drop(self) -> None:
        """End a `hold`."""
        if self.zero < 3:
            return
        self._held -= 1
        if self._held == 0:
            self._free_weights()

    def prefetch(self) -> None:
        """Start the all-gather of the weights, so that a later `hold` need not wait (ZeRO-3)."""
        storage = self._flat.untyped_storage()
        if self.zero >= 3 and storage.size() == 0:
            storage.resize_(self.padded * self._flat.element_size())
            if self.narrow is not None:
                self._gathering = self.narrow.begin(self.shard, self.padded)
            else:
                self._gathering = all_gather_into(self._flat, self.shard, self._publishers, wait=False)

    def _free_weights(self) -> None:
        self._flat.untyped_storage().resize_(0)


def make_buckets(
    rows: Iterable[BucketRow],
    parameter_of: Callable[[Item], torch.nn.Parameter],
    mesh: Mesh,
    *,
    zero: ZeroStage,
    dtypes: Dtypes,
    scaling: Scaling | None = None,
) -> list[Bucket]:
    """Move every parameter into the buffers of the table. scaling: for weights that are gathered in 8 bits."""
    return [Bucket(row, _slots(row, parameter_of, mesh), mesh, zero, dtypes, scaling) for row in rows]


class GradientWatch:
    """Notifies buckets when a parameter's gradient was accumulated, and whether for the last time in the step."""

    def __init__(self, buckets: Iterable[Bucket]) -> None:
        self._buckets = list(buckets)
        self._reducing: Bucket | None = None  # the bucket whose last reduction of the step began last
        self._under_way: Bucket | None = None  # from stage 2 on: whose reduction began last
        # (stage, whether its weight gradients are deferred) whose last backward has begun.
        self._last: set[tuple[int, bool]] = set()
        self._places: dict[int, tuple[Slot, Bucket]] = {}
        for bucket in self._buckets:
            for slot in bucket.slots:
                self._places[id(slot.parameter)] = slot, bucket
                slot.parameter.register_post_accumulate_grad_hook(self._by_autograd())

    def start_step(self) -> None:
        """Forget the previous step."""
        self._last.clear()
        self._reducing = self._under_way = None
        for bucket in self._buckets:
            bucket.expect()

    def last_backward(self, stage: int, *, put_off: bool = False) -> None:
        """Announce the last backward of `stage` in this step. put_off: it is the computation of deferred weight
        gradients."""
        self._last.add((stage, put_off))

    def takes(self, weight: torch.nn.Parameter) -> bool:
        """Whether products of this weight are added here immediately. For a tied table autograd first adds both
        gradients, so that only one is reduced."""
        return not self._places[id(weight)][1].tied

    def add(
        self, weight: torch.nn.Parameter, grad: Tensor, x: Tensor, arithmetic: Arithmetic, matrix: int | None
    ) -> None:
        """Add grad^T x to the sum of this weight's gradient, or of one of its matrices; grad [T, O], x [T, I]."""
        slot, bucket = self._places[id(weight)]
        bucket.add_product(slot, grad, x, arithmetic, matrix)

    def added(self, weight: torch.nn.Parameter) -> None:
        """Count a product that a backward has added."""
        slot, bucket = self._places[id(weight)]
        self._count(slot, bucket, last=(slot.stage, False) in self._last)

    def finished(self, parameter: torch.nn.Parameter) -> None:
        """Count a deferred weight gradient that has been added."""
        slot, bucket = self._places[id(parameter)]
        self._count(slot, bucket, last=(slot.stage, True) in self._last)

    def _count(self, slot: Slot, bucket: Bucket, *, last: bool) -> None:
        """Count a contribution to a bucket's gradients.

        When the reduction of a bucket begins, the previous one is nearly complete. Its copies are then summed, if this
        is the last reduction of the step, while the backward continues. At ZeRO-2 and -3 it is also collected, because
        otherwise every full gradient, from which other ranks read their slices, would stay until the next micro-batch.
        """
        finished = bucket.accumulated(slot, last=last)
        if bucket.zero >= 2 and bucket.is_reducing and bucket is not self._under_way:
            if self._under_way is not None:
                self._under_way.collect()
            self._under_way = bucket
        if finished:
            if self._reducing is not None:
                self._reducing.sum_copies()
            self._reducing = bucket

    def _by_autograd(self) -> Callable[[Tensor], None]:
        # The garbage collector does not see hooks that autograd holds: objects they refer to would never be freed.
        watch = weakref.ref(self)

        def accumulated(parameter: Tensor) -> None:
            here = watch()
            if here is not None:
                here._accumulated(parameter)

        return accumulated

    def _accumulated(self, parameter: Tensor) -> None:
        """Called when autograd has added to a parameter's gradient."""
        slot, bucket = self._places[id(parameter)]
        last = (slot.stage, False) in self._last
        if last or not bucket.adds_itself or not bucket.has_begun(slot):
            self._count(slot, bucket, last=last)


def _matrices(slot: Slot) -> list[slice]:
    """Return the elements of each matrix of a slot: one, or those of experts."""
    size = (slot.stop - slot.start) // (len(slot.parameter) if slot.row.by_expert else 1)
    return [slice(start, start + size) for start in range(slot.start, slot.stop, size)]


def _slots(row: BucketRow, parameter_of: Callable[[Item], torch.nn.Parameter], mesh: Mesh) -> list[Slot]:
    slots, start = [], 0
    for item in row.items:
        stop = start + item.elements
        counts = not item.borrowed and (item.parameter.split is not None or mesh.tensor.index == 0)
        slots.append(Slot(item.parameter, parameter_of(item), item.stage, start, stop, counts))
        start += item.room
    return slots
