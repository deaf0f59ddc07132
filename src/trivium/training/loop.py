"""The training loop of one rank. Everything that is not a step is left to observers (training/observers/)."""

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trivium.checkpoint.agree import found_by_first
from trivium.checkpoint.load import Checkpoint
from trivium.comms.mesh import Mesh
from trivium.config import to_tree
from trivium.errors import Preempted, TriviumError
from trivium.model.stage import Stage
from trivium.objectives.objective import LOSS
from trivium.parallel.sharding.zero import Totals
from trivium.plan.parameters import count
from trivium.plan.plan import Plan
from trivium.provenance import write_json
from trivium.tokens.manifest import blend_of, read_tokens_manifest
from trivium.tokens.samples import TokenDataset
from trivium.tokens.shards import TokenShard
from trivium.training.batches import Read
from trivium.training.config import TrainingConfig
from trivium.training.metrics import append_event, warn
from trivium.training.rates import lr_of_step
from trivium.training.record import Record, left_out_of, write_entries, write_record
from trivium.training.resume import drop_abandoned, find_start
from trivium.training.state import begin_with, progress_of, read_together, restore
from trivium.training.supervision.pulse import Phase
from trivium.training.trainer import Samples, StepResult, Trainer, adam_rule
from trivium.training.verified_tokens import refuse_other_ids, verify_together

CHECKPOINTS = "checkpoints"
DEGREES = ("tensor", "pipeline", "data", "context", "chunks")  # of the layout, in summaries
# Evaluates the model in these stages, under this plan. Calls the function that it is given now and then, as a
# heartbeat. Returns plain data.
Examiner = Callable[[Mapping[int, Stage], Plan, Mesh, Callable[[], None]], dict[str, Any]]


@dataclass(frozen=True)
class TrainingJob:
    """What to train: a plan, a training config, a seed, the directory of the tokens, and the directory of the run.

    examiner: evaluates the model on tasks during training, every `training.evaluation.every` steps.
    questions: hashes of what it asks, by the names that a user knows, which must be equal on all hosts.
    """

    plan: Plan
    training: TrainingConfig
    seed: int
    tokens: Path
    out: Path
    examiner: Examiner | None = None
    questions: Mapping[str, str] = field(default_factory=dict)


@dataclass
class StepSetup:
    """What observers may add to the step that follows: none of it changes what the step computes.

    read: reads rows of the batch. measure: count the bytes that autograd keeps, and time each action. contexts: context
    managers that are exited when the step is done.
    """

    read: Read
    measure: bool = False
    contexts: ExitStack = field(default_factory=ExitStack)


class Observer:
    """Watches the training of one rank, outside of the numeric path. A subclass overrides the moments that it needs.

    All ranks call the same moments in the same order, so that a moment may communicate.
    """

    def enter(self, loop: "Loop", phase: Phase) -> None:
        """A phase of a step begins."""

    def resume(self, loop: "Loop") -> None:
        """The trainer has the state after `loop.step` steps: when a process starts, and after each rewind."""

    def start(self, loop: "Loop") -> None:
        """Called once in a process, before its first step."""

    def before_step(self, loop: "Loop", setup: StepSetup) -> None:
        """Step `loop.step` follows."""

    def objection(self, totals: Totals) -> str:
        """Return why the update of the step must not be made, or an empty string."""
        return ""

    def needs_checkpoint(self, loop: "Loop") -> bool:
        """Whether the state after the step has to be saved."""
        return False

    def has_long_work(self, loop: "Loop") -> bool:
        """Whether `evaluate` may last longer than the time in which a preempted job must have saved and ended."""
        return False

    def after_step(self, loop: "Loop", result: StepResult) -> None:
        """Step `loop.step` is done. If an observer rewinds the loop, those after it in the list are not called."""

    def at_checkpoint(self, loop: "Loop") -> None:
        """The state after the step is to be saved."""

    def wait_for_writes(self, loop: "Loop", *, may_delete: bool) -> None:
        """Wait until nothing is being written in the background. may_delete: what the writing replaces may go."""

    def evaluate(self, loop: "Loop") -> None:
        """The step is over, and a checkpoint that was due has begun. Not called where a preempted job ends."""

    def finish(self, loop: "Loop") -> None:
        """After the last step of this process."""

    def saved_state(self) -> dict[str, Any]:
        """Return plain data that a checkpoint keeps in its manifest; `resume` finds it in `loop.manifest`."""
        return {}


