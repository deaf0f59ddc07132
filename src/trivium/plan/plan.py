"""A plan: model, layout, batch, schedule, precision and recompute together, as pure data.

The planner searches for one, the cost model prices it, the runtime executes it.
"""

from math import gcd
from typing import Annotated, Literal

from pydantic import Field

from trivium.config import Config, Short, build, merge, parse_assignments, read_preset
from trivium.errors import ConfigError
from trivium.plan.batch import Batch, nearest_multiples
from trivium.plan.constraints import divides_context, divides_sequence, has_shards, interleaves, schedules_chunks
from trivium.plan.float8 import Divided, division_problems, keep_problems
from trivium.plan.layout import Layout, degrees_dividing
from trivium.plan.messages import Messages
from trivium.plan.model_shape import ModelShape
from trivium.plan.offload import Offload
from trivium.plan.optimizer import Optimizer
from trivium.plan.parameters import parameters
from trivium.plan.partition import Partition
from trivium.plan.precision import Dtype, Precision, has_one_gradient
from trivium.plan.recompute import Recompute
from trivium.plan.schedule import (
    HEAD_UNITS,
    Schedule,
    ScheduleName,
    head_rank,
    make_schedule,
    parse_schedule,
    stages_of_named,
    stages_of_ranks,
    table_problems,
)


