"""The training loop of one rank. Everything that is not a step is done by observers (training/observers/)."""

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trivium.checkpoint.agree import found_by_first
from trivium.checkpoint.base import BASE_HASH, base_sha256
from trivium.checkpoint.load import Checkpoint
from trivium.checkpoint.near import Neighbour
from trivium.comms.mesh import Mesh
from trivium.config import to_tree
from trivium.errors import CheckpointError, Preempted, TriviumError
from trivium.model.stage import Stage
from trivium.objectives.distillation.objective import Distillation
from trivium.objectives.objective import LOSS
from trivium.objectives.preferences.losses import Preference
from trivium.parallel.sharding.zero import Totals
from trivium.plan.parameters import count
from trivium.plan.plan import Plan
from trivium.provenance import write_json
from trivium.stores.remote import Location
from trivium.tokens.manifest import blend_of, read_tokens_manifest
from trivium.tokens.samples import TokenDataset
from trivium.tokens.shards import TokenShard
from trivium.training.ahead import ReadAhead
from trivium.training.batches import Read
from trivium.training.beside import TEACHER, beside_of
from trivium.training.config import TrainingConfig
from trivium.training.metrics import append_event, warn
from trivium.training.pairs import REFERENCE
from trivium.training.rates import lr_of_step
from trivium.training.record import Record, checkpoints_of, left_out_of, write_entries, write_record
from trivium.training.reference import hash_of_reference, with_reference
from trivium.training.resume import Start, drop_abandoned, find_start
from trivium.training.state import begin_with, progress_of, read_together, restore
from trivium.training.supervision.heartbeats import Phase, RankHeartbeat
from trivium.training.supervision.watchdog import seconds_to_wait
from trivium.training.teacher import found_teacher
from trivium.training.trainer import Samples, StepResult, Trainer, adam_rule
from trivium.training.verified_tokens import refuse_other_ids, refuse_other_objective, verify_together

DEGREES = ("tensor", "pipeline", "data", "context", "expert", "chunks")  # degrees of the layout that summaries show
# Evaluates the model in these stages under this plan; returns plain data. Its last argument is a heartbeat.
Examiner = Callable[[Mapping[int, Stage], Plan, Mesh, Callable[[], None]], dict[str, Any]]


@dataclass(frozen=True)
class TrainingJob:
    """A training: a plan, a training config, a seed, the directory of the tokens, and the directory of the run.

    examiner: evaluates the model on tasks during training, every `training.evaluation.every` steps. questions: hashes
    of its tasks' questions by name, which must be equal on all hosts. until: the step after which these ranks save and
    end, if it is not `training.steps`. begun: the plan with which the training began, if it moved to `plan` on purpose.
    step_seconds: predicts the seconds of a step under a plan, for the events. others_wait: whether hosts wait to join,
    so that these ranks end at their next checkpoint. neighbour: keeps second copies of the state (training.near).
    """

    plan: Plan
    training: TrainingConfig
    seed: int
    tokens: Path
    out: Path
    examiner: Examiner | None = None
    questions: Mapping[str, str] = field(default_factory=dict)
    until: int | None = None
    begun: Plan | None = None
    step_seconds: Callable[[Plan], float | None] | None = None
    others_wait: Callable[[], bool] = lambda: False
    neighbour: Neighbour | None = None

    @property
    def checkpoints(self) -> Location:
        """The folder of the checkpoints: at the URL of `training.store`, or in the directory of the run."""
        return checkpoints_of(self.out, self.training.store)

    @property
    def last(self) -> int:
        """The last step of these ranks."""
        return self.training.steps if self.until is None else min(self.until, self.training.steps)

    @property
    def described(self) -> Plan:
        """The plan that records and measurements of the training are about."""
        return self.begun or self.plan


@dataclass
class StepSetup:
    """Settings of the next step that observers may change without an effect on what it computes.

    read: reads rows of the batch. measure: count the bytes that autograd stores, and time each action. contexts: are
    exited when the step is done.
    """

    read: Read
    measure: bool = False
    contexts: ExitStack = field(default_factory=ExitStack)


