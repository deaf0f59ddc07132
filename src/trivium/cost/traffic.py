"""Bytes that a rank passes to each collective in one optimizer step, by axis, as the runtime counts them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod

from trivium.cost.float8_traffic import add_float8, gathered_amaxes, wide_bytes
from trivium.cost.prices import COUNT_BYTES
from trivium.cost.ring_traffic import rings, trains_outputs
from trivium.cost.router_traffic import add_routers
from trivium.objectives.objective import loss_names
from trivium.objectives.routers import counts_first
from trivium.plan.adapters import is_added
from trivium.plan.buckets import BucketRow, bucket_table, slices_of
from trivium.plan.layers.part import Exchanged, Place
from trivium.plan.layout import Coordinate, Layout
from trivium.plan.matrices import rounds_of_work
from trivium.plan.messages import EncodingName, encoded_bytes, summed_bytes
from trivium.plan.parameters import TOKENS, stage_parameters
from trivium.plan.plan import Plan
from trivium.plan.precision import BYTES
from trivium.plan.schedule import SCHEDULE_NAMES
from trivium.plan.transfers import sends

SCALAR_BYTES = 8  # losses and norms are summed in fp64

Traffic = dict[str, Counter[str]]  # group -> collective -> bytes
ROLES = ("tensor", "pipeline", "replicas", "context", "ends")
OF_COPIES = ("sharers", "holders")  # only with several copies; with one, the replicas are the sharers


def step_traffic(plan: Plan, at: Coordinate) -> Traffic:
    """Return the traffic of the rank at a coordinate in a step with the full batch."""
    traffic: Traffic = {role: Counter() for role in _roles(plan.layout)}
    micro_batches = plan.batch.micro_batches(plan.layout)
    if plan.layout.tensor > 1:
        for stage in plan.stages_of(at.pipeline):
            times = plan.taken(at.pipeline, stage, micro_batches)
            for name, count in _stage(plan, stage).items():
                traffic["tensor"][name] += times * count
    if plan.layout.context > 1:
        for stage in plan.stages_of(at.pipeline):
            for layer in plan.layers_of(stage):
                for name, count in _context(plan, layer).items():
                    traffic["context"][name] += micro_batches * count
    if plan.layout.expert > 1:
        counted = counts_first(plan.model, plan.stages, micro_batches)
        for stage in plan.stages_of(at.pipeline):
            dispatched = sum(_dispatch(plan, layer, counted=counted) for layer in plan.layers_of(stage))
            traffic["expert"]["all_to_all"] += micro_batches * dispatched
    traffic["pipeline"]["send"] += (
        _sent(plan, at.pipeline, micro_batches) * prod(plan.activation_shape) * BYTES[plan.precision.weights]
    )
    rows = bucket_table(plan, at.pipeline)
    for row in rows:
        _add_bucket(traffic, plan, row, at, micro_batches)
    _add_matrices(traffic, plan, rows, at)
    if plan.model.adapters_remember:
        _add_remembered(traffic, plan, rows, at)
    _add_scalars(traffic, plan)
    add_routers(traffic, plan, at, micro_batches)
    add_float8(traffic, plan, at, micro_batches)
    return {axis: Counter({k: v for k, v in c.items() if v}) for axis, c in traffic.items()}


def _roles(layout: Layout) -> Iterator[str]:
    yield from ROLES
    yield from OF_COPIES if layout.copies > 1 else ()
    if layout.expert > 1:
        yield from ("expert", "expert_replicas", *(("expert_sharers",) if layout.copies > 1 else ()))


def _sent(plan: Plan, pipeline: int, micro_batches: int) -> int:
    """Return how many activations and gradients a pipeline rank sends in a step: one per micro-batch to each
    neighbouring stage on another rank."""
    if plan.schedule not in SCHEDULE_NAMES:
        return sends(plan.schedule_table(), pipeline)
    own = plan.stages_of(pipeline)
    neighbours = [near for stage in own for near in (stage - 1, stage + 1) if 0 <= near <= plan.last_stage]
    return micro_batches * sum(near not in own for near in neighbours)


def _stage(plan: Plan, stage: int) -> Counter[str]:
    """Return the tensor traffic of one micro-batch in one stage, forward and backward."""
    total: Counter[str] = Counter()
    # One number for each token, in the dtype of the softmax.
    per_token = plan.local_sequence * plan.batch.micro * BYTES[plan.precision.masters]
    enters = leaves = 0  # columns that enter regions, and passes that leave them, forward; each has one pass backward
    again_enters = again_leaves = 0  # in a recomputed forward
    for number in plan.layers_of(stage):
        layer = plan.model.each_layer[number]
        regions = layer.wiring.regions
        enters, leaves = enters + layer.entering, leaves + regions
        if plan.recompute.mode_of(number) == "layer":
            again_enters += layer.entering
            # Recomputing stops at the last tensor that is needed: the sum that ends the layer is not, unless the
            # backward reads it, or the product is computed in chunks that end with their sums.
            cut = (plan.row_chunks > 1 or plan.tensor_ring) and number not in plan.model.experts_by_layer
            needed = layer.wiring.reads_last_product or layer.adapts_last_product or cut
            again_leaves += regions if needed else regions - 1
        passes = 2 + (plan.recompute.mode_of(number) != "none")
        if layer.sums:
            total["all_reduce"] += passes * layer.sums * per_token
        total += _adapters(plan, number)
    if stage == plan.last_stage:
        total["all_reduce"] += 3 * per_token  # largest score; sum of exponentials and the target's score
    hidden, first, last = plan.model.hidden, stage == 0, stage == plan.last_stage
    in_layers, at_ends = _gathered_for_weights(plan, stage)
    gathered = leaves * hidden + enters + again_enters + in_layers
    summed = (leaves + again_leaves) * hidden + enters
    total += _columns(plan, gathered, summed, plan.messages.tensor)
    total.update(rings(plan, stage).traffic(plan))
    return total + _columns(plan, last * hidden + at_ends, (first + last) * hidden, "exact")


def _columns(plan: Plan, gathered: int, summed: int, encoding: EncodingName) -> Counter[str]:
    """Return the bytes of activations that tensor ranks gather and sum: columns of one micro-batch's positions. Those
    of an encoding are exact where each message has whole units."""
    positions, size, ranks = plan.local_sequence * plan.batch.micro, BYTES[plan.precision.weights], plan.layout.tensor
    sums = summed_bytes(encoding, summed * positions, size, ranks)
    if not plan.sequence_parallel:
        return Counter(all_reduce=sums)
    return Counter(all_gather=encoded_bytes(encoding, gathered * positions // ranks, size), reduce_scatter=sums)


def _gathered_for_weights(plan: Plan, stage: int) -> tuple[int, int]:
    """Return how many columns the backward of a stage gathers for the gradients of weights. In layers: the input of
    each trained weight that is split by its outputs. At the ends of the model: the input of a trained table of the
    head, and the gradient of what a trained table of tokens embeds."""
    first, last = stage == 0, stage == plan.last_stage
    rows = stage_parameters(plan.model, plan.layers_of(stage), first=first, last=last)
    trained = {row.name: row for row in rows if plan.optimizer.trains(row)}
    own = [row for row in trained.values() if isinstance(row.owner, int) and not is_added(row)]
    keeps = tuple(f"layers.{number}.mlp." for number in plan.model.experts_by_layer)  # experts keep what has entered
    entering = sum(row.shape[-1] for row in own if row.splits_outputs and not row.name.startswith(keeps))
    table = TOKENS if plan.model.head == "tied" else "head.weight"
    return entering, plan.model.hidden * ((first and TOKENS in trained) + (last and table in trained))


def _adapters(plan: Plan, number: int) -> Counter[str]:
    """Return the tensor traffic of one micro-batch because of a layer's adapters, forward and backward."""
    layer = plan.model.each_layer[number]
    entering, leaving, for_weights, _ = layer.adapter_sums(plan.layout.expert)
    bytes_of_one = plan.local_sequence * plan.batch.micro * BYTES[plan.precision.weights]
    again = plan.recompute.mode_of(number) == "layer"
    summed = (leaving * (1 + again) + entering) * bytes_of_one

    once = for_weights * (1 + again) * max(4, BYTES[plan.precision.weights])
    if not plan.sequence_parallel:
        return Counter(all_reduce=summed + once)
    gathered_again = sum(each.sums().entering for each in layer.adapted or () if trains_outputs(plan, number, each))
    gathered = (entering * (1 + again) + gathered_again + leaving) * bytes_of_one // plan.layout.tensor
    return Counter(all_reduce=once, reduce_scatter=summed, all_gather=gathered)


