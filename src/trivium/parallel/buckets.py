"""Parameters and gradients of a rank as flat buffers, as the bucket table of the plan lays them out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from trivium.parallel.collectives import PendingSlice, all_gather_into, all_reduce_, reduce_scatter_begin
from trivium.parallel.mesh import Group, Mesh
from trivium.plan.buckets import BucketRow, Item
from trivium.plan.parameters import Parameter

Tensor = torch.Tensor


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


@dataclass(eq=False)
class Bucket:
    """Flat weights, of which the parameters are views, and flat gradients [elements, padded]."""

    slots: tuple[Slot, ...]
    weights: Tensor
    gradients: Tensor
    decay: bool
    tied: bool
    partial_over: tuple[Group, ...]  # groups over which gradients are summed before the data ranks'
    data: Group
    sharded: bool  # each data rank owns a slice (ZeRO stage 1 and up); otherwise each owns all
    reduction: torch.dtype
    _pending: PendingSlice | None = field(default=None, repr=False)
    _unready: int = field(default=0, repr=False)

    @property
    def owned(self) -> slice:
        """The elements this data rank updates."""
        if not self.sharded:
            return slice(0, len(self.weights))
        size = len(self.weights) // self.data.size
        return slice(self.data.index * size, (self.data.index + 1) * size)

    @property
    def overlaps(self) -> bool:
        """Whether its reduction may start inside the backward.

        Not a tied table's: its gradient has two parts; and where those are on two pipeline ranks, the last
        would wait here for the first, which waits for gradients that the last has yet to send.
        """
        return not self.tied

    def expect(self) -> None:
        """Before a step: the reduction starts when every slot is ready."""
        self._unready = len(self.slots)

    def ready(self) -> None:
        """One more slot has its whole gradient of this step."""
        self._unready -= 1
        if self._unready == 0 and self.overlaps:
            self.begin_reduction()

    def begin_reduction(self) -> None:
        """Start the sum over data ranks of every slice, each to its owner."""
        if self._pending is not None:
            return
        for group in self.partial_over:
            all_reduce_(self.gradients, group)
        if not self.sharded:
            self._pending = PendingSlice(None, self.gradients, summed=True)
            self._all_reduce()
            return
        self._pending = reduce_scatter_begin(self.gradients.to(self.reduction), self.data)

    def reduced(self) -> Tensor:
        """This rank's owned slice of the summed gradient, in the accumulation dtype."""
        self.begin_reduction()
        assert self._pending is not None, "begin_reduction leaves a pending slice"
        mine = self._pending.wait().to(self.gradients.dtype)
        self._pending = None
        return mine

    def gather_weights(self) -> None:
        """Every data rank's updated slice, to all."""
        if self.sharded:
            all_gather_into(self.weights, self.weights[self.owned].clone(), self.data)

    def _all_reduce(self) -> None:
        if self.reduction == self.gradients.dtype:
            all_reduce_(self.gradients, self.data)
        else:
            self.gradients.copy_(all_reduce_(self.gradients.to(self.reduction), self.data))


@dataclass(frozen=True)
class Dtypes:
    """accumulation: of gradients. reduction: of gradients on the wire."""

    accumulation: torch.dtype
    reduction: torch.dtype


def make_buckets(
    rows: Iterable[BucketRow],
    parameter_of: Callable[[Item], torch.nn.Parameter],
    mesh: Mesh,
    *,
    dtypes: Dtypes,
    sharded: bool,
) -> list[Bucket]:
    """Move every parameter into the buffers of the table."""
    groups: Mapping[str, Group] = {"tensor": mesh.tensor, "ends": mesh.ends}
    return [
        _bucket(
            row,
            [parameter_of(i) for i in row.items],
            mesh,
            tuple(groups[over] for over in row.partial_over),
            dtypes=dtypes,
            sharded=sharded,
        )
        for row in rows
    ]


class GradientWatch:
    """Knows when a parameter's gradient of a step is whole, and starts the reduction of full buckets then."""

    def __init__(self, buckets: Iterable[Bucket]) -> None:
        self._buckets = list(buckets)
        # (stage, whether weight gradients come in actions of their own) whose last backward has begun.
        self._last: set[tuple[int, bool]] = set()
        self._places: dict[int, tuple[Slot, Bucket]] = {}
        for bucket in self._buckets:
            for slot in bucket.slots:
                self._places[id(slot.parameter)] = slot, bucket
                slot.parameter.register_post_accumulate_grad_hook(self._by_autograd)

    def start_step(self) -> None:
        """Forget the previous step."""
        self._last.clear()
        for bucket in self._buckets:
            bucket.expect()

    def last_backward(self, stage: int, *, put_off: bool = False) -> None:
        """The last backward of `stage` in this step begins; put_off: of the weight gradients that were put off."""
        self._last.add((stage, put_off))

    def finished(self, parameter: torch.nn.Parameter) -> None:
        """A weight gradient that was put off has been added."""
        self._accumulated(parameter, put_off=True)

    def _by_autograd(self, parameter: torch.Tensor) -> None:
        self._accumulated(parameter, put_off=False)

    def _accumulated(self, parameter: torch.Tensor, *, put_off: bool) -> None:
        slot, bucket = self._places[id(parameter)]
        gradient = bucket.gradients[slot.start : slot.stop].view(slot.parameter.shape)
        # Autograd adds into a gradient of the parameter's own dtype; a wider buffer is added to here.
        if parameter.grad is not None and parameter.grad.data_ptr() != gradient.data_ptr():
            gradient.add_(parameter.grad)
            parameter.grad = None
        if (slot.stage, put_off) in self._last:
            bucket.ready()


def _bucket(
    row: BucketRow,
    parameters: Sequence[torch.nn.Parameter],
    mesh: Mesh,
    partial_over: tuple[Group, ...],
    *,
    dtypes: Dtypes,
    sharded: bool,
) -> Bucket:
    weights = torch.zeros(row.padded, dtype=parameters[0].dtype, device=mesh.device)
    gradients = torch.zeros(row.padded, dtype=dtypes.accumulation, device=mesh.device)
    slots, start = [], 0
    for item, parameter in zip(row.items, parameters, strict=True):
        stop = start + item.elements
        view = weights[start:stop].view(parameter.shape)
        view.copy_(parameter.detach())
        parameter.data = view
        if dtypes.accumulation == parameter.dtype:
            parameter.grad = gradients[start:stop].view(parameter.shape)
        counts = not item.borrowed and (item.parameter.split is not None or mesh.tensor.index == 0)
        slots.append(Slot(item.parameter, parameter, item.stage, start, stop, counts))
        start = stop
    return Bucket(
        slots=tuple(slots),
        weights=weights,
        gradients=gradients,
        decay=row.decay,
        tied=row.tied,
        partial_over=partial_over,
        data=mesh.data,
        sharded=sharded,
        reduction=dtypes.reduction,
    )