class Observer:
    """Watches the training of one rank. A subclass overrides the methods that it needs.

    All ranks call the same methods in the same order, so that a method may communicate.
    """

    def resume(self, loop: "Loop") -> None:
        """The trainer has the state after `loop.step` steps: at the start of a process, and after each rewind."""

    def before_step(self, loop: "Loop", setup: StepSetup) -> None:
        """Step `loop.step` follows."""

    def objection(self, totals: Totals) -> str:
        """Return why the update of the step must be rejected, or an empty string."""
        return ""

    def needs_checkpoint(self, loop: "Loop") -> bool:
        """Whether the state after `loop.step` steps has to be saved."""
        return False

    def has_long_work(self, loop: "Loop") -> bool:
        """Whether `evaluate` may take longer than a preempted job has left. The state is then saved before."""
        return False

    def after_step(self, loop: "Loop", result: StepResult) -> None:
        """Step `loop.step` is done. If an observer rewinds the loop, those after it in the list are not called."""

    def at_checkpoint(self, loop: "Loop") -> None:
        """The state after the step is to be saved."""

    def wait_for_writes(self, loop: "Loop", *, may_delete: bool) -> None:
        """Wait until nothing is being written in the background. may_delete: checkpoints that are no longer kept may
        be deleted."""

    def evaluate(self, loop: "Loop") -> None:
        """The step is over, and its checkpoint is being written; also called before the first step of a resumed
        process, and not called in a job that ends because it was preempted."""

    def finish(self, loop: "Loop") -> None:
        """The last step of this process is over."""

    def saved_state(self) -> dict[str, Any]:
        """Return plain data for the manifest of a checkpoint; `resume` reads it from `loop.manifest`."""
        return {}