class Plan(Config):
    """The complete description of a run. `check()` lists every contradiction before any process exists."""

    model: ModelShape
    layout: Layout = Layout()
    batch: Batch
    partition: Partition = Partition()
    schedule: Annotated[ScheduleName, Short("schedule")] = "1f1b"  # pipeline schedule
    rows: tuple[str, ...] | None = None  # schedule "given": the actions of each pipeline rank, as F0.0 F1.0 B0.0
    precision: Precision = Precision()
    messages: Messages = Messages()
    recompute: Recompute = Recompute()
    offload: Offload = Offload()
    optimizer: Optimizer = Optimizer()
    # ZeRO stage: 1 shards the optimizer state over replicas, 2 also gradients, 3 also weights
    zero: Annotated[Literal[0, 1, 2, 3], Short("zero")] = 1
    # split activations between tensor-parallel regions along the sequence; no effect where layout.tensor is 1
    sequence_parallel: bool = False
    # attention of context parallelism; no effect where layout.context is 1
    context_attention: Literal["ring", "ulysses"] = "ring"
    # chunks of row-parallel products: one is reduced while the next is computed; no effect where layout.tensor is 1
    row_chunks: int = Field(default=1, ge=1)
    # with sequence_parallel, send activations in pieces round a ring of tensor ranks, each beside a product of another;
    # no effect where layout.tensor is 1
    overlap_tensor: bool = False
    compiled: Annotated[bool, Short("compiled")] = False  # compile the blocks and the loss with torch.compile
    # on an accelerator, record a step once as a CUDA graph, and replay it
    cuda_graphs: Annotated[bool, Short("cuda-graphs")] = False

    @classmethod
    def from_preset(cls, name_or_path: str, *assignments: str) -> "Plan":
        """The plan of a shipped preset or of a YAML file, with `layout.tensor=4` and the like laid on top.

        Raises ConfigError for what is no plan; whether its fields agree is asked with `check` or `checked`.
        """
        tree = read_preset(name_or_path).get("plan", {})
        return build(cls, merge(tree, parse_assignments(assignments, cls)))

    def check(self, world_size: int | None = None) -> list[str]:
        """Return every problem of the plan, each with path, value, rule and remedy; empty if the plan is legal."""
        return [
            *problems_of_any_layout(self.model, self.precision, self.optimizer, self.messages, compiled=self.compiled),
            *self.layout.problems(world_size),
            *self._splits(),
            *self._context_problems(),
            *self.batch.problems(self.layout),
            *self.partition.problems(self.model, self.layout),
            *self._schedule_problems(),
            *recording_problems(self.model, self.precision, self.zero, self.offload, recorded=self.cuda_graphs),
            *self._shards_problems(),
            *self._ring_problems(),
            *self._expert_problems(),
            *self._float8_problems(),
        ]

    def checked(self, world_size: int | None = None) -> "Plan":
        """Return the plan itself if it is legal. Raises ConfigError with every problem otherwise."""
        problems = self.check(world_size)
        if problems:
            raise ConfigError("\n".join(problems))
        return self

    def on_one_process(self) -> "Plan":
        """Return the plan for the same work on one process: equal model, batch, precision and optimizer, and the
        default of everything else."""
        kept = {name: getattr(self, name) for name in ("model", "batch", "precision", "optimizer")}
        return Plan(**kept).checked()

    def schedule_table(self, sequences: int | None = None) -> Schedule:
        """The schedule of a step of `sequences` (by default: of the full batch)."""
        if self.schedule == "given":
            return parse_schedule(self.rows or ())
        return make_schedule(
            self.schedule,
            pipeline=self.layout.pipeline,
            micro_batches=self.batch.micro_batches(self.layout, sequences),
            chunks=self.layout.chunks,
            head=head_length(self.model, self.layout.stages) if self.heads_in_turns else HEAD_UNITS,
        )

    @property
    def heads_in_turns(self) -> bool:
        """Whether the head is a stage of its own, which every pipeline rank holds for some of the micro-batches."""
        return self.schedule == "zb-turns"

    @property
    def stages(self) -> int:
        """Number of stages of the whole model: those with layers, and the head's if it has its own."""
        return self.layout.stages + self.heads_in_turns

    @property
    def last_stage(self) -> int:
        """The stage that computes the loss."""
        return self.stages - 1

    @property
    def stages_by_rank(self) -> tuple[tuple[int, ...], ...]:
        """The stages that each pipeline rank holds, ascending."""
        if self.schedule == "given":
            return stages_of_ranks(self.schedule_table())
        return stages_of_named(self.schedule, self.layout.pipeline, self.layout.chunks)

    def stages_of(self, pipeline: int) -> tuple[int, ...]:
        """The stages that pipeline rank `pipeline` holds, ascending."""
        return self.stages_by_rank[pipeline]

    def taken(self, pipeline: int, stage: int, micro_batches: int) -> int:
        """Return how many micro-batches of a step pipeline rank `pipeline` runs through one of its stages."""
        if self.heads_in_turns and stage == self.last_stage:
            return sum(head_rank(m, self.layout.pipeline) == pipeline for m in range(micro_batches))
        return micro_batches

    @property
    def ends(self) -> tuple[int, ...]:
        """The pipeline ranks that hold the first or the last stage, ascending; rows that are given may put these
        anywhere, and where heads are taken in turns it is all ranks."""
        wanted = {0, self.last_stage}
        return tuple(rank for rank, own in enumerate(self.stages_by_rank) if wanted & {*own})

    @property
    def ends_apart(self) -> bool:
        """Whether several pipeline ranks hold an end of the model."""
        return len(self.ends) > 1

    def layers_of(self, stage: int) -> range:
        """The layers of a stage; none of the head's own."""
        if stage >= self.layout.stages:
            return range(self.model.layers, self.model.layers)
        return self.partition.ranges(self.model, self.layout)[stage]

    def positions_of(self, context: int) -> tuple[int, ...]:
        """The positions of each sequence that context rank `context` holds.

        Ring: one piece from each end, so that causal attention is as much work on every rank. Ulysses: in order.
        """
        pieces = 2 * self.layout.context if self._zigzag else self.layout.context
        size = self.model.sequence // pieces
        held = (context, pieces - 1 - context) if self._zigzag else (context,)
        return tuple(n for piece in held for n in range(piece * size, (piece + 1) * size))

    @property
    def adds_no_gradients(self) -> bool:
        """Whether a step computes one gradient of each parameter, to which nothing is added."""
        return bool(has_one_gradient(self.layout.world_size, self.batch.micro_batches(self.layout)))

    @property
    def micro_changes_loss(self) -> bool:
        """Whether the loss depends on the size of a micro-batch, over whose tokens the load of experts is averaged."""
        experts = self.model.experts_by_layer.values()
        return any(e.balance_loss and e.balance_scope == "micro_batch" for e in experts)

    @property
    def micro_changes_numbers(self) -> bool:
        """Whether what is computed depends on the size of a micro-batch beyond the order of sums: the loss does, or
        8-bit numbers of several tokens share a scale."""
        return self.micro_changes_loss or self.precision.float8 is not None

    @property
    def gradient_dtype(self) -> Dtype:
        """The dtype of gradients that wait for the update."""
        return self.precision.gradients_of(once=self.adds_no_gradients)

    @property
    def reduction_dtype(self) -> Dtype:
        """The dtype in which gradients are sent."""
        return self.precision.reduction_of(once=self.adds_no_gradients)

    @property
    def local_sequence(self) -> int:
        """Positions of a sequence on each context rank."""
        return self.model.sequence // self.layout.context

    @property
    def activation_shape(self) -> tuple[int, int, int]:
        """Shape of a rank's activations between blocks, as they are sent to the next stage: positions, sequences,
        hidden."""
        split = self.layout.tensor if self.sequence_parallel else 1
        return self.local_sequence // split, self.batch.micro, self.model.hidden

    @property
    def tensor_unit(self) -> int:
        """A number that every legal tensor degree of this model divides."""
        sequence, context = self.model.sequence, self.layout.context
        here = 0 if not self.sequence_parallel else sequence if sequence % context else sequence // context
        return gcd(*(division.size for division in self.model.divisions), here)

    @property
    def tensor_ring(self) -> bool:
        """Whether activations go round a ring of tensor ranks."""
        return self.overlap_tensor and self.layout.tensor > 1

    @property
    def _zigzag(self) -> bool:
        return self.layout.context > 1 and self.context_attention == "ring"

    @property
    def validation_unit(self) -> int:
        """Validation runs in multiples of this many sequences, padding included, so that every schedule takes them."""
        return self.batch.micro * self.layout.data * self.layout.pipeline

    def tokens(self, sequences: int) -> int:
        """Return the number of tokens in `sequences` sequences."""
        return sequences * self.model.sequence

    def _splits(self) -> list[str]:
        tensor = self.layout.tensor
        found = [
            f"plan.model.{field} ({size}) must be a multiple of plan.layout.tensor ({tensor}): tensor ranks "
            f"cannot split {unit}"
            for field, size, unit, _ in self.model.divisions
            if size % tensor
        ]
        context = self.layout.context
        is_split = self.model.sequence % context == 0  # else `_context_problems` refuses the context
        if is_split and not divides_sequence(self.model.sequence, context, tensor, self.sequence_parallel):
            found.append(
                f"plan.model.sequence ({self.model.sequence}) over plan.layout.context ({self.layout.context}) must be "
                f"a multiple of plan.layout.tensor ({tensor}) under plan.sequence_parallel"
            )
        return [f"{line}; nearest legal tensor: {_either(self.tensor_unit, tensor)}" for line in found]

    def _context_problems(self) -> list[str]:
        context, tensor, found = self.layout.context, self.layout.tensor, []
        if context == 1:
            return []
        if not divides_context(self.model.sequence, context, zigzag=self._zigzag):
            unit = 2 * context if self._zigzag else context
            found.append(
                f"plan.model.sequence ({self.model.sequence}) must be a multiple of {unit} with plan.layout.context "
                f"{context} and plan.context_attention '{self.context_attention}'; nearest: "
                f"{nearest_multiples(self.model.sequence, unit)}"
            )
        splits = [each for each in self.model.divisions if each.unit == "heads" and self.context_attention == "ulysses"]
        if self.tensor_unit % tensor:
            return found  # `_splits` names the degrees that it may have, on which the heads here depend
        heads = [each.size // tensor for each in splits]
        sequence = self.model.sequence // (tensor if self.sequence_parallel else 1)
        found += [
            f"plan.context_attention 'ulysses' splits the {each.name} of a tensor rank ({each.size} / {tensor}) over "
            f"plan.layout.context ({context}), which must divide them; use 'ring', or context "
            f"{_either(gcd(*heads, sequence), context)}"
            for each, number in zip(splits, heads, strict=True)
            if number % context
        ]
        return found

    def _shards_problems(self) -> list[str]:
        if has_shards(self.layout.shards or 0, self.zero):
            return []
        return [
            f"plan.layout.shards is {self.layout.shards} but plan.zero is 0, which shards nothing; set plan.zero to 1, "
            f"2 or 3, or plan.layout.shards to null"
        ]

    def _ring_problems(self) -> list[str]:
        if not self.tensor_ring:
            return []
        return ring_problems(self.precision, self.messages, self.row_chunks, pieces=self.sequence_parallel)

    def _expert_problems(self) -> list[str]:
        layout, expert, counts = self.layout, self.layout.expert, self.model.expert_counts
        if expert == 1 or self.model.problems():
            return []
        if not counts:
            return [
                f"plan.layout.expert is {expert}, and no layer of the model has experts to divide; set "
                f"plan.layout.expert to 1, or plan.model.feed_forward to experts"
            ]
        found = [
            f"plan.model.experts.count ({count}) must be a multiple of plan.layout.expert ({expert}): an expert rank "
            f"holds whole experts"
            for count in counts
            if count % expert
        ]
        if layout.replicas % expert:
            found.append(
                f"plan.layout.expert ({expert}) must divide the {layout.replicas} replicas (data {layout.data} x "
                f"context {layout.context})"
            )
        elif layout.sharers % expert:
            found.append(
                f"plan.layout.expert ({expert}) must divide plan.layout.shards ({layout.sharers}), so that those who "
                f"share a copy have all experts"
            )
        legal = gcd(*counts, layout.replicas, layout.sharers)
        return [f"{line}; set plan.layout.expert to {_either(legal, expert)}" for line in found]

    def _float8_problems(self) -> list[str]:
        float8 = self.precision.float8
        if float8 is None or self.model.problems():
            return []
        layout = self.layout
        degrees = {name: getattr(layout, name) for name in ("tensor", "context", "expert")}
        at = Divided.of(
            self.local_sequence,
            zigzag=self._zigzag,
            sequence_parallel=self.sequence_parallel,
            micro=self.batch.micro,
            row_chunks=self.row_chunks,
            **degrees,
        )
        return list(division_problems(float8, parameters(self.model), self.model.layers, at))

    def _given_problems(self) -> list[str]:
        if (self.schedule == "given") != (self.rows is not None):
            return [
                f"plan.schedule is '{self.schedule}' and plan.rows is {'given' if self.rows else 'absent'}: rows are "
                f"the table of schedule 'given', and of no other"
            ]
        if self.rows is None or self.batch.problems(self.layout):
            return []
        if self.batch.ramp is not None:
            return [f"plan.rows is a table for one batch, and plan.batch.ramp {self.batch.ramp.start} changes it"]
        micro_batches = self.batch.micro_batches(self.layout)
        try:
            table = parse_schedule(self.rows)
        except ConfigError as error:
            return [f"plan.rows: {error}"]
        return table_problems(
            table, pipeline=self.layout.pipeline, stages=self.layout.stages, micro_batches=micro_batches
        )

    def _schedule_problems(self) -> list[str]:
        layout, found = self.layout, []
        found += self._given_problems()
        several = self.schedule in ("interleaved", "zb-v", "zb-turns", "given")
        if not schedules_chunks(layout.chunks, several=several, two=False):
            found.append(
                f"plan.layout.chunks is {layout.chunks} but plan.schedule is '{self.schedule}', which holds one "
                f"stage per rank; set plan.schedule=interleaved or plan.layout.chunks=1"
            )
        two = self.schedule in ("zb-v", "zb-turns")
        if not schedules_chunks(layout.chunks, several=True, two=two):
            found.append(
                f"plan.layout.chunks is {layout.chunks} but plan.schedule '{self.schedule}' goes down the ranks and "
                f"back up: two stages per rank; set plan.layout.chunks=2 (and plan.layout.pipeline to 2 or more)"
            )
        if self.heads_in_turns and self.partition.head_weight > 0:
            found.append(
                f"plan.partition.head_weight is {self.partition.head_weight} but plan.schedule 'zb-turns' leaves the "
                f"head to no stage of layers; set it to 0"
            )
        if self.schedule == "interleaved" and layout.pipeline > 1 and not self.batch.problems(layout):
            for sequences in sorted({s.sequences for s in self.batch.segments}):
                micro_batches = self.batch.micro_batches(layout, sequences)
                if not interleaves(micro_batches, layout.pipeline):
                    unit = self.batch.micro * layout.data * layout.pipeline
                    nearest = f"nearest plan.batch.sequences: {nearest_multiples(sequences, unit)}"
                    of_ramp = f"it is of the ramp: set plan.batch.ramp.start and .increment to multiples of {unit}"
                    found.append(
                        f"plan.schedule 'interleaved' needs micro-batches ({sequences} / (micro {self.batch.micro} "
                        f"x data {layout.data}) = {micro_batches}) in multiples of plan.layout.pipeline "
                        f"({layout.pipeline}); {nearest if sequences == self.batch.sequences else of_ramp}"
                    )
                    break  # one size of a ramp says it for all
        return found


def _either(unit: int, near: int) -> str:
    """24, 5 -> '4 or 6': the degrees next to `near` that divide `unit`, as remedies in messages."""
    return " or ".join(map(str, degrees_dividing(unit, near)))


def head_length(model: ModelShape, stages: int) -> int:
    """Return the length of the head relative to a stage of layers, in eighths, estimated from the sizes of their
    weights."""
    layers = sum(p.elements for p in parameters(model) if isinstance(p.owner, int))
    return max(1, round(HEAD_UNITS * stages * model.vocabulary * model.hidden / layers))


def problems_of_any_layout(
    model: ModelShape, precision: Precision, optimizer: Optimizer, messages: Messages, *, compiled: bool
) -> list[str]:
    """Return the problems that every plan with these settings has, whatever its layout, batch and schedule."""
    found, float8 = model.problems(), precision.float8
    if float8 is not None and not found:
        found = [*keep_problems(float8, parameters(model), model.layers)]
        if float8.gathered and float8.recipe != "tensor":
            found.append(
                f"plan.precision.float8.gathered is true and recipe is '{float8.recipe}': only with 'tensor' does a "
                f"layer give gathered weights the same codes again; set it to false"
            )
    return [
        *found,
        *compiler_problems(model, compiled=compiled),
        *optimizer.problems(model),
        *messages.problems(precision),
    ]


def compiler_problems(model: ModelShape, *, compiled: bool) -> list[str]:
    """Return the contradictions between the model and `plan.compiled`."""
    if not compiled:
        return []
    drawing = (
        (model.dropout > 0, f"plan.model.dropout {model.dropout}"),
        (model.adapters_draw, "an adapter of plan.model.adapters with dropout or noise"),
    )
    return [
        f"plan.compiled is true and {what}: random numbers are drawn by names, which torch.compile cannot trace; set "
        f"one of them to its default"
        for draws, what in drawing
        if draws
    ]


def ring_problems(precision: Precision, messages: Messages, row_chunks: int = 1, *, pieces: bool = True) -> list[str]:
    """Return why activations cannot go round a ring of tensor ranks. pieces: whether these divide the positions."""
    float8 = precision.float8
    conflicts = (
        (not pieces, "plan.sequence_parallel is false: there are no pieces; set it to true"),
        (row_chunks > 1, f"plan.row_chunks ({row_chunks}) cuts the same products in another way; set it to 1"),
        (
            messages.tensor != "exact",
            f"plan.messages.tensor '{messages.tensor}' would round a sum at each hop; set it to exact",
        ),
        (
            float8 is not None and float8.recipe != "block",
            "plan.precision.float8 scales rows over tensor ranks, which compute other pieces at the same time; set its "
            "recipe to block",
        ),
    )
    told = [why for holds, why in conflicts if holds]
    return [f"plan.overlap_tensor is true and {why}, or plan.overlap_tensor to false" for why in told]


def recording_problems(
    model: ModelShape, precision: Precision, zero: int, offload: Offload, *, recorded: bool
) -> list[str]:
    """Return the settings that a CUDA graph cannot replay: dropout and noise, fp16 loss scaling, separate documents,
    experts, activations on the host, and ZeRO-2 or -3."""
    if not recorded:
        return []
    changing = (
        (zero > 1, f"plan.zero is {zero}, which gathers and frees within a step"),
        (model.dropout > 0, f"plan.model.dropout is {model.dropout}, whose masks are drawn by the step"),
        (model.adapters_draw, "plan.model.adapters has dropout or noise, which is drawn by the step"),
        (
            model.documents == "apart",
            "plan.model.documents is 'apart', and where they begin is another work every time",
        ),
        (bool(model.expert_counts), "plan.model.feed_forward is 'experts', whose numbers of tokens change"),
        (precision.weights == "fp16", "plan.precision.weights is 'fp16', whose loss scale changes"),
        (
            offload.activations > 0,
            f"plan.offload.activations is {offload.activations:g}, whose copies end at other times every time",
        ),
    )
    return [
        f"plan.cuda_graphs is true and {why}: a recorded step is the same work every time; set plan.cuda_graphs to "
        f"false"
        for holds, why in changing
        if holds
    ]
