"""One rank's training step: run the schedule, reduce gradients, update weights, and all-reduce the loss."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import groupby
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from trivium.comms.collectives import all_reduce_, sum_over_ranks_
from trivium.comms.mesh import Mesh
from trivium.errors import ConfigError, DataError
from trivium.kernels.crossing import read_later
from trivium.kernels.dropout import DropoutKey
from trivium.kernels.dtypes import DTYPES
from trivium.kernels.host_activations import HostActivations
from trivium.kernels.operations import operations_of
from trivium.model.inputs import Inputs
from trivium.model.layers.head import TOP_IDS, TOP_LOGS, Losses
from trivium.model.layers.scaled import scaling_of
from trivium.model.stage import Stage, bare_stages, placed, share_table
from trivium.objectives.objective import LOSS, NEXT_TOKEN, NextToken, Objective
from trivium.objectives.preferences.losses import Preference
from trivium.parallel.pipeline.clock import Clock, finished
from trivium.parallel.pipeline.executor import Executor, Run, StageFunctions
from trivium.parallel.pipeline.saved_bytes import SavedBytes
from trivium.parallel.sharding.buckets import Bucket, Dtypes, GradientWatch, make_buckets
from trivium.parallel.sharding.gathered import User, gather_around, wait_before
from trivium.parallel.sharding.zero import AdamRule, ShardedOptimizer, Totals, loss_share
from trivium.parallel.tensor.divergence import Top
from trivium.plan.buckets import bucket_table, on_host
from trivium.plan.matrices import rounds_of_work
from trivium.plan.plan import Plan
from trivium.plan.schedule import Op, Schedule, forward
from trivium.plan.transfers import Program, with_transfers
from trivium.provenance import unheard
from trivium.tokens.chat.pack import shares
from trivium.tokens.rows import NO_ROWS, Digest, Rows, digest
from trivium.training.amaxes import Amaxes
from trivium.training.batches import Read, inputs_of, packing, padded, windows
from trivium.training.config import TrainingConfig
from trivium.training.loss_scale import MIN_SCALE, LossScale
from trivium.training.pairs import Weighed, weighed
from trivium.training.recorded_step import RecordedStep
from trivium.training.remembered import remember
from trivium.training.routers import LayerLoad, Routers

Scale = float | torch.Tensor  # scale of losses
Kept = Callable[[int, Losses], None]  # takes a micro-batch's number and what its `Inputs` asked of each target


class Numbered(NamedTuple):
    """Rows with the numbers of their samples."""

    rows: Rows
    numbers: Sequence[int]


class StepResult(NamedTuple):
    """The result of a step, the same on all ranks except `run` and `update_seconds`.

    losses: means over the batch's targets by their weights, in nats, or over its pairs, by name. gradient_norm: before
    clipping. update_seconds: of the optimizer's step, with the wait for reduced gradients and the all-gather of
    weights; on a GPU only if the step was measured, and otherwise the time to launch it. loads: of the experts of each
    layer that has some, by its number.
    """

    losses: Mapping[str, float]
    gradient_norm: float
    run: Run
    update_seconds: float
    asked: bool = False  # whether some rank received a request to end
    batch_hash: str = ""  # hash of the rows that all ranks read
    loads: Mapping[int, LayerLoad] = MappingProxyType({})

    @property
    def loss(self) -> float:
        """The minimised loss without the terms that the model adds: by default the cross-entropy."""
        return self.losses[LOSS]


@dataclass(frozen=True)
class Samples:
    """A global batch: samples [first, first + sequences) of the data, read only where a rank needs them.

    costs: of samples [first, first + count), to give each data rank equal work; None, or a result of None: they are
    equal.
    """

    first: int
    sequences: int
    read: Read
    costs: Callable[[int, int], NDArray[np.int64] | None] | None = None

    def padded_to(self, unit: int) -> "Samples":
        """Return as many samples as make a multiple of `unit`. Those that are added have weight 0."""
        end = self.first + self.sequences
        return Samples(self.first, -(-self.sequences // unit) * unit, padded(self.read, end))

    def share(self, rank: int, ranks: int) -> list[int]:
        """Return the numbers of the samples that a data rank reads: a run of them, or those of an equal share of work.

        They are a pure function of the batch and the number of ranks.
        """
        costs = None if self.costs is None or ranks == 1 else self.costs(self.first, self.sequences)
        if costs is None:
            each = self.sequences // ranks
            return list(range(self.first + rank * each, self.first + (rank + 1) * each))
        return [self.first + number for number in shares(costs.tolist(), ranks)[rank]]

    def rows(self, numbers: Sequence[int]) -> Rows:
        """Return the rows of samples, reading each run of consecutive numbers at once."""
        return Rows.joined([self.read(*run) for run in _runs(numbers)])

    def runs(self, rank: int, ranks: int) -> list[tuple[int, int]]:
        """Return the first number and the length of each run of samples that a data rank reads."""
        return _runs(self.share(rank, ranks))

    @classmethod
    def of_ids(cls, ids: np.ndarray, plan: Plan, step: int) -> "Samples":
        """Return the samples of a step, counted from 0, from one long text of token ids [tokens], which may be mapped.

        Windows are consecutive and not shuffled. Reading them raises DataError as `windows` does.
        """
        at = plan.batch.at(step)
        return cls(at.first_sample, at.sequences, partial(windows, ids, plan.model))


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    runs = [list(run) for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return [(run[0][1], len(run)) for run in runs]


def adam_rule(config: TrainingConfig) -> AdamRule:
    """Return AdamW's constants of a config."""
    return AdamRule(**{field.name: getattr(config, field.name) for field in fields(AdamRule)})