def _context(plan: Plan, layer: int) -> Counter[str]:
    """Return the context traffic of one micro-batch in one layer, forward and backward."""
    ranks, positions = plan.layout.context, plan.local_sequence * plan.batch.micro
    at, total = Place(tensor=plan.layout.tensor), Counter[str]()
    for half in plan.model.each_layer[layer].halves.values():
        exchanged = half.exchanged(at)
        if exchanged is not None:
            total += _exchange(plan, layer, exchanged, positions, ranks)
    return total


def _exchange(plan: Plan, layer: int, exchanged: Exchanged, positions: int, ranks: int) -> Counter[str]:
    narrow, wide = BYTES[plan.precision.weights], max(4, BYTES[plan.precision.weights])
    mode = plan.recompute.mode_of(layer)
    if plan.context_attention == "ring":
        keys_and_values = int(exchanged.ring) * positions
        forwards = 1 + (mode != "none")
        return Counter(send=(forwards + 1) * (ranks - 1) * keys_and_values * narrow + ranks * keys_and_values * wide)
    into, out = int(exchanged.into) * positions * narrow, int(exchanged.out) * positions * narrow
    # Recomputing the core alone stops at its last kept tensor, before the exchange of its result.
    again = {"none": 0, "attention": into, "layer": into + out}[mode]
    return Counter(all_to_all=2 * (into + out) + again)


