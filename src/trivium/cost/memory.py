"""Bytes that a rank holds by category, for one plan or thousands at once.

Weights, gradients, optimizer state and activations equal the runtime's own counts to the byte (docs/memory.md lists the
tested layouts). The other categories are allocations that the runtime does not count: buffers of transfers and
collectives, and workspaces. Allocator overhead and libraries are not included.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Generic, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from trivium.cost.activations import (
    Counting,
    embedding_bytes,
    head_bytes,
    input_bytes,
    layer_bytes,
    logits_bytes,
    put_off_bytes,
)
from trivium.cost.case import ATTENTION, NONE, Case, case_of, take
from trivium.cost.memory_peaks import MemoryPeak, peaks_of_case, peaks_of_rank
from trivium.cost.rank_parameters import (
    Elements,
    elements_of_rank,
    embedding_parameters,
    largest_parameter,
    layer_experts,
    layer_parameters,
    layer_wide,
    rank_parameters,
    slice_elements,
    table_parameters,
)
from trivium.plan.buckets import UPDATE_ELEMENTS, bucket_elements
from trivium.plan.layers.layer import Layer
from trivium.plan.layers.part import Number, entries
from trivium.plan.layout import Coordinate
from trivium.plan.offload import PIECE_ELEMENTS, PIECES_HERE
from trivium.plan.plan import Plan
from trivium.plan.schedule import ScheduleName

RECEIVES_AHEAD = 4  # receives that trivium.comms.transfers posts ahead
LOSS_ROWS = 256  # positions per block of trivium.parallel.tensor.vocabulary
MATRIX_COPIES = 4  # while a matrix rule computes an update: the exchanged matrix, the matrix, two of an iteration
OPEN_BUCKETS = 2  # gradient buckets at ZeRO-2 and -3: one being filled, one being reduced


Array = NDArray[np.float64]
Bytes = TypeVar("Bytes", int, Array, default=int)


@dataclass(frozen=True)
class MemoryEstimate(Generic[Bytes]):
    """Bytes of one rank at the memory peak of a step; each a number, or an array with one entry per plan.

    gradients: accumulated gradients, from the first backward of a step to its update. opened: those that exist at
    the activation peak, and the head's gradient of a tied table, which waits for the embedding's. masters: fp32 copy of
    narrower weights. moments: optimizer states. activations: kept for the backward; `embedding` and `logits` are parts
    of them. recomputed: allocated again in the backward of a stage's last layer. put_off: factors of deferred weight
    gradients beyond the activations, which count as kept until then. transport: activations being received. returned:
    those on their way to the host or back. gathered: weights that ZeRO stage 3 has gathered. unreduced: unsharded
    gradients of stages 2 and 3 before their reduction. loss: additional bytes of the loss and its backward. freed:
    activations that are freed after the loss, before the backward of a layer. workspace: of a layer's largest
    operations. ending: bytes beyond the gradients at the end of the last backward, in its first layer or the embedding.
    reduction: buffers of the gradient reduction after it, when the activations are freed. host: what the host keeps of
    optimizer state and activations; no part of the total.
    """

    weights: Bytes
    gradients: Bytes
    opened: Bytes
    masters: Bytes
    moments: Bytes
    activations: Bytes
    embedding: Bytes
    logits: Bytes
    recomputed: Bytes
    put_off: Bytes
    transport: Bytes
    returned: Bytes
    gathered: Bytes
    unreduced: Bytes
    loss: Bytes
    freed: Bytes
    workspace: Bytes
    ending: Bytes
    reduction: Bytes
    host: Bytes

    @property
    def optimizer(self) -> Bytes:
        """Masters and moments."""
        return self.masters + self.moments

    @property
    def state(self) -> Bytes:
        """Weights, gradients and optimizer state."""
        return self.weights + self.gradients + self.optimizer

    @property
    def working(self) -> Bytes:
        """Additional bytes at the activation peak: during the loss, or in the backward of a layer after it."""
        held = self.activations + self._open
        return _larger(held + self.loss, held - self.freed + self.recomputed + self.workspace)

    @property
    def last(self) -> Bytes:
        """Bytes beyond the state at the end of the last backward, or during the reduction after it."""
        return _larger(self._open + self.ending, self.reduction)

    @property
    def _open(self) -> Bytes:
        return self.put_off + self.transport + self.returned + self.gathered + self.unreduced

    @property
    def total(self) -> Bytes:
        """Peak bytes of the step: the larger of the activation peak and the peak at the end of the last backward or
        during gradient reduction."""
        always = self.weights + self.optimizer
        return always + _larger(self.opened + self.working, self.gradients + self.last)

    def categories(self) -> dict[str, Bytes]:
        """Return the four categories that the runtime counts, under its names, and what the host keeps, if anything."""
        found = {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "activations": self.activations,
        }
        return found | ({"host": self.host} if np.any(self.host) else {})


def _larger(a: Bytes, b: Bytes) -> Bytes:
    return max(a, b) if isinstance(a, int) else np.maximum(a, b)  # pyrefly: ignore[bad-return]


def memory_of_cases(case: Case, schedule: Number | ScheduleName) -> MemoryEstimate[Array]:
    """Return the memory of the worst rank of every plan of a case, as arrays with one entry per plan.

    schedule: a name, or numbers of SCHEDULES. Partitions are balanced. The padding of buckets is not included: less
    than one ALIGNMENT_ELEMENTS per parameter and rank of the sharding group.
    """
    left, worst = _left_behind(case), None
    for which, at in peaks_of_case(case, schedule):
        some = take(case, which)
        parts = _LeftBehind(*(entries(v, which) for v in left))
        of_rank = rank_parameters(some, at.layers, at.first, at.last)
        trained = of_rank * some.trained
        experts = layer_experts(some) * at.layers
        owned = np.where(np.asarray(some.zero) >= 1, slice_elements(some, trained, experts * some.trained), trained)
        state_bytes = some.states * some.master_bytes * owned
        wide, share = layer_wide(some) * at.layers, np.asarray(some.state_away)
        away = share * owned, share * state_bytes
        elements = Elements(of_rank, trained, state_bytes, experts, experts * some.trained, wide, *away)
        held = _held(some, parts, at, elements)
        here = MemoryEstimate(**{k: np.broadcast_to(v, np.shape(which)).copy() for k, v in held.items()})
        worst = here if worst is None else _replaced(worst, which, here)
    assert worst is not None, "every plan has at least one memory peak"
    return worst


def _replaced(
    worst: MemoryEstimate[Array], which: NDArray[np.int64], here: MemoryEstimate[Array]
) -> MemoryEstimate[Array]:
    """Replace the entries `which` of `worst` by those of `here` that are larger."""
    more, host = here.total > worst.total[which], np.maximum(here.host, worst.host[which])
    for field in fields(MemoryEstimate):
        getattr(worst, field.name)[which[more]] = getattr(here, field.name)[more]
    worst.host[which] = host
    return worst


def memory_of_rank(plan: Plan, at: Coordinate, *, counting: Counting = "runtime") -> MemoryEstimate:
    """Return the bytes of the rank at `at`, in a step with the full batch.

    counting: "runtime" is what Trivium's trainer holds. "paper" counts as MT-NLG section 2: activations as published,
    and another gradient in the weights' dtype next to the fp32 one (20 bytes per parameter in bf16 instead of 18).
    """
    (found,) = _memory_of_ranks(plan, [at.pipeline], counting, plan.layout.sharer(at))
    return found


def worst_rank(plan: Plan) -> tuple[Coordinate, MemoryEstimate]:
    """Return the rank with the largest memory. Ranks that differ only in tensor or data hold the same bytes, unless the
    optimizer's parameter groups have different states."""
    layout = plan.layout
    replicas = [layout.coordinate(layout.replica(n)) for n in range(layout.sharers if _differ(plan) else 1)]
    ranks = range(layout.pipeline)
    estimates = [
        (at._replace(pipeline=rank), memory)
        for at in replicas
        for rank, memory in zip(ranks, _memory_of_ranks(plan, ranks, sharer=layout.sharer(at)), strict=True)
    ]
    return max(estimates, key=lambda found: found[1].total)


