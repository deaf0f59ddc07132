"""Faults of initial values, and faults that show only with many layers or micro-batches."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from faults.mutant import fault, plan
from trivium import seeds
from trivium.certify.ways import DEEP, MANY
from trivium.kernels.dropout import DropoutKey
from trivium.model import initialise, inputs, stage
from trivium.plan import parameters
from trivium.plan.layers.layer import Layer
from trivium.plan.layers.part import Parameter
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import Box
from trivium.training import trainer

Tensor = torch.Tensor

THIN = plan(batch={"sequences": 4})
DROPOUT = plan(model={"dropout": 0.2})
PERIOD = 10


def _numbered(name: str, period: int) -> str:
    return re.sub(r"layers\.(\d+)", lambda m: f"layers.{int(m[1]) % period}", name)


@fault(stage, "initial_values", THIN, plan(pipeline=2), way=DEEP)
def initial_values_repeat(original, mesh):
    """After ten layers the initial values are those of the first ten again."""

    def initial_values(parameter: Parameter, *more: Any) -> Tensor:
        return original(replace(parameter, name=_numbered(parameter.name, PERIOD)), *more)

    return initial_values


@fault(seeds, "hashlib", THIN, way=DEEP, everywhere=True)
def names_cut_short(original, mesh):
    """Only the first 18 characters of a name decide about its seed, on both sides: "layers.1" and "layers.10" begin
    with the same values."""
    return SimpleNamespace(blake2b=lambda text, **more: hashlib.blake2b(text[:18], **more))


@fault(seeds, "hashlib", DROPOUT, everywhere=True)
def masks_of_all_sites_alike(original, mesh):
    """The seed of a dropout mask leaves out its place in the model, on both sides."""

    def blake2b(text: bytes, **more: Any) -> Any:
        root, kind, *names = text.split(b"\x1f")
        return hashlib.blake2b(b" ".join([root, kind, *(names[1:] if kind == b"dropout" else names)]), **more)

    return SimpleNamespace(blake2b=blake2b)


@fault(stage, "initial_values", THIN)
def residual_scale_missing(original, mesh):
    """The matrices that write to the residual stream are not divided by sqrt(2 layers)."""

    def initial_values(parameter: Parameter, *more: Any) -> Tensor:
        plain = replace(parameter, initial="normal") if parameter.initial == "residual" else parameter
        return original(plain, *more)

    return initial_values


@fault(parameters, "_layer", THIN, plan(tensor=2), everywhere=True)
def residual_scale_missing_in_the_table(original, mesh):
    """The table of parameters gives every matrix the same deviation, where both sides can read it."""

    def layer(model: ModelShape, number: int) -> Iterator[Parameter]:
        for p in original(model, number):
            yield replace(p, initial="normal") if p.initial == "residual" else p

    return layer


@fault(initialise, "math", THIN)
def residual_scale_of_one_half_block(original, mesh):
    """Residual matrices are divided by sqrt(layers), as if a layer wrote to the stream once."""
    return SimpleNamespace(sqrt=lambda x: original.sqrt(x / 2))


@fault(stage, "initial_values", plan(pipeline=2))
def residual_scale_of_the_stage(original, mesh):
    """Residual matrices are scaled by the number of layers of their stage instead of the model."""

    def initial_values(parameter: Parameter, model: ModelShape, seed: int, box: Box) -> Tensor:
        layers = model.layers // mesh.pipeline.size
        return original(parameter, model.model_copy(update={"layers": layers}), seed, box)

    return initial_values


@fault(ModelShape, "std", THIN, everywhere=True)
def deviation_three_times_as_wide(original, mesh):
    """The initial variance is 1 / hidden instead of the paper's 1 / (3 hidden), where both sides can read it."""
    return lambda self: original(self) * 3**0.5


@fault(ModelShape, "std", plan(model={"init_std": 0.07}))
def given_deviation_not_read(original, mesh):
    """The deviation that was given in `init_std` has no effect."""
    return lambda self: original(self.model_copy(update={"init_std": None}))


@fault(initialise, "torch", THIN)
def drawn_uniformly(original, mesh):
    """Initial values are uniform instead of normal, with the right mean and deviation."""

    def randn(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return (torch.rand(shape, generator=generator) - 0.5) * 12**0.5

    return SimpleNamespace(randn=randn, ones=torch.ones, zeros=torch.zeros, Generator=torch.Generator)


@fault(parameters, "_layer", THIN, everywhere=True)
def norms_decayed_by_the_table(original, mesh):
    """The table of parameters gives norms weight decay, where both sides can read it."""
    return lambda *given: (replace(p, decay=p.decay or "norm." in p.name) for p in original(*given))


@fault(parameters, "_embedding", THIN, everywhere=True)
def embedding_without_decay(original, mesh):
    """The table of parameters exempts the embedding from weight decay, where both sides can read it."""
    return lambda *given: (replace(p, decay=False) for p in original(*given))


@fault(parameters, "_layer", THIN, way=DEEP, everywhere=True)
def deep_biases_missing(original, mesh):
    """From the sixteenth layer on the table of parameters has no bias of attention's output."""

    def layer(model: ModelShape, number: int) -> Iterator[Parameter]:
        for p in original(model, number):
            if number < 16 or not p.name.endswith("attention.out.bias"):
                yield p

    return layer


@fault(inputs, "keyed_dropout", DROPOUT, plan(pipeline=2, model={"dropout": 0.2}), way=DEEP)
def masks_repeat_after_ten_layers(original, mesh):
    """Dropout sites number layers modulo ten."""
    return lambda x, rate, *, site, **more: original(x, rate, site=_numbered(site, PERIOD), **more)


@fault(trainer, "DropoutKey", DROPOUT, way=MANY)
def masks_repeat_after_eight_micro_batches(original, mesh):
    """Dropout keys number the samples of a step modulo eight."""

    def key(seed: int, step: int, samples: tuple[int, ...], sequence: int) -> DropoutKey:
        return DropoutKey(seed, step, tuple(n - n % 17 // 8 * 8 for n in samples), sequence)

    return key


@fault(trainer, "_forward", THIN, plan(pipeline=2, chunks=2), way=MANY)
def inputs_of_eight_micro_batches(original, mesh):
    """A ring of eight slots keeps the inputs of micro-batches, of which a step has more."""

    def forward(stage: Any, given: list[inputs.Inputs], *more: Any) -> Any:
        return original(stage, [given[m % 8] for m in range(len(given))], *more)

    return forward


@fault(ModelShape, "each_layer", plan(model={"window": 3, "pattern": [{}, {"window": None}]}), way=DEEP)
def window_pattern_ends(original, mesh):
    """From the twentieth layer on the pattern of windows is not continued."""

    def each_layer(self: ModelShape) -> tuple[Layer, ...]:
        layers = original(self)
        return (*layers[:20], *(layers[1] for _ in layers[20:]))  # the second one has none

    return each_layer
