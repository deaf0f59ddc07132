"""The loop of one rank: resume, train, validate, save."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.checkpoint.load import Checkpoint, newest_good
from trivium.config import to_tree
from trivium.cost.compute import flops_per_token
from trivium.errors import DataError
from trivium.parallel.launch import Place, connected
from trivium.parallel.mesh import Mesh, barrier
from trivium.parallel.pipeline import Run
from trivium.parallel.zero import AdamRule
from trivium.plan.parameters import count
from trivium.plan.plan import Plan
from trivium.plan.schedule import Action
from trivium.provenance import write_json
from trivium.tokens.loader import batch_arrays
from trivium.tokens.manifest import read_tokens_manifest
from trivium.tokens.samples import TokenDataset
from trivium.training.batches import Rows
from trivium.training.config import TrainingConfig
from trivium.training.metrics import EVENTS, METRICS, append, forget_after, read, warn
from trivium.training.rates import learning_rate
from trivium.training.same_work import refuse_other_work
from trivium.training.saves import Saves
from trivium.training.state import begin_with, fragments, progress_of, restore
from trivium.training.trainer import Samples, StepResult, Trainer

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class TrainingJob:
    """What to train: a plan, a recipe, a seed, the tokens' directory, and the directory of the run."""

    plan: Plan
    training: TrainingConfig
    seed: int
    tokens: Path
    out: Path


def train_rank(place: Place, job: TrainingJob, after_step: Callable[[], None] = lambda: None) -> None:
    """Train as one rank; every rank of the job calls this."""
    with connected(place):
        mesh = Mesh.connect(job.plan.layout, place.rank, place.world_size, place.device)
        _Loop(job, mesh).run(after_step)