def predicted_memory(plan: Plan) -> dict[int, dict[str, int]]:
    """Return the bytes of every rank by the categories that the runtime counts, for
    `training.supervision.job.start`."""
    layout, every = plan.layout, range(plan.layout.pipeline)
    by_stage = {
        sharer: [held.categories() for held in _memory_of_ranks(plan, every, sharer=sharer)]
        for sharer in range(layout.sharers if _differ(plan) else 1)
    }
    places = {rank: layout.coordinate(rank) for rank in range(layout.world_size)}
    return {rank: dict(by_stage[layout.sharer(at) % len(by_stage)][at.pipeline]) for rank, at in places.items()}


def _differ(plan: Plan) -> bool:
    """Return whether ranks of a sharding group may hold optimizer states of different sizes."""
    return plan.zero >= 1 and bool(plan.optimizer.groups)


def _memory_of_ranks(
    plan: Plan, ranks: Iterable[int], counting: Counting = "runtime", sharer: int = 0
) -> list[MemoryEstimate]:
    """Return the memory of some pipeline ranks. sharer: number of the rank in its sharding group."""
    whole, worst = case_of(plan), []
    for rank in ranks:
        case = _of_rank(whole, plan, rank)
        left = _left_behind(case, counting)
        elements = elements_of_rank(plan, rank, sharer)
        every = (_held(case, left, m, elements, counting) for m in peaks_of_rank(plan, rank))
        found = [MemoryEstimate(**{k: as_bytes(v) for k, v in held.items()}) for held in every]
        most = max(found, key=lambda held: (held.activations, held.total))
        worst.append(replace(most, host=max(held.host for held in found)))
    return worst