def _dispatch(plan: Plan, layer: int, *, counted: bool) -> int:
    """Return the bytes that a rank sends to expert ranks for one micro-batch in one layer, forward and backward.
    counted: a forward pass counts the loads first.

    As many rows come back as go out. A rank sends more or fewer of those that it received, but all expert ranks
    together send as many as this.
    """
    total, positions, own = 0, plan.local_sequence * plan.batch.micro, plan.model.each_layer[layer]
    narrow, wide = BYTES[plan.precision.weights], max(4, BYTES[plan.precision.weights])
    for half in own.halves.values():
        found = half.dispatched(Place())
        if found is not None:
            rows, row = int(found.rows * positions), found.columns * narrow
            out = rows * (row + wide) + found.experts * COUNT_BYTES
            forward = out + rows * row
            # Recomputing stops before the results are sent back, unless the backward reads what the layer adds.
            again = forward if own.wiring.reads_last_product else out
            again *= plan.recompute.mode_of(layer) == "layer"
            total += forward * (1 + counted) + again + rows * (2 * row + wide)
    return total


def _add_bucket(traffic: Traffic, plan: Plan, row: BucketRow, at: Coordinate, micro_batches: int) -> None:
    # Sums over other groups come after the data ranks', so each rank sums only its slice.
    slices = slices_of(plan, row)
    mine, messages = row.padded // slices, plan.messages
    accumulated = mine * BYTES[plan.gradient_dtype]
    sharers, replicas = _among(traffic, row)
    if not row.trains:
        if plan.zero >= 3 and slices > 1:
            _add_gathers(traffic, plan, row, at, _gathers(plan, row, at, micro_batches))
        return
    if "tensor" in row.partial_over:
        traffic["tensor"]["all_reduce"] += accumulated
    if "ends" in row.partial_over and at.pipeline in plan.ends:
        traffic["ends"]["all_reduce"] += accumulated

    def summed(elements: int, ranks: int) -> int:
        return summed_bytes(messages.gradients, elements, BYTES[plan.reduction_dtype], ranks)

    ranks = plan.layout.expert_replicas if row.by_expert else plan.layout.replicas
    if plan.zero == 0 and ranks > 1:
        replicas["all_reduce"] += summed(row.padded, ranks)
    if slices > 1:
        times = _contributions(plan, row, at, micro_batches) if plan.zero >= 2 else 1
        sharers["reduce_scatter"] += times * summed(row.padded, slices)
        _add_gathers(traffic, plan, row, at, _gathers(plan, row, at, micro_batches) if plan.zero >= 3 else 1)
    if plan.zero >= 1 and "holders" in traffic:
        traffic["holders"]["all_reduce"] += summed(mine, plan.layout.copies)


