"""The optimizer once more: one global clip, groups of parameters by their patterns, and each group's rule."""

import fnmatch
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import torch

from trivium.certify.oracle.layers import remembered
from trivium.plan.model_shape import ModelShape
from trivium.plan.optimizer import Group

Tensor = torch.Tensor


@dataclass(frozen=True)
class Recipe:
    """AdamW's constants, and of each step, again and again from the first, the largest norm (0: any) and the learning
    rate."""

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clips: tuple[float, ...]
    lrs: tuple[float, ...]

    def clip(self, step: int) -> float:
        """Return the largest gradient norm that a step leaves unclipped; 0 clips nothing. Steps count from 0."""
        return self.clips[step % len(self.clips)]

    def lr(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        return self.lrs[step % len(self.lrs)]


class Update(NamedTuple):
    """Inputs of an update rule besides weight, gradient and state. name: of the parameter. step: 1-based."""

    name: str
    model: ModelShape
    lr: float
    decay: float
    step: int
    settings: Mapping[str, Any]

    @property
    def head_width(self) -> int:
        """Columns of an attention head."""
        return self.model.head_width or self.model.hidden // self.model.heads


class PlainOptimizer:
    """Updates trained weights in place; there is no decay on biases and norms."""

    def __init__(
        self, weights: dict[str, Tensor], recipe: Recipe, model: ModelShape, groups: tuple[Group, ...] = ()
    ) -> None:
        self.weights, self.recipe, self.model, self.steps = weights, recipe, model, 0
        self.groups = {name: _first_match(name, groups) for name in weights}
        added = [name for name in weights if ".adapter." in name]
        # What follows from each step: the noise of adapters, and the biases of routers.
        fixed = [name for name in weights if name.endswith((".adapter.deviation", ".router.bias"))]
        self.trained = [name for name in added or weights if self.groups[name].trainable and name not in fixed]
        self._states: dict[str, dict[str, Tensor]] = {name: {} for name in weights}

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor]) -> float:
        """Update the trained weights; returns the norm of their gradients before clipping."""
        r = self.recipe
        clip, lr = r.clip(self.steps), r.lr(self.steps)
        self.steps += 1
        norm = math.sqrt(sum(float(gradients[name].square().sum()) for name in self.trained))
        scale = clip / (norm + 1e-6) if 0 < clip < norm else 1.0
        self.weights |= remembered(self.weights, self.model, {name: gradients[name] * scale for name in self.trained})
        for name in self.trained:
            group = self.groups[name]
            decay = r.weight_decay if group.weight_decay is None else group.weight_decay
            decay = 0.0 if name.endswith((".bias", "norm.weight", ".adapter.m")) else decay
            settings = {"beta1": r.beta1, "beta2": r.beta2, "epsilon": r.epsilon}
            settings = {**(settings if group.rule == "adamw" else {}), **group.settings}
            update = import_module(f"trivium.certify.oracle.optimizers.{group.rule}").update
            by = Update(name, self.model, lr * group.lr_scale, decay, self.steps, settings)
            update(self.weights[name], gradients[name] * scale, self._states[name], by)
        return norm


def _first_match(name: str, groups: tuple[Group, ...]) -> Group:
    """The first group whose shell pattern is that of a name."""
    for group in groups:
        if re.fullmatch(fnmatch.translate(group.match), name):
            return group
    return Group()
