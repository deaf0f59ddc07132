"""The small training into which faults are injected: its tokens, its plans, and an oracle for its checkpoints."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trivium.checkpoint.format import published, step_of
from trivium.checkpoint.load import Checkpoint
from trivium.comms.mesh import Mesh
from trivium.corpus.document import Document
from trivium.corpus.publish.store import write_documents
from trivium.errors import CheckpointError
from trivium.plan.plan import Plan
from trivium.progress import Progress
from trivium.seeds import generator_for
from trivium.tokens.config import TokensConfig
from trivium.tokens.encode import tokenize
from trivium.tokens.samples import TokenDataset
from trivium.training.config import TrainingConfig
from trivium.training.loop import TrainingJob
from trivium.training.metrics import EVENTS, read
from trivium.training.rates import lr_of_step
from trivium.training.record import CHECKPOINTS
from trivium.training.state import fragments, restore
from trivium.training.trainer import Samples, Trainer, adam_rule

VOCABULARY = 300
SEED = 11
LAYOUTS: tuple[Mapping[str, Any], ...] = (
    {"data": 2, "zero": 1},
    {"tensor": 2},
    {"pipeline": 2},
    {"data": 2, "zero": 3},
    {"data": 2, "zero": 2},
    {"pipeline": 2, "chunks": 2, "schedule": "interleaved"},
    {},
    {"tensor": 2, "sequence_parallel": True},
)


def write_tokens(folder: Path) -> Path:
    """Tokenize a corpus of seeded words from two sources; return the directory of the tokens."""
    words = [f"{first}{last}" for first in ("pa", "lo", "mi", "tre") for last in ("rser", "op", "st", "ken")]
    draw = generator_for(SEED, "chaos", "corpus")
    texts = [" ".join(draw.choice(words, size=60).tolist()) for _ in range(60)]
    documents = [Document(f"d{n}", text, "even" if n % 2 else "odd") for n, text in enumerate(texts)]
    write_documents(folder / "curated" / "documents", documents)
    # A blend of a short period, so that training starts at once.
    weights = {"even": {"weight": 0.75}, "odd": {"weight": 0.25}}
    (folder / "curated" / "blend.json").write_text(json.dumps(weights), encoding="utf-8")
    (folder / "tokens").mkdir()
    config = TokensConfig(vocabulary=VOCABULARY, validation_fraction=0.2)
    tokenize(config, folder / "curated", folder / "tokens", seed=SEED)
    return folder / "tokens"


def plan(layout: Mapping[str, Any], *, weights: str = "fp64", dropout: float = 0.0) -> Plan:
    """Return the training's plan under one of LAYOUTS."""
    degrees = {k: v for k, v in layout.items() if k in ("tensor", "pipeline", "data", "chunks")}
    model = {"layers": 4, "hidden": 24, "heads": 4, "vocabulary": VOCABULARY, "vocabulary_multiple": 2}
    tree = {
        "model": {**model, "sequence": 8, "dropout": dropout},
        "batch": {"sequences": 8, "micro": 2},
        "layout": degrees,
        "precision": {"weights": weights},
    }
    rest = {k: v for k, v in layout.items() if k not in degrees}
    return Plan.model_validate({**tree, **rest}).checked()


def job(tokens: Path, out: Path, of: Plan, **training: Any) -> TrainingJob:
    """Return a training of 100,000 steps that saves every other step."""
    given = {
        "steps": 100_000,
        "checkpoint_every": 2,
        "validate_every": 100_000,
        "validation_samples": 8,
        "decay_tokens": 1_000_000,
        "restarts": 0,
        "keep_last": 2,
        **training,
    }
    return TrainingJob(of, TrainingConfig(**given), SEED, tokens, out)


def event_steps(out: Path, *kinds: str, after: int = 0) -> list[int]:
    """Return the steps of the events of these kinds, in order, without the first `after` events of the training."""
    return [e["step"] for e in read(out / EVENTS)[after:] if e["event"] in kinds]


def newest_step(out: Path) -> int:
    return max((step_of(path.name) or 0 for path in published(out / CHECKPOINTS)), default=0)


class Tally:
    """What went wrong in each of `count` faults. good: the number of faults without a loss."""

    def __init__(self, count: int, progress: Progress) -> None:
        self.count, self.progress = count, progress
        self.losses: list[str] = []
        self.done, self.good, self.longest_seconds = 0, 0, 0.0

    def add(self, name: str, wrong: list[str], seconds: float = 0.0) -> None:
        """Record what went wrong in one fault, and how long it took."""
        self.losses += [f"{name}: {what}" for what in wrong]
        self.done, self.good = self.done + 1, self.good + (not wrong)
        self.longest_seconds = max(self.longest_seconds, seconds)
        self.progress(self.done, self.count, f"{len(self.losses)} wrong")


def verifies(path: Path) -> bool:
    """Whether a checkpoint is good. One that retention removed while it was read counts as good."""
    try:
        Checkpoint.open(path).verify()
    except CheckpointError:
        return not path.exists()
    return True


class Oracle:
    """The same training on one process, undisturbed."""

    def __init__(self, of: TrainingJob) -> None:
        self.job = of
        self.plan = plan({})
        self.data = TokenDataset.open(of.tokens, "train", sequence=self.plan.model.sequence, seed=of.seed)
        self.trainer = Trainer(self.plan, Mesh.single(), seed=of.seed, rule=adam_rule(of.training))
        self.step = 0

    def begin_at(self, checkpoint: Checkpoint) -> None:
        """Continue from a verified checkpoint, so that differences in the last bits do not add up."""
        restore(self.trainer, checkpoint)
        self.step = checkpoint.step

    def advance_to(self, step: int) -> None:
        """Train until `step` steps are done."""
        while self.step < step:
            samples = Samples(*self.plan.batch.at(self.step), self.data.rows)
            self.trainer.train_step(self.step, samples, lr_of_step(self.job.training, self.plan, self.step))
            self.step += 1

    def wrong_tensors(self, checkpoint: Checkpoint) -> list[str]:
        """Return the names of tensors in a checkpoint of this step that differ by more than fp64 rounding explains."""
        wrong = []
        for f in fragments(self.trainer):
            found = checkpoint.read(f.name, f.box, torch.float64)
            right = f.values.view(found.shape)
            # A moment near zero is compared with the largest of its tensor.
            if not float((found - right).abs().max() / right.abs().max().clamp(min=1e-30)) <= 1e-9:
                wrong.append(f.name)
        return wrong
