"""Trivium as a contestant: a plan, a mesh and a trainer."""

from importlib import import_module
from pkgutil import iter_modules

import numpy as np
import torch
from contest import Build
from setting import LR, SEED, TINY, Setting

from trivium.comms import host_memory
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.kernels.operations import operations_of
from trivium.model import layers as layer_parts
from trivium.objectives import terms
from trivium.parallel.pipeline.executor import Span
from trivium.plan.plan import Plan
from trivium.tokens.rows import Rows
from trivium.training.trainer import Samples, Trainer

# What the first plan would load is loaded now: the memory of imports is not that of a step.
operations_of("cpu")
for package in (layer_parts, terms, host_memory):
    for module in iter_modules(package.__path__, f"{package.__name__}."):
        import_module(module.name)
TINY.plan()  # builds the validators of a plan's fields


class TriviumEngine:
    """Every step also computes the global gradient norm and agrees on the loss over all ranks."""

    def __init__(self, plan: Plan, setting: Setting, place: Place) -> None:
        mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
        self.setting, self.plan, self.mesh = setting, plan, mesh
        self.trainer = Trainer(plan, mesh, seed=SEED, rule=setting.rule)
        self.spans: list[list[Span]] = []  # of each step

    def step(self, number: int) -> torch.Tensor:
        """One optimizer step."""
        tokens, targets = self.setting.rows(number)

        def read(first: int, count: int) -> Rows:
            ones = np.ones((count, tokens.shape[1]), np.float32)
            return Rows(tokens[first : first + count], targets[first : first + count], ones)

        result = self.trainer.train_step(number, Samples(0, self.setting.sequences, read), LR)
        self.spans.append(result.run.spans)
        return torch.tensor(result.loss)


def trivium(layers: tuple[int, ...] | None = None, **more: object) -> Build:
    """A contestant from the fields of a plan."""
    return lambda setting, place: TriviumEngine(setting.plan(layers, **more), setting, place)