class Loop:
    """Trains one rank, and calls the observers.

    step: the number of the current step or of the last one done, counted from 1. first_step: the step of the checkpoint
    that training continues from; manifest: of that checkpoint. refusal: why an observer rejected the update of the
    step, or an empty string. seconds: the duration of the step. figures: what observers add to the metrics of the step.
    summary: becomes result.json; observers add to it.
    """

    def __init__(
        self,
        job: TrainingJob,
        mesh: Mesh,
        observers: Sequence[Observer],
        *,
        heartbeat: RankHeartbeat | None = None,
        asked: Callable[[], bool] = lambda: False,
        hosts: int = 1,
    ) -> None:
        """asked: whether this rank received a request to end. hosts: of the job."""
        self.job, self.mesh, self.plan, self.config, self.hosts = job, mesh, job.plan, job.training, hosts
        self.observers, self._asked, self._heartbeat = observers, asked, heartbeat or RankHeartbeat()
        self.alive = self._heartbeat.alive
        self.step = self.first_step = 0
        self.refusal, self.checkpoint_due, self.seconds = "", False, 0.0
        # Of the last step done in this process whose loss was finite.
        self.final_losses: Mapping[str, float | None] = {LOSS: None}
        self.figures: dict[str, float] = {}
        self.summary: dict[str, Any] = {}
        self.identity, self.all_data = identity_of(job), dataset_of(job, "train")
        verify_together(job.tokens, job.out, mesh, self.alive)
        self._restore()
        if self.is_first_rank:
            record = Record(job.out, job.tokens, job.described, job.training, job.seed, ())
            self.attempt(partial(write_record, record))

    @property
    def is_first_rank(self) -> bool:
        return self.mesh.rank == 0

    def run(self) -> None:
        """Train to the last step. Raises Preempted if the job was asked to end before; a checkpoint is saved then."""
        begin, last = time.perf_counter(), self.job.last
        if self.step == 0:
            self._save(due=self._is_checkpoint_due())
        else:
            self._evaluate()
        while self.step < last:
            result = self._do_step()
            if result is None:
                continue
            self._save(due=self.checkpoint_due)
            if result.asked and (self.step < last or self._has_long_work()):
                self._finish()
                self.note({"event": "preempted", "step": self.step})
                raise Preempted(f"saved after step {self.step}; run the same command again to resume")
            self._evaluate()
        self.wait_for_writes(may_delete=True)
        seconds = time.perf_counter() - begin
        self._finish()
        if self.is_first_rank:
            write_json(self.job.out / "result.json", self._result(seconds))

    def _do_step(self) -> StepResult | None:
        """Do the next step and call the observers; returns None if one of them rewound the loop."""
        self.step += 1
        number = self.step
        self.enter("step")
        self.figures = {}
        started = time.perf_counter()
        result = self.train_step()
        self.seconds = time.perf_counter() - started
        if math.isfinite(result.loss):
            self.final_losses = result.losses
        is_last = number == self.job.last
        self.checkpoint_due = self._is_checkpoint_due() or result.asked or is_last or self._has_long_work()
        for observer in self.observers:
            observer.after_step(self, result)
            if self.step < number:
                return None
        return result

    def train_step(self) -> StepResult:
        """Compute step `self.step`, with what observers add to it."""
        number = self.step - 1  # the trainer counts from 0
        batch, lr = self.plan.batch.at(number), lr_of_step(self.config, self.plan, number)
        setup = StepSetup(self._ahead.rows)
        self.refusal = ""  # observers are not asked about a step that overflows fp16
        asks = self._asked() or self._heartbeat.asked_to_end
        asks = asks or (self.is_first_rank and self._is_checkpoint_due() and self.job.others_wait())
        with setup.contexts:
            for observer in self.observers:
                observer.before_step(self, setup)
            samples = Samples(batch.first_sample, batch.sequences, setup.read, self.data.costs)
            if self.step < self.job.last:
                following = self.plan.batch.at(number + 1)
                self._ahead.begin(replace(samples, first=following.first_sample, sequences=following.sequences))
            return self.trainer.train_step(number, samples, lr, measure=setup.measure, asks=asks, accepts=self._accepts)

    def _accepts(self, totals: Totals) -> bool:
        self.refusal = next((why for observer in self.observers if (why := observer.objection(totals))), "")
        return not self.refusal

    def _is_checkpoint_due(self) -> bool:
        return any(observer.needs_checkpoint(self) for observer in self.observers)

    def _has_long_work(self) -> bool:
        return any(observer.has_long_work(self) for observer in self.observers)

    def _save(self, *, due: bool) -> None:
        for observer in self.observers if due else ():
            observer.at_checkpoint(self)

    def _evaluate(self) -> None:
        for observer in self.observers:
            observer.evaluate(self)

    def rewind(self, to: Checkpoint | None) -> None:
        """Continue from a checkpoint, or from the beginning; every rank calls this."""
        del self.trainer  # there is no memory for two
        gc.collect()
        self._restore(to)

    def _restore(self, back: Checkpoint | None = None) -> None:
        """Restore the state of `back`, of the newest good checkpoint, or of the beginning. Checkpoints that a rewind
        abandoned are deleted only after that."""
        job, mesh = self.job, self.mesh
        root = job.checkpoints
        start = find_start(job.out, root, job.training, mesh, self.identity, self.alive, back)
        if start.entries_are_new and self.is_first_rank:
            write_entries(job.out, start.entries)
        self.entries, self.manifest = start.entries, start.state.manifest if start.state else {}
        # Adapters begin as in a new run where the weights that are given have none.
        initial = start.state is None and (start.weights is None or bool(self.plan.model.adapters))
        rule, objective = adam_rule(self.config), self.config.objective.made()
        self.trainer = Trainer(self.plan, mesh, seed=job.seed, rule=rule, initial=initial, objective=objective)
        self.trainer.goes_on = self.alive
        if start.state is not None:
            read_together(restore, self.trainer, start.state)
            self._note_resumed(start.state)
        if start.weights is not None:
            read_together(begin_with, self.trainer, start.weights)
        self.base = self._base_of(start)
        self.step = self.first_step = start.state.step if start.state else 0
        found_by_first(lambda: drop_abandoned(root, start.abandoned), mesh, TriviumError)
        self._find_beside(start)
        self.data = self.with_beside(self.all_data).leaving_out(left_out_of(self.entries))
        self._ahead = ReadAhead(self.data.rows, mesh.at.data, self.plan.layout.data)
        for observer in self.observers:
            observer.resume(self)

    def _note_resumed(self, state: Checkpoint) -> None:
        """Record the layout under which training continues, and that of the checkpoint."""
        event = {"event": "resumed", "step": state.step, "layout": to_tree(self.plan.layout)}
        event["layout_before"] = state.manifest["plan"]["layout"]
        seconds = self.job.step_seconds(self.plan) if self.job.step_seconds and self.is_first_rank else None
        self.note(event if seconds is None else event | {"predicted_seconds": seconds})

    def _find_beside(self, start: Start) -> None:
        """Verify what the objective needs beside the tokens. A reference is computed if there is none."""
        objective, job, state = self.trainer.objective, self.job, start.state
        known = {} if state is None else state.manifest
        hashed: str | None = known.get(TEACHER)
        if isinstance(objective, Preference):
            hashed = hash_of_reference(start, self.plan, job.seed)
        elif isinstance(objective, Distillation):
            hashed = hashed or objective.teacher
        self._beside = beside_of(job.tokens, objective, hashed)
        if self._beside is None:
            return
        self.enter("starting")
        if isinstance(objective, Preference):
            splits = [self.all_data, dataset_of(job, "validation")]
            begins = REFERENCE not in known
            with_reference(self._beside, self.trainer, splits, begins=begins)
        else:
            self._beside = found_teacher(self._beside, self.mesh)

    def with_beside(self, data: TokenDataset) -> TokenDataset:
        """Return samples with what the objective needs beside their tokens."""
        return data if self._beside is None else self._beside.of_dataset(data)

    def _base_of(self, start: Start) -> dict[str, Any]:
        """Return what a checkpoint tells of the base of its adapters: its hash, and the folder that it came from."""
        given = start.state or start.weights
        if not self.plan.model.adapters or given is None or (start.state and BASE_HASH not in start.state.manifest):
            return {}
        named = {key: given.manifest[key] for key in ("imported_from",) if key in given.manifest}
        return {BASE_HASH: found_by_first(lambda: base_sha256(given), self.mesh, CheckpointError), **named}

    def _finish(self) -> None:
        for observer in self.observers:
            observer.finish(self)
        self.trainer.finish_update()
        self.trainer.forget_recording()

    def enter(self, phase: Phase) -> None:
        """Begin a phase of a step: send a heartbeat, and set the timeout of its collectives."""
        self._heartbeat.begin(self.step, phase)
        is_first = self.step == self.first_step + 1
        self.mesh.wait_at_most(seconds_to_wait(self.config.supervision, phase, is_first=is_first))

    def wait_for_writes(self, *, may_delete: bool) -> None:
        """Wait until no observer writes in the background."""
        self.enter("saving")
        for observer in self.observers:
            observer.wait_for_writes(self, may_delete=may_delete)

    def note(self, event: dict[str, Any]) -> None:
        """Append an event to the run's events; on the first rank."""
        if self.is_first_rank:
            append_event(self.job.out, event)

    def warn(self, text: str) -> None:
        """Print a warning; on the first rank."""
        if self.is_first_rank:
            warn(text)

    def attempt(self, write: Callable[[], None]) -> None:
        """Write a file about the run. If that fails, warn: it is no reason to lose a training."""
        try:
            write()
        except OSError as error:
            warn(f"rank {self.mesh.rank}: {error}; training continues without it")

    @property
    def tokens_seen(self) -> int:
        """The number of tokens of the first `step` steps."""
        return self.plan.tokens(self.plan.batch.at(self.step).first_sample)

    def about_state(self) -> dict[str, Any]:
        """Return the manifest entries, besides tensors, of a checkpoint after `self.step` steps."""
        about = {
            "samples": self.plan.batch.at(self.step).first_sample,
            "tokens_seen": self.tokens_seen,
            "training": to_tree(self.config),
            **self.identity,
            **self.base,
            **progress_of(self.trainer),
            "left_out": self.entries,
            **({} if self._beside is None else {self._beside.name: self._beside.of}),
        }
        for observer in self.observers:
            about |= observer.saved_state()
        return about

    def _result(self, seconds: float) -> dict[str, Any]:
        """Return result.json."""
        manifest = read_tokens_manifest(self.job.tokens)
        return {
            **self.summary,
            # No loss of pairs can be compared with it.
            "unigram_entropy": None if self.trainer.objective.of_pairs else manifest.get("unigram_entropy"),
            **{f"final_{name}": loss for name, loss in self.final_losses.items()},
            "layout": {k: getattr(self.plan.layout, k) for k in DEGREES},
            "device": device_name(self.mesh.device),
            "hosts": self.hosts,
            "schedule": self.plan.schedule,
            "zero": self.plan.zero,
            "sequence_parallel": self.plan.sequence_parallel,
            "precision": self.plan.precision.weights,
            "steps": self.config.steps,
            "updates": self.trainer.optimizer.steps_done,
            "tokens": self.tokens_seen,
            "parameters": count(self.plan.model),
            "seconds": seconds,
        }


def device_name(device: torch.device) -> str:
    """Return `cpu`, or the name that a GPU reports."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def identity_of(job: TrainingJob) -> dict[str, Any]:
    """Return what the manifest of a checkpoint keeps of this job, so that no other work continues from it."""
    manifest = read_tokens_manifest(job.tokens)
    data = {k: manifest[k] for k in ("tokenizer_sha256", "files") if k in manifest}
    return {"seed": job.seed, "plan": to_tree(job.plan), "data": data | {"blend": blend_of(manifest)}}


def dataset_of(job: TrainingJob, split: str) -> TokenDataset:
    """Return the samples of a split.

    Raises DataError if there are none or the model has no embedding for their ids, and ConfigError if it expects
    another end-of-text id. `verify_together` checks the indices when it reads them.
    """
    manifest = read_tokens_manifest(job.tokens)
    refuse_other_ids(manifest, job.plan.model, job.tokens)
    refuse_other_objective(manifest, job.training.objective, job.tokens)
    return TokenDataset.open(
        job.tokens, split, sequence=job.plan.model.sequence, seed=job.seed, opened=TokenShard.mapped
    )