def _of_rank(case: Case, plan: Plan, pipeline: int) -> Case:
    """Return the case with the layers of a pipeline rank, whose mean counts; a rank without layers has those of all."""
    own = Counter(plan.model.each_layer[n] for stage in plan.stages_of(pipeline) for n in plan.layers_of(stage))
    if len(case.different_layers) == 1 or not own:
        return case
    return replace(case, different_layers=tuple((layer, count / own.total()) for layer, count in own.items()))


class _LeftBehind(NamedTuple):
    """Bytes that a micro-batch keeps for the backward. whole: of a layer without recomputation. kept: of a layer in the
    plan's recompute mode. border: of a layer's input."""

    whole: Number
    kept: Number
    embedding: Number
    head: Number
    logits: Number
    border: Number


def _left_behind(case: Case, counting: Counting = "runtime") -> _LeftBehind:
    return _LeftBehind(
        whole=layer_bytes(case, NONE, counting=counting),
        kept=layer_bytes(case, case.recompute, counting=counting),
        embedding=embedding_bytes(case),
        head=head_bytes(case),
        logits=logits_bytes(case, counting=counting),
        border=input_bytes(case),
    )


def _held(
    case: Case, left: _LeftBehind, at: MemoryPeak, elements: Elements, counting: Counting = "runtime"
) -> dict[str, Number]:
    """Return the fields of an estimate for a rank at a memory peak. elements: of its parameters."""
    c, zero, trained = case, np.asarray(case.zero), elements.trained
    owned = slice_elements(c, trained, elements.trained_experts)
    narrow = np.asarray(c.weight_bytes) < np.asarray(c.master_bytes)
    gradient = c.gradient_bytes + (np.where(narrow, c.weight_bytes, 0) if counting == "paper" else 0)
    embedding, logits = at.embedded * left.embedding, at.headed * left.logits
    gradients = gradient * np.where(zero >= 2, owned, trained)
    begun = np.asarray(at.begun) > 0
    waiting = _waiting(c, at)
    opened = np.where(begun, gradients, np.minimum(gradients, c.gradient_bytes * _gradients_of_head(c, at))) + waiting
    workspace = _workspace(c, at, begun)
    # Attention is computed again when what the feed-forward half keeps is free, which is more.
    again = np.where(np.asarray(c.recompute) == ATTENTION, left.kept, left.whole)
    # With several stages another one may continue, and deferred weight gradients keep their factors.
    frees = (np.asarray(c.chunks) == 1) & (np.asarray(c.puts_off) == 0) & (np.asarray(at.headed) > 0)
    weights, wide = elements.held, elements.wide
    masters = np.where(narrow, c.master_bytes, 0)
    state_away = masters * elements.away + elements.away_bytes
    if np.any(zero >= 3):
        weights = np.where(zero >= 3, slice_elements(c, weights, elements.experts), weights)
        wide = np.where(zero >= 3, slice_elements(c, wide), wide)
    return {
        "weights": c.weight_bytes * weights + (c.master_bytes - c.weight_bytes) * wide,
        "gradients": gradients,
        "opened": opened,
        "masters": masters * (np.where(zero >= 1, owned, trained) - elements.away),
        "moments": elements.state_bytes - elements.away_bytes,
        "activations": at.kept * left.whole + at.recomputed * left.kept + embedding + at.headed * left.head + logits,
        "embedding": embedding,
        "logits": logits,
        "recomputed": at.begins_again * (again - left.kept),
        "put_off": at.put_off * _beyond(c, left.whole)
        + at.put_off_again * _beyond(c, left.kept)
        + at.put_off_away * _beyond(c, 0.0),
        "transport": np.where(np.asarray(c.pipeline) > 1, RECEIVES_AHEAD * left.border, 0),
        "returned": at.returned * left.whole + at.returned_again * left.kept,
        "gathered": np.where(zero >= 3, c.weight_bytes * _gathered(c, at), 0),
        "unreduced": np.where(zero >= 2, c.gradient_bytes * _open(c, at, trained), 0),
        "loss": at.last * _loss(c, begun, np.where(begun, waiting, opened), waiting),
        "freed": np.where(frees, left.head + left.logits, 0),
        "workspace": workspace,
        "ending": _ending(c, at, begun, elements, again + workspace),
        "reduction": _reduction(c, at, elements, owned) + _pieces(state_away, elements),
        "host": state_away + at.away * left.whole + at.away_again * left.kept,
    }


