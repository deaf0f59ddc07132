"""Adapters: parameters that are added beside the frozen ones of linear layers.

Every kind of adapter is a file of `trivium/adapters`, with an `ADAPTER`. Importing one does not import torch, so that
plans and costs can read its parameters.
"""

import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from pydantic import Field, model_validator

import trivium
from trivium.config import Config, Tree, build
from trivium.errors import ConfigError
from trivium.plan.layers.part import Kept, Place, Product, Row, under
from trivium.units import listed

Tensor = Any  # of torch
ADAPTER = "adapter"  # between the name of a linear layer and those of the added parameters


class Linear(Protocol):
    """What an adapter knows of a linear layer: the layer's own parameters, the tensor region in which it runs, and
    whether tensor ranks split its outputs or its inputs."""

    weight: Any
    bias: Any
    region: Any
    splits_outputs: bool


class Sums(NamedTuple):
    """Numbers for each position that tensor ranks exchange because of an adapter: `entering` a tensor region (a gather
    or nothing forward, a sum backward) and `leaving` one (a sum forward, a gather or nothing backward)."""

    entering: int = 0
    leaving: int = 0


class Adapter(Config):
    """Parameters and products that are added to one linear layer; the fields are the settings that a plan may give.

    base: the row of the weight of that layer, [..., outputs, inputs]. Its `split` is the dimension of the inputs in a
    layer that is split by its inputs, and otherwise one of the outputs.
    """

    def rows(self, base: Row) -> Iterator[Row]:
        """Yield the parameters that are added."""
        raise NotImplementedError(f"{type(self).__name__} has no rows")

    def products(self, base: Row, at: Place) -> list[Product]:
        """Return the matrix products that are added."""
        return []

    def kept(self, base: Row, at: Place) -> Iterator[Kept]:
        """Yield what the backward needs besides the inputs of the layer."""
        return iter(())

    def sums(self, base: Row) -> Sums:
        """Return what tensor ranks exchange besides the messages of the layer."""
        return Sums()

    def adapted(
        self,
        y: Tensor,
        x: Tensor,
        linear: Linear,
        added: Mapping[str, Tensor],
        function: Callable[[Tensor], Tensor] | None,
    ) -> Tensor:
        """Return the result of the adapted layer.

        y: that of the layer alone. x: its inputs, or with a function what that reads: the inputs then are function(x),
        which the backward computes again. Shapes and splits are those of the layer. added: the parameters by name.
        """
        raise NotImplementedError(f"{type(self).__name__} does not adapt a result")


class Adapted(NamedTuple):
    """A linear layer of a transformer's layer with its adapter. base: the row of its weight."""

    base: Row
    adapter: Adapter

    @property
    def linear(self) -> str:
        """The name of the linear layer."""
        return self.base.name.removesuffix(".weight")

    @property
    def rows(self) -> tuple[Row, ...]:
        """The added parameters, named below the linear layer."""
        return tuple(under(f"{self.linear}.{ADAPTER}", self.adapter.rows(self.base)))


class AdapterGroup(Config):
    """The linear layers whose names match a pattern, and the adapter that they get."""

    match: str = "*"  # pattern of the names of linear layers, such as layers.*.attention.qkv
    kind: str = "low_rank"  # kind of adapter: the name of a file in trivium/adapters
    settings: Tree = Field(default={})  # settings of the adapter

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    def made(self) -> Adapter:
        """Return the adapter."""
        return build(_kind_named(self.kind), self.settings)

    @model_validator(mode="after")
    def _checked(self) -> "AdapterGroup":
        if self.kind not in adapter_kinds():
            known = listed(adapter_kinds()) or "not installed"
            raise ValueError(f"the kinds of adapter are {known}, and '{self.kind}' is none of them; name one")
        try:
            self.made()
        except ConfigError as error:
            raise ValueError(f"settings: {error}") from None
        return self


def group_of(groups: Sequence[AdapterGroup], number: int, row: Row) -> int | None:
    """Return the number of the first group that takes a row of layer `number`; None for what gets no adapter.

    A linear layer is a matrix that is split over tensor ranks.
    """
    if row.split is None or len(row.shape) < 2:
        return None
    name = f"layers.{number}.{row.name.removesuffix('.weight')}"
    return next((n for n, group in enumerate(groups) if fnmatchcase(name, group.match)), None)


def adapted_rows(groups: tuple[AdapterGroup, ...], number: int, rows: Iterable[Row]) -> tuple[Adapted, ...]:
    """Return the linear layers of layer `number` that get an adapter. rows: those of the layer."""
    found = ((row, group_of(groups, number, row)) for row in rows)
    return tuple(Adapted(row, groups[group].made()) for row, group in found if group is not None)


def is_added(row: Row) -> bool:
    """Whether a parameter belongs to an adapter."""
    return ADAPTER in row.name.split(".")


def frozen(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return the rows as those of parameters that are not trained."""
    return tuple(replace(row, trainable=False) for row in rows)


def adapter_kinds() -> list[str]:
    """Return the names of all kinds of adapter, sorted."""
    return sorted(found.name for found in pkgutil.iter_modules([f"{place}/adapters" for place in trivium.__path__]))


@cache
def _kind_named(name: str) -> type[Adapter]:
    module: Any = import_module(f"{trivium.__name__}.adapters.{name}")
    kind: type[Adapter] = module.ADAPTER
    return kind