class Trainer:
    """One rank's model, gradients and optimizer under a plan."""

    def __init__(
        self,
        plan: Plan,
        mesh: Mesh,
        *,
        seed: int,
        rule: AdamRule,
        initial: bool = True,
        objective: Objective = NEXT_TOKEN,
    ) -> None:
        mesh.refuse_other(plan.layout, plan.ends)
        self.plan, self.mesh, self.seed, self.objective = plan, mesh, seed, objective
        self.stages, birth = bare_stages(plan, mesh), seed if initial else None
        rows = bucket_table(plan, mesh.at.pipeline)
        self.buckets: list[Bucket] = make_buckets(
            rows,
            # One bucket after the other, because at ZeRO stage 3 a rank has no memory for all of them.
            lambda item: placed(self.stages[item.stage], item.parameter.name, plan, mesh, seed=birth),
            mesh,
            zero=plan.zero,
            dtypes=Dtypes(
                DTYPES[plan.precision.weights],
                DTYPES[plan.gradient_dtype],
                DTYPES[plan.reduction_dtype],
                DTYPES[plan.precision.masters],
                plan.messages,
            ),
            scaling=None if plan.precision.float8 is None else scaling_of(plan.precision.float8),
        )
        share_table(self.stages, plan)
        for stage in self.stages.values() if plan.zero else ():
            hook = gather_around if plan.zero >= 3 else wait_before
            hook(_users(stage, self.buckets))
        # On CPUs torch's fused kernel moves as few bytes as a compiled one.
        in_one_pass = plan.compiled and mesh.device.type != "cpu"
        masters = DTYPES[plan.precision.masters]
        self.trained = [bucket for bucket in self.buckets if bucket.trains]
        self.optimizer = ShardedOptimizer(
            self.trained,
            mesh,
            rule,
            masters,
            groups=plan.optimizer,
            work=rounds_of_work(plan, rows),
            compiled=in_one_pass,
            on_host=on_host(plan, rows),
        )
        if plan.model.adapters_remember:
            shards = self.optimizer.shards
            self.optimizer.before_update = partial(remember, self.stages.values(), self.buckets, shards)
        self._routers = Routers(plan, mesh, self.buckets) if plan.model.experts_by_layer else None
        if self._routers is not None:
            self.optimizer.after_update = self._routers.update_biases
        float8 = plan.precision.float8
        is_delayed = float8 is not None and float8.recipe == "delayed"
        self.amaxes = Amaxes(plan, mesh, self.stages) if is_delayed else None
        self.host = HostActivations(mesh.device) if plan.offload.activations else None
        for stage in self.stages.values():
            stage.host = self.host
        self._watch = GradientWatch(self.trained)
        for stage in self.stages.values():
            stage.weight_gradients.sums = self._watch
        self.loss_scale = LossScale() if plan.precision.weights == "fp16" else None
        self.transport: Literal["posted", "in order"] | None = None  # None: the backend's choice
        # A heartbeat, called before every forward of a micro-batch and after every tensor read from a checkpoint.
        self.goes_on: Callable[[], None] = unheard
        self.around: Callable[[str], AbstractContextManager[Any]] | None = None  # each event, while a step is traced
        is_plain = isinstance(objective, NextToken)  # a recording has no reference and no teacher
        self._records = is_plain and plan.cuda_graphs and operations_of(mesh.device.type).recording is not None
        self._recorded: RecordedStep | None = None
        # Sizes of batches that were trained, so that the next step of the size can be recorded.
        self._ran: set[int] = set()
        self._programs: dict[tuple[int, bool], Program] = {}
        self._digest = NO_ROWS  # hash of the rows that this rank read last

    def train_step(
        self,
        step: int,
        samples: Samples,
        lr: float,
        *,
        measure: bool = False,
        asks: bool = False,
        accepts: Callable[[Totals], bool] | None = None,
    ) -> StepResult:
        """Do one optimizer step on the global batch `samples`; every rank returns the same loss and norm.

        asks: this rank received a request to end; every rank's result then says so. accepts: may reject the update,
        given the totals; it is not called for an overflow that a smaller loss scale fixes. Without `accepts`, raises
        DataError on every rank if fp16 gradients are not finite at the smallest scale; no weight has changed then.
        """
        run = self.accumulate(step, samples, measure=measure)
        scale = self.loss_scale.value if self.loss_scale else 1.0
        updates, begin = self.optimizer.steps_done, time.perf_counter()
        totals = self.optimizer.step(
            lr,
            losses=run.losses,
            loss_scale=scale,
            asks=asks,
            digest=self._digest,
            loads=self._routers.sums if self._routers else None,
            accepts=_judge(accepts, scale) if self.loss_scale else accepts,
        )
        if self.amaxes is not None:
            self.amaxes.end_step(scale, updated=self.optimizer.steps_done > updates)
        if measure:
            finished(self.mesh.device)
        update_seconds = time.perf_counter() - begin
        if self.loss_scale:
            finite = math.isfinite(totals.gradient_norm)
            if accepts is None and not finite and scale == MIN_SCALE:
                raise DataError(
                    f"step {step}: the gradient norm is {totals.gradient_norm} and the loss {totals.loss} in fp16 at a "
                    f"loss scale of {MIN_SCALE:g}, the smallest; no weight was changed. Lower the learning rate, look "
                    f"at this batch, or take plan.precision.weights=bf16; a program that wants to pass over such steps "
                    f"gives `accepts` to train_step"
                )
            self.loss_scale.update(finite=finite)
        batch_hash = str(Digest(*totals.digest))
        loads = self._routers.told(totals.loads) if self._routers else {}
        return StepResult(totals.losses, totals.gradient_norm, run, update_seconds, totals.asked > 0, batch_hash, loads)

    def accumulate(self, step: int, samples: Samples, *, measure: bool = False) -> Run:
        """Run forward and backward of the batch; the buckets then have the gradients, whose reduction has begun.

        measure: also count the bytes that autograd stores, and their peak, and time each action by the clock of the
        device, which is synchronized.
        """
        given = self._read(samples, hashed=True)
        loss_scale = self.loss_scale.value if self.loss_scale else 1.0
        if isinstance(self.objective, Preference):
            of_pairs = self._weighed(self.objective, given)
            self._set_mode(training=True)
            share = loss_scale / max(1.0, of_pairs.pairs)
            inputs = self._inputs(given._replace(rows=of_pairs.rows), None)
            with self._watched(samples.sequences, inputs, loss_scale) as (watched, losses):
                run = self._run(samples.sequences, watched, share, measure=measure)
            return replace(run, losses=self._shares(of_pairs, share) | losses)
        self._set_mode(training=True)
        inputs = self._inputs(given, step)
        scale = self._scale_of_losses(inputs, loss_scale)
        if self._records and not measure and samples.sequences in self._ran:
            return self._replayed(samples.sequences, inputs, scale)
        self.forget_recording()
        if self.amaxes is None or self.amaxes.step.has_past:  # later steps do not scale like one without a past
            self._ran.add(samples.sequences)
        with self._watched(samples.sequences, inputs, loss_scale) as (watched, losses):
            run = self._run(samples.sequences, watched, scale, measure=measure)
        return replace(run, losses=run.losses | losses)

    @contextmanager
    def _watched(
        self, sequences: int, inputs: Sequence[Inputs], loss_scale: float
    ) -> Iterator[tuple[Sequence[Inputs], dict[str, torch.Tensor]]]:
        """Yield micro-batches whose routers are watched, and a dictionary that has their losses afterwards."""
        losses: dict[str, torch.Tensor] = {}
        if self._routers is None:
            yield inputs, losses
            return

        @torch.no_grad()
        def count(counted: Sequence[Inputs]) -> None:
            program = self._program(sequences, forward_only=True)[self.mesh.at.pipeline]
            self._executor(counted, 1.0, ()).run(program)

        yield self._routers.watching(inputs, sequences, loss_scale, count), losses
        losses |= self._routers.finish(loss_scale)

    def _run(self, sequences: int, inputs: Sequence[Inputs], scale: Scale, *, measure: bool = False) -> Run:
        self._watch.start_step()
        program = self._program(sequences, forward_only=False)[self.mesh.at.pipeline]
        names = (LOSS,) if self.objective.of_pairs else self.objective.names(self.plan.model)
        executor = self._executor(inputs, scale, names)
        if measure:
            executor.saved_bytes = SavedBytes(b.weights for b in self.buckets)
            executor.clock = Clock(self.mesh.device)
        if self.host is None:
            return executor.run(program)
        self.host.forget_peaks()
        run = executor.run(program)
        return replace(run, peak_host_bytes=self.host.peak, peak_returned_bytes=self.host.peak_here)

    def _replayed(self, sequences: int, inputs: Sequence[Inputs], scale: Scale) -> Run:
        """Replay a step that was recorded before. One recording is kept; a ramp's next batch size needs another. No
        recorded module waits for its weights, so all of them have arrived before."""
        self.finish_update()
        if self._recorded is None or self._recorded.sequences != sequences:
            self.forget_recording()
            work = partial(self._run, sequences, inputs, scale)
            self._recorded = RecordedStep(sequences, inputs, scale, self.trained, self.mesh, work)
        self.goes_on()
        return self._recorded.replay(inputs, scale)

    def forget_recording(self) -> None:
        """Free the activations of the recorded step, for a step that is not replayed; a later step is recorded again.
        Call it before the process group ends, which would wait for recorded messages."""
        self._recorded = None

    def finish_update(self) -> None:
        """Wait until the weights that other ranks have updated have arrived. Before that, only the forward of a stage,
        `weights_held` and `Bucket.weights` may read weights."""
        for bucket in self.trained:
            bucket.published()

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Launch steps inside this context kernel by kernel. All ranks enter it or none: NCCL captures both ends of
        a message or neither."""
        records, self._records = self._records, False
        try:
            yield
        finally:
            self._records = records

    @torch.no_grad()
    def validate(self, samples: Samples) -> dict[str, float]:
        """Return the mean losses over `samples` by name, without gradients or dropout; the same on every rank and under
        every layout. Incomplete micro-batches are padded."""
        self.forget_recording()
        whole = samples.padded_to(self.plan.validation_unit)
        given = self._read(whole)
        if isinstance(self.objective, Preference):
            of_pairs = self._weighed(self.objective, given)
            losses = self._shares(of_pairs, 1 / max(1.0, of_pairs.pairs))
        else:
            self._set_mode(training=False)
            inputs = self._inputs(given, None)
            program = self._program(whole.sequences, forward_only=True)[self.mesh.at.pipeline]
            losses = self._executor(inputs, self._scale_of_losses(inputs), (LOSS,)).run(program).losses
        shares = torch.stack([loss_share(loss, self.mesh) for loss in losses.values()])
        return dict(zip(losses, read_later(sum_over_ranks_(shares, self.mesh))(), strict=True))

    def log_probabilities(self, samples: Samples) -> np.ndarray:
        """Return the log-probability of each target of this rank's replica, [sequences, positions], without dropout;
        every rank calls this. Samples must fill whole micro-batches."""
        return -self._asked(self._read(samples), "each", {LOSS: ()})[LOSS]

    def likeliest(self, samples: Samples, top: Top) -> dict[str, np.ndarray]:
        """Return TOP_IDS and TOP_LOGS of each target of this rank's replica, [sequences, positions, top.tokens], as
        `log_probabilities` does."""
        return self._asked(self._read(samples), top, dict.fromkeys((TOP_IDS, TOP_LOGS), (top.tokens,)))

    @torch.no_grad()
    def _asked(
        self, given: Numbered, asked: Literal["each"] | Top, shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, np.ndarray]:
        """Return what is asked of each target by name. shapes: of each target's numbers."""
        self._set_mode(training=False)
        plan, mesh, micro = self.plan, self.mesh, self.plan.batch.micro
        found = {
            name: torch.zeros(*given.rows.targets.shape, *shape, dtype=torch.float64) for name, shape in shapes.items()
        }
        positions = torch.tensor(plan.positions_of(mesh.context.index))
        inputs = [replace(each, asked=asked) for each in self._inputs(given, None)]

        def kept(m: int, numbers: Losses) -> None:
            for name, each in found.items():
                each[m * micro : (m + 1) * micro, positions] = numbers[name].to("cpu", torch.float64).transpose(0, 1)

        program = self._program(len(given.numbers) * plan.layout.data, forward_only=True)[mesh.at.pipeline]
        self._executor(inputs, 1.0, (), kept).run(program)
        # Each position's numbers are on one context rank of one pipeline rank, and elsewhere they are 0.
        return {
            name: all_reduce_(all_reduce_(each.to(mesh.device), mesh.context), mesh.pipeline).cpu().numpy()
            for name, each in found.items()
        }

    def _weighed(self, objective: Preference, given: Numbered) -> Weighed:
        rows, numbers = given
        counts = packing(rows, self.plan.model.end_of_text).counts  # as in the inputs of the model
        rows = rows._replace(weights=rows.weights * counts)
        each = -self._asked(given, "each", {LOSS: ()})[LOSS]
        return weighed(objective, rows, numbers, each, self.mesh)

    def _shares(self, of_pairs: Weighed, scale: float) -> dict[str, torch.Tensor]:
        """Return this rank's shares of the losses of pairs, which all ranks of a replica know."""
        counts = self.mesh.at.pipeline == self.mesh.at.context == 0
        return {
            name: torch.tensor(loss * scale * counts, dtype=torch.float64, device=self.mesh.device)
            for name, loss in of_pairs.losses.items()
        }

    @contextmanager
    def weights_held(self) -> Iterator[Mapping[int, Stage]]:
        """Gather all weights of this rank's stages inside this context; ZeRO-3 otherwise shards them."""
        for bucket in self.buckets:
            bucket.hold()
        try:
            yield self.stages
        finally:
            for bucket in self.buckets:
                bucket.drop()

    def _executor(
        self, inputs: Sequence[Inputs], scale: Scale, losses: Sequence[str], kept: Kept | None = None
    ) -> Executor:
        """kept: receives what `Inputs` ask of each target."""
        plan, device = self.plan, self.mesh.device
        functions = {
            n: StageFunctions(_forward(stage, inputs, self.goes_on, kept), stage.weight_gradients)
            for n, stage in self.stages.items()
        }
        dtype = DTYPES[plan.precision.weights]
        return Executor(
            mesh=self.mesh,
            stages=functions,
            last_stage=plan.last_stage,
            activation=lambda: torch.empty(plan.activation_shape, dtype=dtype, device=device),
            names=losses,
            loss_scale=scale,
            watch=self._watch,
            transport=self.transport,
            around=self.around,
        )

    def _read(self, samples: Samples, *, hashed: bool = False) -> Numbered:
        """Return this replica's rows, which a step counts in the batch's hash."""
        refuse_part_of_a_micro_batch(self.plan, samples.sequences)
        numbers = samples.share(self.mesh.at.data, self.plan.layout.data)
        rows = samples.rows(numbers)
        if hashed:
            at = self.mesh.at
            reads_for_all = at.tensor == at.pipeline == at.context == 0  # others read the same rows
            self._digest = digest(numbers, rows) if reads_for_all else NO_ROWS
        return Numbered(rows, numbers)

    def _inputs(self, given: Numbered, step: int | None) -> list[Inputs]:
        """Return the micro-batches of rows, with the dropout of a step."""
        plan, micro, found = self.plan, self.plan.batch.micro, []
        rows, numbers = given
        for start in range(0, len(numbers), micro):
            part = rows.part(start, start + micro)
            mine = tuple(numbers[start : start + micro])
            key = None if step is None else DropoutKey(self.seed, step, mine, plan.model.sequence)
            found.append(inputs_of(plan, part, self.mesh, dropout=key, objective=self.objective))
        return found

    def _scale_of_losses(self, inputs: Sequence[Inputs], loss_scale: float = 1.0) -> Scale:
        """Return what the weighted losses of all micro-batches are multiplied by: `loss_scale` divided by the sum of
        the batch's weights. Where that is 0, so are the losses. On an accelerator it stays there, so that nobody
        waits."""
        total = self._sum_of_weights(inputs)
        total = torch.where(total > 0, total, 1.0)
        if total.device.type == "cpu" and not self._records:
            return 1 / float(total) * loss_scale
        return (loss_scale / total).to(torch.float64 if self.plan.precision.weights == "fp64" else torch.float32)

    def _sum_of_weights(self, inputs: Sequence[Inputs]) -> torch.Tensor:
        """Return the sum of the weights of the whole batch, over all replicas."""
        weights = [x.weights.sum(dtype=torch.float64) for x in inputs if x.weights is not None]
        return all_reduce_(torch.stack(weights).sum(), self.mesh.replicas)

    def _set_mode(self, *, training: bool) -> None:
        if self.amaxes is not None:
            self.amaxes.begin_pass(self.loss_scale.value if self.loss_scale else 1.0, training=training)
        for stage in self.stages.values():
            if stage.training is not training:  # visiting every module takes a small model longer than a layer
                stage.train(training)

    def _program(self, sequences: int, *, forward_only: bool) -> Program:
        key = (sequences, forward_only)
        if key not in self._programs:
            # A given table is for the full batch; validation may use fewer samples.
            given = self.plan.schedule == "given"
            table = self.plan.schedule_table(sequences) if not given or not forward_only else self._forwards(sequences)
            if forward_only:
                table = tuple(tuple(a for a in row if a.op is Op.FORWARD) for row in table)
            self._programs[key] = with_transfers(table)
        return self._programs[key]

    def _forwards(self, sequences: int) -> Schedule:
        """Return every forward of each stage, on the rank of the stage."""
        micro_batches = range(self.plan.batch.micro_batches(self.plan.layout, sequences))
        ranks = range(self.plan.layout.pipeline)
        return tuple(tuple(forward(m, s) for m in micro_batches for s in self.plan.stages_of(r)) for r in ranks)