class Loop:
    """Trains one rank, and calls the observers.

    step: the number of the step at work or done last, counted from 1; 0 before the first. first_step: of the checkpoint
    that training continues from, and manifest: of that checkpoint. refusal: why an observer refused the update of the
    step, or an empty string. seconds: that it took. summary: becomes result.json; observers add to it.
    """

    def __init__(
        self,
        job: TrainingJob,
        mesh: Mesh,
        observers: Sequence[Observer],
        *,
        asks: Callable[[], bool],
        alive: Callable[[], None],
        hosts: int = 1,
    ) -> None:
        """asks: whether this rank was asked to end. alive: a heartbeat within a phase. hosts: of the job."""
        self.job, self.mesh, self.plan, self.config, self.hosts = job, mesh, job.plan, job.training, hosts
        self.observers, self.asks, self.alive = observers, asks, alive
        self.step = self.first_step = 0
        self.refusal, self.checkpoint_due, self.seconds, self._asked = "", False, 0.0, False
        self.final_losses: Mapping[str, float | None] = {LOSS: None}  # of the last step done here with a finite loss
        self.summary: dict[str, Any] = {}
        self.identity, self.all_data = identity_of(job), dataset_of(job, "train")
        verify_together(job.tokens, job.out, mesh, alive)
        self._restore()
        if self.is_first_rank:
            self.attempt(partial(write_record, Record(job.out, job.tokens, job.plan, job.training, job.seed, ())))

    @property
    def is_first_rank(self) -> bool:
        return self.mesh.rank == 0

    def run(self) -> None:
        """Train to the last step. Raises Preempted if the job was asked to end before; a checkpoint is saved then."""
        begin, last = time.perf_counter(), self.config.steps
        for observer in self.observers:
            observer.start(self)
        while self.step < last:
            if not self._step_is_done():
                continue  # an observer has rewound the loop
            if self.checkpoint_due:
                for observer in self.observers:
                    observer.at_checkpoint(self)
            if self._asked and (self.step < last or self._has_long_work()):
                self._finish()
                self.note({"event": "preempted", "step": self.step})
                raise Preempted(
                    f"asked to end; saved after step {self.step}. Run the same command again to go on from there"
                )
            for observer in self.observers:
                observer.evaluate(self)
        self.wait_for_writes(may_delete=True)
        seconds = time.perf_counter() - begin
        self._finish()
        if self.is_first_rank:
            write_json(self.job.out / "result.json", self._result(seconds))

    def _step_is_done(self) -> bool:
        """Do the next step, and call the observers; returns whether the loop is still there, and was not rewound."""
        self.step += 1
        number = self.step
        self.enter("step")
        started = time.perf_counter()
        result = self.train_step()
        self.seconds = time.perf_counter() - started
        self._asked = result.asked
        if math.isfinite(result.loss):
            self.final_losses = result.losses
        needed = [observer.needs_checkpoint(self) for observer in self.observers]
        self.checkpoint_due = any(needed) or result.asked or self._has_long_work()
        for observer in self.observers:
            observer.after_step(self, result)
            if self.step < number:
                return False
        return True

    def train_step(self) -> StepResult:
        """Do step `self.step`, with what observers add to it."""
        number = self.step - 1  # the trainer counts from 0
        batch, lr = self.plan.batch.at(number), lr_of_step(self.config, self.plan, number)
        setup = StepSetup(self.data.rows)
        self.refusal = ""  # observers are not asked about a step that overflows fp16
        with setup.contexts:
            for observer in self.observers:
                observer.before_step(self, setup)
            samples = Samples(batch.first_sample, batch.sequences, setup.read)
            return self.trainer.train_step(
                number, samples, lr, measure=setup.measure, asks=self.asks(), accepts=self._accepts
            )

    def _accepts(self, totals: Totals) -> bool:
        self.refusal = next((why for observer in self.observers if (why := observer.objection(totals))), "")
        return not self.refusal

    def _has_long_work(self) -> bool:
        return any(observer.has_long_work(self) for observer in self.observers)

    def rewind(self, to: Checkpoint | None) -> None:
        """Continue from a checkpoint, or from the beginning; every rank calls this."""
        del self.trainer  # there is no memory for two
        gc.collect()
        self._restore(to)

    def _restore(self, back: Checkpoint | None = None) -> None:
        """Take the state of `back`, of the newest good checkpoint, or of the beginning. What a rewind has abandoned is
        deleted only when that is loaded."""
        job, mesh = self.job, self.mesh
        root = job.out / CHECKPOINTS
        start = find_start(job.out, root, job.training, mesh, self.identity, self.alive, back)
        if start.entries_are_new and self.is_first_rank:
            write_entries(job.out, start.entries)
        self.entries, self.manifest = start.entries, start.state.manifest if start.state else {}
        initial, rule = start.state is None and start.weights is None, adam_rule(self.config)
        self.trainer = Trainer(self.plan, mesh, seed=job.seed, rule=rule, initial=initial)
        self.trainer.goes_on = self.alive
        if start.state is not None:
            read_together(restore, self.trainer, start.state)
            layout = to_tree(self.plan.layout)
            self.note({"event": "resumed", "step": start.state.step, "layout": layout})
        if start.weights is not None:
            read_together(begin_with, self.trainer, start.weights)
        self.step = self.first_step = start.state.step if start.state else 0
        found_by_first(lambda: drop_abandoned(root, start.abandoned), mesh, TriviumError)
        self.data = self.all_data.leaving_out(left_out_of(self.entries))
        for observer in self.observers:
            observer.resume(self)

    def _finish(self) -> None:
        for observer in self.observers:
            observer.finish(self)
        self.trainer.forget_recording()

    def enter(self, phase: Phase) -> None:
        """Tell the observers that a phase of a step begins."""
        for observer in self.observers:
            observer.enter(self, phase)

    def wait_for_writes(self, *, may_delete: bool) -> None:
        """Wait until no observer writes in the background. may_delete: older files may then be deleted."""
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
        """Write something about the run. A failure is a warning, because it is no reason to lose a training."""
        try:
            write()
        except OSError as error:
            warn(f"rank {self.mesh.rank}: {error}; training goes on without it")

    def about_state(self) -> dict[str, Any]:
        """Return what a checkpoint of the state after `self.step` steps keeps in its manifest besides tensors."""
        samples = self.plan.batch.at(self.step).first_sample
        about = {
            "samples": samples,
            "tokens_seen": self.plan.tokens(samples),
            "training": to_tree(self.config),
            **self.identity,
            **progress_of(self.trainer),
            "left_out": self.entries,
        }
        for observer in self.observers:
            about |= observer.saved_state()
        return about

    def _result(self, seconds: float) -> dict[str, Any]:
        """Return result.json."""
        layout, device = self.plan.layout, self.mesh.device
        manifest = read_tokens_manifest(self.job.tokens)
        return {
            **self.summary,
            "unigram_entropy": manifest.get("unigram_entropy"),
            **{f"final_{name}": loss for name, loss in self.final_losses.items()},
            "layout": {k: getattr(layout, k) for k in DEGREES},
            "device": device_name(device),
            "hosts": self.hosts,
            "schedule": self.plan.schedule,
            "zero": self.plan.zero,
            "sequence_parallel": self.plan.sequence_parallel,
            "precision": self.plan.precision.weights,
            "steps": self.config.steps,
            "updates": self.trainer.optimizer.steps_done,
            "tokens": self.plan.tokens(self.plan.batch.at(self.config.steps).first_sample),
            "parameters": count(self.plan.model),
            "seconds": seconds,
        }


def device_name(device: torch.device) -> str:
    """Return `cpu`, or the name that a GPU reports."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def identity_of(job: TrainingJob) -> dict[str, Any]:
    """Return what a checkpoint of this job keeps in its manifest, so that no other work continues from it."""
    manifest = read_tokens_manifest(job.tokens)
    data = {k: manifest[k] for k in ("tokenizer_sha256", "files") if k in manifest}
    return {"seed": job.seed, "plan": to_tree(job.plan), "data": data | {"blend": blend_of(manifest)}}


def dataset_of(job: TrainingJob, split: str) -> TokenDataset:
    """Return the samples of a split.

    Raises DataError if there are none or the model has no row for their ids, and ConfigError if it expects another
    end-of-text id. `verify_together` checks the indices when it reads them.
    """
    refuse_other_ids(read_tokens_manifest(job.tokens), job.plan.model, job.tokens)
    sequence, mapped = job.plan.model.sequence, TokenShard.mapped
    return TokenDataset.open(job.tokens, split, sequence=sequence, seed=job.seed, opened=mapped)