def _add_gathers(traffic: Traffic, plan: Plan, row: BucketRow, at: Coordinate, times: int) -> None:
    sharers, slices, messages = _among(traffic, row)[0], slices_of(plan, row), plan.messages.weights
    encoding: EncodingName = "exact" if row.wide or row.float8 else messages
    sharers["all_gather"] += times * encoded_bytes(encoding, row.padded // slices, _gathered_bytes(plan, row))
    if row.float8:
        agreed = times * gathered_amaxes(plan, row) * wide_bytes(plan)
        sharers["all_reduce"] += agreed
        traffic["tensor"]["all_reduce"] += agreed * (plan.layout.tensor > 1)


def _gathered_bytes(plan: Plan, row: BucketRow) -> int:
    """Return the bytes of an element when the weights of a bucket are gathered."""
    if row.float8:
        return 1
    return BYTES[plan.precision.masters if row.wide else plan.precision.weights]


def _among(traffic: Traffic, row: BucketRow) -> tuple[Counter[str], Counter[str]]:
    """Return the traffic among the ranks that share the slices of a bucket, and among all that hold its weights."""
    of = "expert_" if row.by_expert else ""
    replicas = traffic[f"{of}replicas"]
    return traffic.get(f"{of}sharers", replicas), replicas


def _add_remembered(traffic: Traffic, plan: Plan, rows: Sequence[BucketRow], at: Coordinate) -> None:
    """Add what adapters exchange to remember something of a step: all gradients, at ZeRO stage 3 the weights of their
    layers, and sums over tensor ranks."""
    layers = [n for stage in plan.stages_of(at.pipeline) for n in plan.layers_of(stage)]
    every = [(n, e) for n in layers for e in plan.model.each_layer[n].adapted or () if e.adapter.remembers]
    summed = sum(each.sums(plan.layout.expert).remembered for _, each in every)
    if plan.layout.tensor > 1:
        traffic["tensor"]["all_reduce"] += summed * BYTES[plan.precision.masters]
    if not every:
        return
    for row in rows:
        sharers, slices = _among(traffic, row)[0], slices_of(plan, row)
        if slices == 1:
            continue
        held = {item.parameter.name for item in row.items}
        if row.trains:
            sharers["all_gather"] += row.padded // slices * BYTES[plan.precision.masters]
        for number, each in every if plan.zero >= 3 else ():
            if held & {f"layers.{number}.{own.name}" for own in (each.base, *each.rows)}:
                sharers["all_gather"] += row.padded // slices * _gathered_bytes(plan, row)


def _add_matrices(traffic: Traffic, plan: Plan, rows: Sequence[BucketRow], at: Coordinate) -> None:
    """Add the exchange of matrix directions and updates with the ranks that compute them, including a rank's own
    share."""
    trained, size = [row for row in rows if row.trains], BYTES[plan.precision.masters]
    for work in (work for works in rounds_of_work(plan, rows) for work in works):
        row, whole = trained[work.bucket], work.stop - work.start
        slices, own = slices_of(plan, row), 0
        if slices > 1:
            own = plan.layout.expert_sharer(at) if row.by_expert else plan.layout.sharer(at)
            start, stop = work.within(row.padded // slices, own)
            _among(traffic, row)[0]["all_to_all"] += (stop - start + whole * (work.sharer == own)) * size
        if work.sharer == own and work.parameter.split is not None and plan.layout.tensor > 1:
            moved = whole + plan.layout.tensor * whole * (work.tensor == at.tensor)
            traffic["tensor"]["all_to_all"] += moved * size


def _contributions(plan: Plan, row: BucketRow, at: Coordinate, micro_batches: int) -> int:
    """Return how often a bucket is reduced at ZeRO stage 2 or 3: whenever all its parameters have contributed.

    A tied table with both uses on this rank contributes twice if the uses are in different backwards.
    """
    times = plan.taken(at.pipeline, row.items[0].stage, micro_batches)
    apart = plan.stages > 1 or plan.schedule.startswith("zb")
    if row.tied and _has_both_ends(plan, at) and apart:
        times += plan.taken(at.pipeline, plan.last_stage, micro_batches)
    return times


def _gathers(plan: Plan, row: BucketRow, at: Coordinate, micro_batches: int) -> int:
    """Return how often ZeRO stage 3 gathers a bucket per step: for each forward and backward, an embedding only for the
    forward."""
    first = row.items[0]
    counted = int(counts_first(plan.model, plan.stages, micro_batches))
    again = counted * micro_batches  # for the forwards that count loads, without the head
    if first.parameter.owner != "embedding":
        in_layer = first.parameter.owner != "head"
        return 2 * plan.taken(at.pipeline, first.stage, micro_batches) + again * in_layer
    embeds = 0 if first.borrowed else micro_batches + again
    predicts = row.tied and (first.borrowed or _has_both_ends(plan, at))
    return embeds + (2 * plan.taken(at.pipeline, plan.last_stage, micro_batches) if predicts else 0)


def _has_both_ends(plan: Plan, at: Coordinate) -> bool:
    return {0, plan.last_stage} <= {*plan.stages_of(at.pipeline)}


def _add_scalars(traffic: Traffic, plan: Plan) -> None:
    """One message over every axis: the norm, whether a rank was asked to end, two parts of a hash, and the losses.
    Another message over replicas: the sum of the weights of targets."""
    sums = 4 + len(loss_names(plan.model))
    counts = {"tensor": sums, "pipeline": sums, "replicas": sums + 1}
    for axis, count in counts.items():
        if getattr(plan.layout, axis) > 1:
            traffic[axis]["all_reduce"] += count * SCALAR_BYTES