def _pieces(state_away: Number, elements: Elements) -> Number:
    """Return the bytes of the pieces of a host's optimizer state that are on the device during the update."""
    here = np.minimum(1.0, PIECES_HERE * PIECE_ELEMENTS / np.maximum(1.0, elements.away))
    found: Number = state_away * here
    return found


def _beyond(case: Case, kept: Number) -> Number:
    """Return the bytes by which the factors of a layer's deferred weight gradients exceed its kept activations."""
    return np.maximum(0, put_off_bytes(case) - kept)


def _gathered(case: Case, at: MemoryPeak) -> Number:
    """Return the elements that ZeRO stage 3 has gathered: a module, and the next one, which is prefetched."""
    layer = layer_parameters(case)
    ends = np.maximum(at.first * embedding_parameters(case), at.last * table_parameters(case))
    following: Number = np.maximum(layer * (np.asarray(at.layers) > 1), ends)
    return np.minimum(layer, layer * at.layers) + following


def _open(case: Case, at: MemoryPeak, elements: Number) -> Number:
    """Return the elements of buckets that gradients are filling or that are being reduced."""
    both: Number = np.minimum(elements, OPEN_BUCKETS * _bucket(case, at))
    return both


def _bucket(case: Case, at: MemoryPeak) -> Number:
    """Return the approximate elements of the largest bucket."""
    return np.maximum(bucket_elements(case.sharers), largest_parameter(case, at.first, at.last))


