"""The loop of one rank: resume, train, validate, save."""

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from trivium.checkpoint.agree import found_by_first
from trivium.checkpoint.load import Checkpoint
from trivium.comms.launch import Place, connected
from trivium.comms.mesh import Mesh
from trivium.comms.terms import NO_TERMS
from trivium.config import to_tree
from trivium.cost.compute import flops_per_token
from trivium.errors import DataError, Preempted, TriviumError
from trivium.plan.parameters import count
from trivium.plan.plan import Plan
from trivium.provenance import write_json
from trivium.tokens.manifest import blend_of, read_tokens_manifest
from trivium.tokens.samples import TokenDataset
from trivium.tokens.shards import TokenShard
from trivium.training.batches import reader_of
from trivium.training.config import TrainingConfig
from trivium.training.corruption import compare_replicas
from trivium.training.describe import DEGREES, describe_rank, device_name
from trivium.training.judge import Examiner, Judge
from trivium.training.metrics import EVENTS, METRICS, append, warn
from trivium.training.one_folder import refuse_separate_folders
from trivium.training.preemption import exit_at_once, listening
from trivium.training.profile import Traces
from trivium.training.pulse import Duty, Phase, Post
from trivium.training.rates import lr_of_step
from trivium.training.record import Record, entries_of, left_out_of, write_entries, write_record
from trivium.training.rewind import (
    abandoned,
    drop_abandoned,
    entries_in,
    leave_out,
    newest_not_abandoned,
    refuse_other_order,
    way_back,
)
from trivium.training.same_work import (
    STATE_GIVEN,
    refuse_fewer_steps,
    refuse_no_steps_left,
    refuse_other_recipe,
    refuse_other_weights,
    refuse_other_work,
)
from trivium.training.saves import Saves
from trivium.training.slow_links import LINKS_TOLD, Waited
from trivium.training.slow_ranks import Worked, is_nth
from trivium.training.spikes import SpikeWatch, finite_or_text
from trivium.training.state import begin_with, fragments, progress_of, read_together, restore, soundness
from trivium.training.terms import terms_of
from trivium.training.trainer import Samples, StepResult, Trainer, adam_rule
from trivium.training.verified_tokens import refuse_other_ids, verify_together
from trivium.training.watchdog import seconds_to_wait
from trivium.units import counted

CHECKPOINTS = "checkpoints"
SLOW_RANKS_TOLD = 8  # of thousands, at a time


@dataclass(frozen=True)
class TrainingJob:
    """What to train: a plan, a recipe, a seed, the tokens' directory, and the directory of the run.

    examiner: what asks the model while it trains, as often as `training.evaluation` says. questions: hashes of what it
    asks, by the names that a user knows, which must be equal on all hosts.
    """

    plan: Plan
    training: TrainingConfig
    seed: int
    tokens: Path
    out: Path
    examiner: Examiner | None = None
    questions: Mapping[str, str] = field(default_factory=dict)


def train_rank(place: Place, job: TrainingJob, post: Post | None = None) -> None:
    """Train as one rank; every rank of the job calls this. Raises Preempted when the job was asked to end.

    post: where signs of life go, if a launcher of ours looks for them.
    """
    watch = job.training.supervision
    wait = seconds_to_wait(watch, "starting", is_first=True)
    with (
        listening(exit_at_once) as requests,
        connected(
            place,
            timeout_seconds=wait,
            meeting_seconds=watch.stall_seconds,
            asked=requests.came,
            terms=terms_of(job.plan, job.training, job.seed, job.tokens, job.questions)
            if place.by_others
            else NO_TERMS,
        ),
    ):
        mesh = Mesh.connect(job.plan.layout, place.rank, place.world_size, place.device, wait, job.plan.ends)
        if place.by_others:
            refuse_separate_folders(job.out, place, mesh)
        _Loop(job, mesh, Duty(requests, post or Post()), place.hosts).run()


