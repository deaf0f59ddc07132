"""A few training steps on random rows."""

from trivium.certify.reference import random_rows
from trivium.training.trainer import Samples, Trainer


def losses(trainer: Trainer, steps: range) -> list[float]:
    """Train these steps and return their losses."""
    read, size = random_rows(trainer.plan), trainer.plan.batch.sequences
    return [trainer.train_step(n, Samples(size * n, size, read), 1e-2).loss for n in steps]