def refuse_part_of_a_micro_batch(plan: Plan, sequences: int) -> None:
    """Raise ConfigError if replicas cannot run `sequences` in full micro-batches: the rest would be dropped."""
    unit = plan.batch.micro * plan.layout.data
    if sequences < 1 or sequences % unit:
        below = sequences // unit * unit
        nearest = f"{below} or {below + unit}" if below > 0 else str(unit)
        raise ConfigError(
            f"{sequences} sequences: must be a multiple of plan.batch.micro ({plan.batch.micro}) x plan.layout.data "
            f"({plan.layout.data}) = {unit}; give {nearest}"
        )


def _judge(accepts: Callable[[Totals], bool] | None, scale: float) -> Callable[[Totals], bool]:
    """Return the function that decides whether fp16 gradients update the weights: `accepts`, or whether they are
    finite. It is not asked about gradients that overflow, which halving the scale fixes: the optimizer rejects them."""
    decides = accepts or (lambda totals: math.isfinite(totals.gradient_norm))

    def judge(totals: Totals) -> bool:
        overflows = math.isfinite(totals.loss) and not math.isfinite(totals.gradient_norm)
        return (overflows and scale != MIN_SCALE) or decides(totals)

    return judge


def _users(stage: Stage, buckets: Sequence[Bucket]) -> list[User]:
    """Return the modules of a stage in order, each with the buckets of its parameters."""
    return [
        User(module, tuple(b for b in buckets if any(s.row.name in names for s in b.slots)), in_backward)
        for module, names, in_backward in stage.modules_in_order()
    ]


def _forward(
    stage: Stage, inputs: Sequence[Inputs], goes_on: Callable[[], None], kept: Kept | None
) -> Callable[[torch.Tensor | None, int], tuple[torch.Tensor | None, Losses]]:
    def forward(x: torch.Tensor | None, m: int) -> tuple[torch.Tensor | None, Losses]:
        goes_on()
        loads = inputs[m].loads
        if loads is not None and loads.counts_only:
            hidden = stage.hidden(x, inputs[m])
            return (None if stage.is_last else hidden), {}
        found: torch.Tensor | Losses = stage(x, inputs[m])
        if isinstance(found, torch.Tensor):
            return found, {}
        if kept is None:
            return None, found
        kept(m, found)
        return None, {}

    return forward
