"""The matrices of experts beside which PEFT has adapters, in parameters that hold those of all experts."""

from collections.abc import Iterator
from itertools import groupby
from math import prod
from typing import NamedTuple

from trivium.families.common.family import Family
from trivium.interchange.names import twins
from trivium.plan.layers.part import Parameter
from trivium.plan.model_shape import ModelShape

MODULE = "mlp.experts"  # of transformers, in every family
PARAMETERS = {"mlp.experts.up": "gate_up_proj", "mlp.experts.down": "down_proj"}
WRAPPED = "base_layer"  # PEFT wraps a module once for each of its parameters: the first is the innermost


class Stack(NamedTuple):
    """A parameter with a matrix of each expert [experts, outputs, inputs]. name: within its layer. module: the one that
    has those of all experts. of_each: the modules of each expert, where PEFT has an adapter for each of them."""

    row: Parameter
    layer: int
    name: str
    module: str
    of_each: tuple[tuple[str, ...], ...]

    @property
    def experts(self) -> int:
        return self.row.shape[0]

    @property
    def outputs(self) -> int:
        """Outputs of an expert, those of gate and up together."""
        return prod(self.row.shape[1:-1])

    @property
    def inputs(self) -> int:
        return self.row.shape[-1]

    @property
    def theirs(self) -> str:
        """The name of the parameter."""
        return f"{self.module}.{PARAMETERS[self.name]}"

    @property
    def places(self) -> tuple[str, str]:
        """The modules in which its adapter may be, the inner one first."""
        return f"{self.module}.{WRAPPED}", self.module


def stacks(model: ModelShape, family: Family) -> Iterator[Stack]:
    """Yield the matrices of experts of a model without adapters, in the order of its parameters."""
    layer = family.names(model).layer
    by_expert = (twin for twin in twins(model, family) if twin.ours.by_expert)
    for row, several in groupby(by_expert, key=lambda twin: twin.ours):
        assert isinstance(row.owner, int), "experts are in layers"
        name = row.name.split(".", 2)[2].removesuffix(".weight")
        of_each = tuple(tuple(x.removesuffix(".weight") for x in twin.theirs) for twin in several)
        yield Stack(row, row.owner, name, f"{layer.format(row.owner)}.{MODULE}", of_each)


def stacks_by_layer(model: ModelShape, family: Family) -> Iterator[list[Stack]]:
    """Yield them by layer."""
    for _, several in groupby(stacks(model, family), key=lambda stack: stack.layer):
        yield list(several)
