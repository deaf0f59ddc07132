"""The loop of one rank: resume, train, validate, save."""

import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trivium.checkpoint.format import step_of
from trivium.checkpoint.keep import expired
from trivium.checkpoint.load import Checkpoint, newest_good, published
from trivium.checkpoint.save import save
from trivium.config import differences, to_tree
from trivium.cost.compute import flops_per_token
from trivium.errors import CheckpointError, DataError
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
from trivium.training.loss_scale import LossScale
from trivium.training.metrics import EVENTS, METRICS, append, forget_after, read
from trivium.training.rates import learning_rate
from trivium.training.state import fragments, restore
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


def train_rank(place: Place, job: TrainingJob) -> None:
    """Train as one rank; every rank of the job calls this."""
    with connected(place):
        mesh = Mesh.connect(job.plan.layout, place.rank, place.world_size, place.device)
        _Loop(job, mesh).run()


class _Loop:
    def __init__(self, job: TrainingJob, mesh: Mesh) -> None:
        self.job, self.mesh, self.plan, self.config = job, mesh, job.plan, job.training
        self.manifest = read_tokens_manifest(job.tokens)
        self.train = self._dataset("train")
        self.validation = self._dataset("validation")
        self.validation_samples = self._validation_samples()
        checkpoint = newest_good(job.out / CHECKPOINTS, mesh, self._warn)
        if checkpoint is not None:
            self._same_work(checkpoint)
        rule = _adam_rule(self.config)
        self.trainer = Trainer(self.plan, mesh, seed=job.seed, rule=rule, initial=checkpoint is None)
        self.first_step = 0
        if checkpoint is not None:
            restore(self.trainer, checkpoint)
            self.first_step = checkpoint.step
            if checkpoint.manifest.get("loss_scale"):
                self.trainer.loss_scale = LossScale(**checkpoint.manifest["loss_scale"])
        if self._speaks:
            job.out.mkdir(parents=True, exist_ok=True)
            forget_after(job.out / METRICS, self.first_step)
            if checkpoint is not None:
                layout = to_tree(job.plan.layout)
                append(job.out / EVENTS, {"event": "resumed", "step": self.first_step, "layout": layout})
        barrier(mesh)

    @property
    def _speaks(self) -> bool:
        return self.mesh.rank == 0

    def run(self) -> None:
        begin = time.perf_counter()
        last = self.config.steps
        # Not the first step, which warms up; at the full batch, so that a ramp's pipelines are full.
        measured = min(max(self.first_step, self.plan.batch.segments[-1].first_step) + 2, last - 1)
        for step in range(self.first_step, last):
            started = time.perf_counter()
            result = self._step(step, measure=step == measured)
            seconds = time.perf_counter() - started
            self._report(step, result, seconds)
            if step == measured:
                self._describe_rank(result, seconds)
            if (step + 1) % self.config.validate_every == 0 or step + 1 == last:
                self._validate(step)
            if (step + 1) % self.config.checkpoint_every == 0 or step + 1 == last:
                self._save(step + 1)
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
        return loss

    def _save(self, step: int) -> None:
        root = self.job.out / CHECKPOINTS
        root.mkdir(parents=True, exist_ok=True)
        save(root, step, fragments(self.trainer), self.mesh, self._about(step))
        if self._speaks:
            steps = [s for p in published(root) if (s := step_of(p.name)) is not None]
            paths = dict(zip(steps, published(root), strict=True))
            for old in expired(steps, keep_last=self.config.keep_last, keep_every=self.config.keep_every):
                shutil.rmtree(paths[old])

    def _about(self, step: int) -> dict[str, Any]:
        samples = self.plan.batch.at(step).first_sample
        return {
            "samples": samples,
            "tokens_seen": self.plan.tokens(samples),
            "seed": self.job.seed,
            "plan": to_tree(self.plan),
            "training": to_tree(self.config),
            "data": self._data(),
            "loss_scale": asdict(self.trainer.loss_scale) if self.trainer.loss_scale else None,
        }

    def _data(self) -> dict[str, Any]:
        return {k: self.manifest[k] for k in ("tokenizer_sha256", "files") if k in self.manifest}

    def _same_work(self, checkpoint: Checkpoint) -> None:
        """A checkpoint of another model, seed, batch or corpus is refused: resuming would silently mix them."""
        now = {"plan": to_tree(self.plan), "seed": self.job.seed, "data": self._data()}
        about = checkpoint.manifest
        sections = {
            "plan.model": ("plan", "model"),
            "plan.batch": ("plan", "batch"),
            "plan.precision": ("plan", "precision"),
        }
        found = []
        for path, (section, key) in sections.items():
            # How a batch is cut into micro-batches, like the layout, may change.
            old, new = ({k: v for k, v in a[section][key].items() if k != "micro"} for a in (about, now))
            found += differences(old, new, f"{path}.")
        found += differences({"seed": about["seed"]}, {"seed": now["seed"]})
        found += differences(about["data"], now["data"], "data.")
        if found:
            told = "; ".join(found[:6]) + (f"; and {len(found) - 6} more" if len(found) > 6 else "")
            raise CheckpointError(
                f"{checkpoint.directory} was written by other work ({told}); use the same config and tokens, or "
                f"another --out"
            )

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
            self._warn(f"validation uses the {there // unit * unit} samples there are, not {asked}")
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

    def _warn(self, text: str) -> None:
        print(f"warning: {text}", file=sys.stderr, flush=True)


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