class _Loop:
    def __init__(self, job: TrainingJob, mesh: Mesh, duty: Duty, hosts: int) -> None:
        self.job, self.mesh, self.plan, self.config, self.hosts = job, mesh, job.plan, job.training, hosts
        self.duty, self.worked, self.waited = duty, Worked(mesh), Waited(mesh)
        self.traces = Traces(job.training.profile, job.out, duty.beat)
        self.manifest, self.identity = read_tokens_manifest(job.tokens), identity_of(job)
        self.train = dataset_of(job, "train")
        validation = dataset_of(job, "validation")
        self.validation_samples = min(self.config.validation_samples, validation.num_samples)  # no layout's
        samples = Samples(0, self.validation_samples, reader_of(validation))
        self.judge = Judge(job.out, job.plan, job.training, mesh, samples, job.examiner)
        if self.validation_samples < self.config.validation_samples and self._speaks:
            asked = self.config.validation_samples
            warn(f"validation uses the {self.validation_samples} samples there are, not {asked}")
        verify_together(job.tokens, job.out, mesh, partial(duty.beat, 0, "starting"))
        self.saves = Saves(job.out / CHECKPOINTS, self.config, mesh, self._note, duty.post.go_on)
        self.final_loss: float | None = None  # of the last step done here, where it was finite
        self._begin()
        if self._speaks:
            record = Record(job.out, job.tokens, job.plan, job.training, job.seed, ())
            self._try(partial(write_record, record))

    def _begin(self, back: Checkpoint | None = None) -> None:
        """Where the newest good checkpoint ends, or at step 0; what a rewind left goes when that is known. back: what a
        rewind goes back to."""
        self.entries = found_by_first(lambda: entries_of(self.job.out), self.mesh, DataError)
        root = self.job.out / CHECKPOINTS
        left = found_by_first(lambda: abandoned(root, self.entries), self.mesh, TriviumError)
        self.trainer, self.first_step = self._started(left, back)
        found_by_first(lambda: drop_abandoned(root, left), self.mesh, TriviumError)
        found_by_first(lambda: self.saves.go_on_from(self.first_step), self.mesh, TriviumError)
        self.train = self.train.leaving_out(left_out_of(self.entries))
        self.judge.know(found_by_first(partial(self.judge.forget, self.first_step), self.mesh, TriviumError))

    def _started(self, left: Sequence[str], back: Checkpoint | None) -> tuple[Trainer, int]:
        """The trainer as the newest good checkpoint left it, or the one it began with; and the steps done."""
        root, alive = self.job.out / CHECKPOINTS, self.duty.post.go_on
        own = back or newest_not_abandoned(root, self.mesh, alive, left)
        checkpoint = own or self._given("state")
        about = checkpoint.manifest if checkpoint else {}
        self.spikes = SpikeWatch(self.config.spikes, about.get("spikes"))
        if not self.entries and entries_in(about):  # a checkpoint that was brought here without its run
            self.entries = entries_in(about)
            if self._speaks:
                write_entries(self.job.out, self.entries)
        given = self._given("weights") if checkpoint is None else None
        if own is not None:  # a state that is given may have another recipe
            refuse_other_work(own.directory, own.manifest, self.identity)
            refuse_other_recipe(own.directory, own.manifest, self.config)
        if checkpoint is not None:
            refuse_other_order(checkpoint.directory, checkpoint.manifest, self.entries)
            refuse_fewer_steps(checkpoint.directory, checkpoint.step, self.config)
        initial, rule = checkpoint is None and given is None, adam_rule(self.config)
        trainer = Trainer(self.plan, self.mesh, seed=self.job.seed, rule=rule, initial=initial)
        trainer.goes_on = alive
        if checkpoint is not None:
            read_together(restore, trainer, checkpoint)
            self._note({"event": "resumed", "step": checkpoint.step, "layout": to_tree(self.plan.layout)})
            return trainer, checkpoint.step
        if given is not None:
            read_together(begin_with, trainer, given)
        return trainer, 0

    def _given(self, what: str) -> Checkpoint | None:
        """The checkpoint of `training.start_from`, where it is `what` of it that a new run begins with."""
        if self.config.start_from is None or self.config.start_with != what:
            return None
        given = Checkpoint.open_together(Path(self.config.start_from), self.mesh, self.duty.post.go_on)
        if what == "weights":
            refuse_other_weights(given.directory, given.manifest, self.identity)
        else:
            refuse_other_work(given.directory, given.manifest, self.identity, otherwise=STATE_GIVEN)
            refuse_no_steps_left(given.directory, given.step, self.config)
        return given

    @property
    def _speaks(self) -> bool:
        return self.mesh.rank == 0

    def run(self) -> None:
        begin, last = time.perf_counter(), self.config.steps
        if self.first_step == 0 and self.saves.is_due(0):
            self._save(0)
        owed = {
            "validates": self.judge.owes_validation(self.first_step),
            "examines": self.judge.owes_examination(self.first_step),
        }
        self._judge(self.first_step, **owed)
        # Not the first step, which warms up; at the full batch, so that a ramp's pipelines are full.
        measured = min(max(self.first_step, self.plan.batch.segments[-1].first_step) + 2, last - 1)
        step = self.first_step
        while step < last:
            self._enter(step + 1, "step")
            started = time.perf_counter()
            result = self._step(step, measure=step == measured)
            seconds = time.perf_counter() - started
            self._report(step, result, seconds)
            self.worked.add(result)
            self.waited.add(result, seconds, self.plan.batch.at(step).sequences)
            self.saves.step_refused = bool(self.spikes.cause)
            if self.spikes.cause and self._rewinds(step, result):
                step = self.first_step
                continue
            if step == measured:
                self._try(partial(describe_rank, self.job.out, self.trainer, result, seconds))
            self._enter(step + 1, "saving")
            self.saves.look()
            watch = self.config.supervision
            if is_nth(step + 1, watch.slow_every):
                self._tell_slow_ranks(step + 1)
            # An evaluation may last longer than a job is given once it is asked to end.
            validates, examines = self.judge.validates(step + 1), self.judge.examines(step + 1)
            saves = self.saves.is_due(step + 1) or result.asked or examines
            if saves or is_nth(step + 1, watch.replicas_every):
                compare_replicas(self.trainer)
            if saves:
                self._save(step + 1)
            if result.asked and (step + 1 < last or examines):
                self._end_early(step + 1)  # the model is judged where the job goes on
            self._judge(step + 1, validates=validates, examines=examines)
            step += 1
        self._enter(last, "saving")
        self.saves.finish()
        self.trainer.forget_recording()
        if self._speaks:
            self._finish(time.perf_counter() - begin)
        self.traces.finish()

    def _judge(self, done: int, *, validates: bool, examines: bool) -> None:
        """After so many steps, of which the last was saved where tasks are asked."""
        if validates:
            self._enter(done, "validating")
            self.judge.validate(self.trainer, done)
            if not math.isfinite(self.judge.loss):
                self._tell_not_finite(done)
        if examines:
            self._enter(done, "saving")
            self.saves.settle()
            self._enter(done, "evaluating")
            self.judge.examine(self.trainer, done, partial(self.duty.beat, done, "evaluating"))

    def _tell_not_finite(self, done: int) -> None:
        """DataError where a training would end with a validation loss that is not finite; before its end the next step
        decides, by the policy about spikes."""
        found = soundness(self.trainer, done)
        told = f"step {done}: the validation loss is {self.judge.loss}; {found}"
        self._note({"event": "validation not finite", "step": done, "cause": told})
        if done < self.config.steps:
            if self._speaks:
                warn(told)
            return
        self.saves.wait()
        raise DataError(
            f"{told}. Training has diverged, and no older checkpoint was deleted; lower training.lr (it is "
            f"{self.config.lr:g}), or train longer before it is reached (training.warmup_tokens)"
        )

    def _enter(self, step: int, phase: Phase) -> None:
        """A phase of a step begins: a sign of life, and for others in it the time that they may take."""
        self.duty.beat(step, phase)
        is_first = step == self.first_step + 1
        self.mesh.wait_at_most(seconds_to_wait(self.config.supervision, phase, is_first=is_first))

    def _rewinds(self, step: int, result: StepResult) -> bool:
        """After a step that spiked and changed nothing: whether training goes on from an earlier one."""
        spikes = self.config.spikes
        event = {"event": "spike", "step": step + 1, "cause": self.spikes.cause, "policy": spikes.policy}
        totals = {"loss": result.loss, "gradient_norm": result.gradient_norm}
        told = {name: finite_or_text(value) for name, value in totals.items()}
        self._note({**event, **told, "batch_hash": result.batch_hash, "entries": len(self.entries)})
        rewound = sum(entry["step"] == step + 1 for entry in self.entries)
        cause = self.spikes.cause
        if not (math.isfinite(result.loss) and math.isfinite(result.gradient_norm)):
            cause += f"; {soundness(self.trainer, step)}"
        if spikes.policy != "skip":
            self._enter(step + 1, "saving")
            self.saves.wait()  # and delete nothing: what was saved last may be what made this step fail
        if spikes.policy == "stop" or max(self.spikes.in_a_row, rewound + 1) > spikes.limit:
            raise DataError(
                f"step {step + 1}: {cause}; training.spikes.policy ({spikes.policy}, at most "
                f"{spikes.limit} in a row) stops here, and this step changed no weight. `trivium data culprit` names "
                f"the document and the layer; then set training.spikes.policy to skip or rewind, or lower training.lr"
            )
        if self._speaks:
            warn(f"step {step + 1}: {cause}; {spikes.policy}")
        if spikes.policy == "skip":
            return False
        self._enter(step + 1, "starting")  # it reads and verifies, for which a step has no time
        to, root = (self.mesh, self.job.out), self.job.out / CHECKPOINTS
        back = way_back(*to, root, step=step, config=self.config, alive=self.duty.post.go_on)
        leave_out(*to, self.entries, self.plan.batch, step=step, config=self.config, cause=self.spikes.cause)
        del self.trainer  # there is no room for two
        gc.collect()
        self._begin(back)
        self._note({"event": "rewound", "step": step + 1, "to": self.first_step})
        if self._speaks:
            warn(f"step {step + 1}: back to step {self.first_step}, and on without {spikes.batches} batches")
        return True

    def _tell_slow_ranks(self, step: int) -> None:
        found = self.worked.slow_ranks(self.config.supervision.slow_factor)
        told = sorted(found, key=lambda slow: slow.peers - slow.seconds)[:SLOW_RANKS_TOLD]
        if self._speaks and len(found) > len(told):
            warn(f"step {step}: {counted(len(found), 'rank')} are slow; those that lose most:")
        for slow in told:
            if self._speaks:
                warn(f"step {step}: {slow}")
            self._note({"event": "slow rank", "step": step, **slow._asdict()})
        for link in self.waited.slow_links(self.config.supervision.slow_factor)[:LINKS_TOLD]:
            if self._speaks:
                warn(f"step {step}: {link}")
            self._note({"event": "slow link", "step": step, **link._asdict()})

    def _end_early(self, step: int) -> None:
        """All ranks, after a step: wait for the save, and go."""
        self.saves.finish()
        self.trainer.forget_recording()
        self.traces.finish()
        self._note({"event": "preempted", "step": step})
        raise Preempted(
            f"asked to end; saved after step {step}. Run the same command again to go on from there"
        )

    def _step(self, step: int, *, measure: bool) -> StepResult:
        samples = self.plan.batch.at(step)
        lr = self._lr(step)
        read = self.worked.reading(reader_of(self.train))
        batch = Samples(samples.first_sample, samples.sequences, read)
        self.spikes.cause = ""  # it is not asked about a step that overflows fp16
        accepts = self.spikes.accepts
        with self.traces.of(self.trainer, step + 1):
            return self.trainer.train_step(
                step, batch, lr, measure=measure, asks=self.duty.asks, accepts=accepts
            )

    def _lr(self, step: int) -> float:
        return lr_of_step(self.config, self.plan, step)

    def _save(self, step: int) -> None:
        self.saves.begin(step, fragments(self.trainer), self._about(step))

    def _about(self, step: int) -> dict[str, Any]:
        samples = self.plan.batch.at(step).first_sample
        return {
            "samples": samples,
            "tokens_seen": self.plan.tokens(samples),
            "training": to_tree(self.config),
            **self.identity,
            **progress_of(self.trainer),
            "spikes": self.spikes.state,
            "left_out": self.entries,
        }

    def _tokens(self, step: int) -> int:
        return self.plan.tokens(self.plan.batch.at(step + 1).first_sample)

    def _report(self, step: int, result: StepResult, seconds: float) -> None:
        if not self._speaks:
            return
        batch = self.plan.batch.at(step)
        tokens = self.plan.tokens(batch.sequences)
        record = {
            "step": step + 1,
            "time": time.time(),
            "tokens": self._tokens(step),
            "samples": batch.first_sample + batch.sequences,
            "sequences": batch.sequences,
            "loss": result.loss,
            **({} if result.z_loss is None else {"z_loss": result.z_loss}),
            "lr": self._lr(step),
            "gradient_norm": result.gradient_norm,
            "batch_hash": result.batch_hash,
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
            "model_flops_per_second": tokens * flops_per_token(self.plan.model) / seconds,
        }
        if self.spikes.cause:
            record["spike"] = self.spikes.cause
        if self.trainer.loss_scale:
            record["loss_scale"] = self.trainer.loss_scale.value
            record["overflow"] = not (self.spikes.cause or math.isfinite(result.gradient_norm))  # no update
        record = {k: v for k, v in record.items() if not isinstance(v, float) or math.isfinite(v)}
        append(self.job.out / METRICS, record)
        if math.isfinite(result.loss):
            self.final_loss = result.loss

    def _try(self, write: Callable[[], None]) -> None:
        """Write something for whoever looks at the run; that it fails is no reason to lose a training."""
        try:
            write()
        except OSError as error:
            warn(f"rank {self.mesh.rank}: {error}; training goes on without it")

    def _finish(self, seconds: float) -> None:
        layout = self.plan.layout
        summary = {
            "validation_loss": self.judge.loss,
            "unigram_entropy": self.manifest.get("unigram_entropy"),
            "final_loss": self.final_loss,
            "layout": {k: getattr(layout, k) for k in DEGREES},
            "device": device_name(self.mesh.device),
            "hosts": self.hosts,
            "schedule": self.plan.schedule,
            "zero": self.plan.zero,
            "sequence_parallel": self.plan.sequence_parallel,
            "precision": self.plan.precision.weights,
            "steps": self.config.steps,
            "updates": self.trainer.optimizer.steps_done,
            "tokens": self._tokens(self.config.steps - 1),
            "parameters": count(self.plan.model),
            "seconds": seconds,
            "validation_samples": self.validation_samples,
        }
        write_json(self.job.out / "result.json", summary)

    def _note(self, event: dict[str, Any]) -> None:
        if self._speaks:
            append(self.job.out / EVENTS, {**event, "time": time.time()})


def identity_of(job: TrainingJob) -> dict[str, Any]:
    """What makes this work this work, as a checkpoint's manifest holds it: one of anything else is refused."""
    manifest = read_tokens_manifest(job.tokens)
    data = {k: manifest[k] for k in ("tokenizer_sha256", "files") if k in manifest}
    return {"seed": job.seed, "plan": to_tree(job.plan), "data": data | {"blend": blend_of(manifest)}}


def dataset_of(job: TrainingJob, split: str) -> TokenDataset:
    """The samples of a split; DataError when there are none, or the model has no room for their ids; ConfigError when
    it looks for other ends of documents. The indices are checked where `verify_together` reads them."""
    refuse_other_ids(read_tokens_manifest(job.tokens), job.plan.model, job.tokens)
    sequence, mapped = job.plan.model.sequence, TokenShard.mapped
    return TokenDataset.open(job.tokens, split, sequence=sequence, seed=job.seed, opened=mapped)