class _Loop:
    def __init__(self, job: TrainingJob, mesh: Mesh) -> None:
        self.job, self.mesh, self.plan, self.config = job, mesh, job.plan, job.training
        self.manifest = read_tokens_manifest(job.tokens)
        self.train = self._dataset("train")
        self.validation = self._dataset("validation")
        self.validation_samples = self._validation_samples()
        self.saves = Saves(job.out / CHECKPOINTS, self.config, mesh, self._note)
        self.trainer, self.first_step = self._started()
        if self._speaks:
            forget_after(job.out / METRICS, self.first_step)
        barrier(mesh)

    def _started(self) -> tuple[Trainer, int]:
        """The trainer as the newest good checkpoint left it, or at its beginning; and the steps done."""
        checkpoint = newest_good(self.job.out / CHECKPOINTS, self.mesh, warn)
        given = self._weights_given() if checkpoint is None else None
        if checkpoint is not None:
            refuse_other_work(checkpoint.directory, checkpoint.manifest, self._identity())
        initial = checkpoint is None and given is None
        rule = _adam_rule(self.config)
        trainer = Trainer(self.plan, self.mesh, seed=self.job.seed, rule=rule, initial=initial)
        if checkpoint is not None:
            restore(trainer, checkpoint)
            layout = to_tree(self.plan.layout)
            self._note({"event": "resumed", "step": checkpoint.step, "layout": layout})
            return trainer, checkpoint.step
        if given is not None:
            begin_with(trainer, given)
        return trainer, 0

    def _weights_given(self) -> Checkpoint | None:
        """The checkpoint that a new run begins with: of the same model and tokenizer; the rest may differ."""
        if self.config.start_from is None:
            return None
        checkpoint = Checkpoint.open_together(Path(self.config.start_from), self.mesh)
        there, here = checkpoint.manifest, self._identity()
        about = {"plan": {"model": there["plan"]["model"]}, "data": {}}
        now = {"plan": {"model": here["plan"]["model"]}, "data": {}}
        tokenizer = there.get("data", {}).get("tokenizer_sha256")
        if tokenizer:
            about["data"], now["data"] = (
                {"tokenizer_sha256": t} for t in (tokenizer, here["data"].get("tokenizer_sha256"))
            )
        refuse_other_work(checkpoint.directory, about, now)
        return checkpoint

    @property
    def _speaks(self) -> bool:
        return self.mesh.rank == 0

    def run(self, after_step: Callable[[], None]) -> None:
        begin = time.perf_counter()
        last = self.config.steps
        # Not the first step, which warms up; at the full batch, so that a ramp's pipelines are full.
        if self.first_step == 0 and self.saves.is_due(0):
            self._save(0)
        measured = min(max(self.first_step, self.plan.batch.segments[-1].first_step) + 2, last - 1)
        for step in range(self.first_step, last):
            started = time.perf_counter()
            result = self._step(step, measure=step == measured)
            seconds = time.perf_counter() - started
            self._report(step, result, seconds)
            if step == measured:
                self._try_to_describe_rank(result, seconds)
            if (step + 1) % self.config.validate_every == 0 or step + 1 == last:
                self._validate(step)
            self.saves.look()
            after_step()
            if self.saves.is_due(step + 1):
                self._save(step + 1)
        self.saves.finish()
        if self._speaks:
            self._finish(time.perf_counter() - begin)

    def _step(self, step: int, *, measure: bool) -> StepResult:
        samples = self.plan.batch.at(step)
        lr = self._lr(step)
        read = self._reader(self.train)
        batch = Samples(samples.first_sample, samples.sequences, read)
        return self.trainer.train_step(step, batch, lr, measure=measure)

    def _lr(self, step: int) -> float:
        after = self.plan.batch.at(step + 1).first_sample
        last = self.plan.batch.at(self.config.steps).first_sample
        return learning_rate(self.config, self.plan.tokens(after), self.plan.tokens(last))

    def _validate(self, step: int) -> None:
        loss = self.trainer.validate(Samples(0, self.validation_samples, self._reader(self.validation)))
        if self._speaks:
            append(
                self.job.out / METRICS,
                {"step": step + 1, "tokens": self._tokens(step), "validation_loss": loss},
            )

    def _save(self, step: int) -> None:
        self.saves.begin(step, fragments(self.trainer), self._about(step))

    def _about(self, step: int) -> dict[str, Any]:
        samples = self.plan.batch.at(step).first_sample
        return {
            "samples": samples,
            "tokens_seen": self.plan.tokens(samples),
            "training": to_tree(self.config),
            **self._identity(),
            **progress_of(self.trainer),
        }

    def _identity(self) -> dict[str, Any]:
        """What makes this work this work: a checkpoint of anything else is refused."""
        data = {k: self.manifest[k] for k in ("tokenizer_sha256", "files") if k in self.manifest}
        return {"seed": self.job.seed, "plan": to_tree(self.plan), "data": data}

    def _dataset(self, split: str) -> TokenDataset:
        data = TokenDataset.open(
            self.job.tokens, split, sequence=self.plan.model.sequence, seed=self.job.seed
        )
        vocabulary = int(self.manifest["vocabulary"])
        if vocabulary > self.plan.model.vocabulary:
            raise DataError(
                f"{self.job.tokens} has token ids up to {vocabulary - 1}, but plan.model.vocabulary is "
                f"{self.plan.model.vocabulary}; set it to {vocabulary}"
            )
        return data

    def _validation_samples(self) -> int:
        """As many as were asked for and are there, in whole micro-batches for every stage."""
        asked, there = self.config.validation_samples, self.validation.num_samples
        unit = self.plan.validation_unit
        if there < unit:
            raise DataError(
                f"{self.job.tokens}: the validation split has {there} samples of {self.plan.model.sequence} tokens, "
                f"fewer than micro x data x pipeline ({unit}); give more text, raise tokens.validation_fraction, or "
                f"lower plan.batch.micro"
            )
        if there < asked and self._speaks:
            warn(f"validation uses the {there // unit * unit} samples there are, not {asked}")
        return min(asked, there // unit * unit)

    def _reader(self, data: TokenDataset) -> Any:
        return lambda first, count: Rows(*batch_arrays(data, first, count))

    def _tokens(self, step: int) -> int:
        return self.plan.tokens(self.plan.batch.at(step + 1).first_sample)

    def _report(self, step: int, result: StepResult, seconds: float) -> None:
        if not self._speaks:
            return
        batch = self.plan.batch.at(step)
        tokens = self.plan.tokens(batch.sequences)
        record = {
            "step": step + 1,
            "tokens": self._tokens(step),
            "samples": batch.first_sample + batch.sequences,
            "sequences": batch.sequences,
            "loss": result.loss,
            "lr": self._lr(step),
            "gradient_norm": result.gradient_norm,
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
            "model_flops_per_second": tokens * flops_per_token(self.plan.model) / seconds,
        }
        append(self.job.out / METRICS, record)

    def _try_to_describe_rank(self, result: StepResult, seconds: float) -> None:
        try:
            self._describe_rank(result, seconds)
        except OSError as error:  # no reason to lose a training
            warn(f"what rank {self.mesh.rank} holds was not written: {error}")

    def _describe_rank(self, result: StepResult, seconds: float) -> None:
        """What this rank holds, counted, and when it did what, in the step of so many seconds that was measured."""
        run = result.run
        buckets, shards = self.trainer.buckets, self.trainer.optimizer.shards
        state = sum(
            _bytes(v) for s in shards for k, v in self.trainer.optimizer.states(s).items() if k != "master"
        )
        masters = sum(_bytes(s.master) for s in shards) if self.plan.precision.has_master else 0
        folder = self.job.out / "ranks"
        folder.mkdir(parents=True, exist_ok=True)
        description = {
            "rank": self.mesh.rank,
            "coordinate": self.mesh.at._asdict(),
            "categories": {
                "weights": sum(_bytes(b.shard if self.plan.zero >= 3 else b.weights) for b in buckets),
                "gradients": sum(_bytes(b.gradients) for b in buckets),
                "optimizer": state + masters,
                "activations": run.peak_saved_bytes,
            },
            "peak_held": run.peak_held,
            "phases": phases(run, result.update_seconds, seconds),
            "spans": [
                {"action": str(s.event), "start": s.start, "end": s.end}
                for s in run.spans
                if isinstance(s.event, Action)
            ],
        }
        write_json(folder / f"rank-{self.mesh.rank:05d}.json", description)

    def _finish(self, seconds: float) -> None:
        layout, metrics = self.plan.layout, read(self.job.out / METRICS)
        summary = {
            "validation_loss": [m["validation_loss"] for m in metrics if "validation_loss" in m][-1],
            "unigram_entropy": self.manifest.get("unigram_entropy"),
            "final_loss": [m["loss"] for m in metrics if "loss" in m][-1],
            "layout": {k: getattr(layout, k) for k in ("tensor", "pipeline", "data", "chunks")},
            "schedule": self.plan.schedule,
            "zero": self.plan.zero,
            "sequence_parallel": self.plan.sequence_parallel,
            "precision": self.plan.precision.weights,
            "steps": self.config.steps,
            "tokens": self._tokens(self.config.steps - 1),
            "parameters": count(self.plan.model),
            "seconds": seconds,
            "validation_samples": self.validation_samples,
        }
        write_json(self.job.out / "result.json", summary)

    def _note(self, event: dict[str, Any]) -> None:
        if self._speaks:
            append(self.job.out / EVENTS, event)


def phases(run: Run, update_seconds: float, step_seconds: float) -> dict[str, float]:
    """Where the seconds of a rank's step went, as far as its trace tells.

    stages: actions, with their tensor collectives. waiting: for activations and gradients of other stages, or for
    their sending. update: the reduction of gradients that is left, the optimizer, and the publishing of weights.
    other: reading the batch, and agreeing on the loss.
    """
    spans = [(isinstance(s.event, Action), s.end - s.start) for s in run.spans]
    stages = sum(length for acts, length in spans if acts)
    waiting = sum(length for acts, length in spans if not acts)
    other = max(0.0, step_seconds - stages - waiting - update_seconds)
    return {"stages": stages, "waiting": waiting, "update": update_seconds, "other": other}


def _adam_rule(config: TrainingConfig) -> AdamRule:
    names = ("beta1", "beta2", "epsilon", "weight_decay", "clip")
    return AdamRule(**{n: getattr(config, n) for n in names})


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())
