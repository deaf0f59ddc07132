"""Trivium on models of experts: the gradients of a batch, or whole steps."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from contest import Build
from setting import LR, SEED, Setting

from trivium.checkpoint.load import Checkpoint
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.config import build, to_tree
from trivium.interchange.bring import import_hf
from trivium.plan.plan import Plan
from trivium.tokens.rows import Rows
from trivium.training.state import begin_with
from trivium.training.trainer import Samples, Trainer


def _samples(setting: Setting, number: int) -> Samples:
    tokens, targets = setting.rows(number)

    def read(first: int, count: int) -> Rows:
        part = slice(first, first + count)
        return Rows(tokens[part], targets[part], np.ones((count, tokens.shape[1]), np.float32))

    return Samples(0, setting.sequences, read)


class Gradients:
    """One process that computes the gradients of an imported model."""

    def __init__(self, setting: Setting, place: Place, folder: str) -> None:
        self.setting = setting
        with tempfile.TemporaryDirectory() as root:
            checkpoint = Checkpoint.open(import_hf(folder, Path(root)))
            model = to_tree(checkpoint.plan.model) | {"sequence": setting.sequence}
            batch = {"sequences": setting.sequences, "micro": setting.micro}
            tree = {"model": model, "batch": batch, "precision": {"weights": setting.weights}}
            plan = build(Plan, tree).checked()
            self.trainer = Trainer(plan, Mesh.single(), seed=SEED, rule=setting.rule)
            begin_with(self.trainer, checkpoint)

    def step(self, number: int) -> torch.Tensor:
        """Compute the gradients of a batch."""
        for bucket in self.trainer.buckets:
            bucket.clear_gradients()
        losses = self.trainer.accumulate(number, _samples(self.setting, number)).losses
        return losses["loss"]


class Steps:
    """Whole steps of a plan. model: its settings beside those of the setting."""

    def __init__(self, setting: Setting, place: Place, model: dict[str, Any], layout: dict[str, int]) -> None:
        self.setting = setting
        sizes = {name: getattr(setting, name) for name in ("hidden", "heads", "vocabulary", "sequence", "layers")}
        batch = {"sequences": setting.sequences, "micro": setting.micro}
        precision = {"weights": setting.weights}
        tree = {"model": sizes | model, "batch": batch, "layout": layout, "precision": precision}
        plan = build(Plan, tree).checked()
        mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
        self.trainer = Trainer(plan, mesh, seed=SEED, rule=setting.rule)

    def step(self, number: int) -> torch.Tensor:
        """Do one optimizer step."""
        return torch.tensor(self.trainer.train_step(number, _samples(self.setting, number), LR).loss)


def gradients(*, folder: str) -> Build:
    """Return a contestant."""
    return lambda setting, place: Gradients(setting, place, folder)


def steps(*, model: dict[str, Any], layout: dict[str, int]) -> Build:
    """Return a contestant."""
    return lambda setting, place: Steps(setting, place, model, layout)