def _waiting(case: Case, at: MemoryPeak) -> Number:
    """Return the bytes of the head's gradient of a tied table, to which autograd adds the embedding's."""
    joined = (np.asarray(case.tied) > 0) & (np.asarray(case.chunks) == 1)
    found: Number = joined * at.first * at.last * case.weight_bytes * table_parameters(case)
    return found


def _gradients_of_head(case: Case, at: MemoryPeak) -> Number:
    """Return the elements of the gradients that exist when the backward of the layers begins in a step's only
    backward: the head's table, or the bucket that it is in."""
    alone = np.asarray(case.sharers) == 1
    table = at.last * np.where(_waiting(case, at) > 0, 0, table_parameters(case))
    found: Number = np.where(alone, table, np.maximum(bucket_elements(case.sharers), table))
    return found


def _ending(case: Case, at: MemoryPeak, begun: NDArray[np.bool_], elements: Elements, of_layer: Number) -> Number:
    """Return the bytes beyond the gradients at the end of the last backward: in that of the first layer, which has
    `of_layer` bytes, or in that of the embedding.

    Buckets of gradients that are complete are being reduced. Those of a step's only backward are opened one by one:
    a rank without replicas has one for each large parameter, others have none in common to the embedding and a layer
    whose largest matrix fills one. Where some parameters are frozen, all count.
    """
    c, alone, layered = case, np.asarray(case.sharers) == 1, np.asarray(at.layers) > 0
    fills = largest_parameter(c, 0, 0) >= bucket_elements(c.sharers)
    embedding, waiting = at.first * embedding_parameters(c), _waiting(c, at)
    later = embedding + layered * layer_parameters(c)
    reduced = _sums(c, elements) / np.maximum(1, elements.trained)
    opens = ~begun & (np.asarray(c.trained) == 1) & (np.asarray(c.zero) < 2)
    absent = opens * np.where(alone, c.gradient_bytes * later - waiting, fills * c.gradient_bytes * embedding)
    first = reduced * np.maximum(0, elements.trained - later) + layered * of_layer - absent
    # The gradient of what was looked up, its sums by token in the masters' dtype, and a table unless it is the first.
    looked_up = at.first * c.positions * c.hidden * (c.weight_bytes + c.master_bytes)
    added = ~alone | begun | _converts(c)
    table = np.where(added, c.weight_bytes * embedding + waiting, waiting)
    found: Number = np.maximum(first, reduced * np.maximum(0, elements.trained - embedding) + looked_up + table)
    return found


def _loss(case: Case, begun: NDArray[np.bool_], opened: Number, waiting: Number) -> Number:
    """Return the additional bytes of the loss, the larger of forward and backward.

    The forward has some rows of 16-bit scores in fp32 and, with a split vocabulary, all scores until their exponentials
    are kept; the gradients `opened` are not allocated then. The backward has the gradient of its inputs, the scaled
    inputs, and the table's gradient in the weights' dtype before it is added to an existing one or converted, unless it
    is `waiting`.
    """
    c = case
    narrow = np.asarray(c.weight_bytes) < np.asarray(c.master_bytes)
    some = np.where(narrow, np.minimum(c.positions, LOSS_ROWS) * c.master_bytes, 0)
    whole = np.where(np.asarray(c.tensor) > 1, c.positions * c.weight_bytes, 0)
    forward = (whole + some) * c.vocabulary / c.tensor - opened
    by_autograd = (np.asarray(c.tied) > 0) & begun
    apart = (_converts(c) | by_autograd) & (np.asarray(waiting) == 0)
    backward = c.weight_bytes * (2 * c.positions * c.hidden + apart * table_parameters(c))
    larger: Number = np.maximum(forward, backward)
    return larger


def _converts(case: Case) -> NDArray[np.bool_]:
    """Return whether products of weight gradients may be rounded to another dtype than that of their sum."""
    differs: NDArray[np.bool_] = np.not_equal(case.gradient_bytes, case.weight_bytes)
    return differs


def _workspace(case: Case, at: MemoryPeak, begun: NDArray[np.bool_]) -> Number:
    """Return the workspace of a layer's backward beyond all that the layer keeps or computes again: the largest of the
    backwards of the last product of the feed-forward half, of its activation function and of its first product.

    Each has the gradient of the layer's output. Products have the gradient of their input, a weight gradient that is
    new or not added yet, and whatever is gathered or computed again. When a backward has ended, what it read is free,
    except factors of deferred weight gradients.
    """
    c = case
    again, frees = np.asarray(c.function_again), 1 - np.asarray(c.puts_off)
    gathered, apart = (np.asarray(c.along) > 1) * c.hidden, np.asarray(c.compiled) == 0
    new = ~begun & (np.asarray(c.zero) < 2)
    weight = largest_parameter(c, 0, 0) * (_converts(c) * c.weight_bytes + new * c.gradient_bytes)

    def largest(layer: Layer) -> Number:
        reads, writes, beside = layer.mlp.activation(c)
        value = (1 - again) * frees * writes  # free after the first of the three
        last = gathered + (1 + again) * writes
        function = reads + writes + np.where(again, writes + gathered, apart * beside - value)
        first = reads + c.hidden + gathered - value - frees * reads
        bytes_of_width = c.positions * c.weight_bytes
        found: Number = np.maximum(bytes_of_width * np.maximum(last, first) + weight, bytes_of_width * function)
        return found

    of_output = c.weight_bytes * c.positions * c.hidden / c.along
    found: Number = (np.asarray(at.layers) > 0) * (of_output + c.of_a_layer(largest))
    return found


def _reduction(case: Case, at: MemoryPeak, elements: Elements, owned: Number) -> Number:
    """Return the bytes of the gradient reduction and the update after the last backward.

    They are what the reduction has of all buckets, and, unless the update is compiled, the gradients in the wider dtype
    of the masters that are updated at once (on a CPU: one bucket).
    """
    c = case
    at_once = np.minimum(owned, UPDATE_ELEMENTS + slice_elements(c, _bucket(c, at)))
    widens = (np.asarray(c.gradient_bytes) != np.asarray(c.master_bytes)) & (np.asarray(c.compiled) == 0)
    widened = np.where(widens, at_once, 0)
    whole = np.where(np.asarray(c.matrices) > 0, MATRIX_COPIES * largest_parameter(c, 0, 0), 0)
    return _sums(c, elements) + c.master_bytes * (widened + whole)


def _sums(case: Case, elements: Elements) -> Number:
    """Return the bytes that the gradient reduction has of all buckets: the gradients in its dtype, if it differs; each
    rank's sum (from stage 2 on only if replicate groups sum in another dtype) and its copy in the gradients' dtype, if
    it differs."""
    c, zero = case, np.asarray(case.zero)
    owned = slice_elements(c, elements.trained, elements.trained_experts)
    together = np.asarray(c.replicas) > 1
    recasts = np.asarray(c.reduction_bytes) != np.asarray(c.gradient_bytes)
    recast = np.where((zero <= 1) & recasts, elements.trained, 0)
    by_copies = (zero >= 2) & (np.asarray(c.copies) > 1) & recasts
    summed = np.where((zero == 1) & together | by_copies, owned, 0)
    copied = np.where(recasts, summed, 0)
    return c.reduction_bytes * (recast + summed) + c.gradient_bytes * copied


def as_bytes(number: Number) -> int:
    """Return a single figure as an integer. A mean over different layers is rounded up."""
    return math.ceil(float(number))
