"""Adapters: parameters that are added beside the frozen ones of linear layers.

Every kind of adapter is a file of `trivium/adapters`, with an `ADAPTER`. Importing one does not import torch, so that
plans and costs can read its parameters.
"""

import pkgutil
from abc import abstractmethod
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
from trivium.plan.layers.part import Kept, Number, Place, Product, Row, under
from trivium.units import listed

Tensor = Any  # of torch
ADAPTER = "adapter"  # between the name of a linear layer and those of the added parameters


class Linear(Protocol):
    """What an adapter knows of a linear layer: the layer's own parameters, the tensor region in which it runs, and
    whether tensor ranks split its outputs, its inputs, or neither. inside: its inputs have entered the region, and its
    results have not left it; otherwise the layer with neither is outside of the region, and the others at its edges.
    """

    weight: Any
    bias: Any
    region: Any
    splits_outputs: bool
    splits_inputs: bool
    inside: bool


class Reads(NamedTuple):
    """The inputs of an adapted layer.

    x: the inputs, or with a function what that reads: the inputs then are function(x), which the backward computes
    again. dropped: the function from x to what the added product reads. It includes the adapter's dropout in training,
    and is None where the added product reads x itself. bias: what the result of the layer includes of its bias.
    """

    x: Tensor
    function: Any = None
    dropped: Any = None
    bias: Tensor | None = None


class Factors(NamedTuple):
    """How an adapter changes the matrices of experts: it adds scale B A, with A [experts, r, inputs] and B [experts,
    outputs, r], and then multiplies the rows by `outputs` [experts, outputs], unless that is None."""

    a: Tensor
    b: Tensor
    scale: float
    outputs: Tensor | None = None


class Sums(NamedTuple):
    """Numbers for each position that tensor ranks exchange because of an adapter: `entering` a tensor region (a gather
    or nothing forward, a sum backward) and `leaving` one (a sum forward, a gather or nothing backward). for_weights:
    the numbers that each forward sums whatever the positions, in fp32 or wider. remembered: those that `remembered`
    sums once in a step, in the dtype of masters."""

    entering: int = 0
    leaving: int = 0
    for_weights: int = 0
    remembered: int = 0


class Adapter(Config):
    """Parameters and products that are added to one linear layer; the fields are the settings that a plan may give.

    base: the row of the weight of that layer, [..., outputs, inputs], or of one expert's. Its `split` is the dimension
    of the inputs in a layer that is split by its inputs, one of the outputs in a layer that is split by these, and
    otherwise None.
    dropout: the share of the inputs of the added product that training zeroes.
    """

    dropout: float = 0.0

    @abstractmethod
    def rows(self, base: Row) -> Iterator[Row]:
        """Yield the parameters that are added."""

    def products(self, base: Row, at: Place) -> list[Product]:
        """Return the matrix products that are added."""
        return []

    def kept(self, base: Row, at: Place, rows: Number, experts: Number | None) -> Iterator[Kept]:
        """Yield what the backward needs besides the inputs of the layer. rows: that the layer computes of a
        micro-batch. experts: of a rank, each of which has such a weight; None if the weight is none of experts."""
        return iter(())

    def sums(self, base: Row) -> Sums:
        """Return what tensor ranks exchange besides the messages of the layer."""
        return Sums()

    @property
    def draws(self) -> bool:
        """Whether a training step draws random numbers for this adapter."""
        return self.dropout > 0

    @property
    def remembers(self) -> bool:
        """Whether `remembered` has something to tell the next step."""
        return False

    @property
    def reads_weight(self) -> bool:
        """Whether more than the product with the weight reads it, which then is not gathered in 8 bits."""
        return False

    @abstractmethod
    def factors(self, linear: Linear, added: Mapping[str, Tensor]) -> Factors:
        """Return how the matrices of experts are changed, where the layer is that of experts; added: the parameters by
        name, each with the experts first. Dropout does not act there."""

    def weight(self, weight: Tensor, added: Mapping[str, Tensor], normal: Callable[[], Tensor] | None) -> Tensor:
        """Return the weight with which the layer itself multiplies, that of experts included. normal: returns standard
        normal numbers in the shape of the weight, drawn by the names of step, layer and expert; None in evaluation."""
        return weight

    def remembered(
        self, base: Row, linear: Linear, added: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return new values of parameters that are not trained, right before an update. base: the row of one expert's
        weight where the parameters are those of experts, each with the experts first. gradients: of the whole batch,
        after clipping, by the name of a parameter."""
        return {}

    @abstractmethod
    def adapted(self, y: Tensor, reads: Reads, linear: Linear, added: Mapping[str, Tensor]) -> Tensor:
        """Return the result of the adapted layer.

        y: that of the layer alone. added: the parameters by name. Shapes and splits are those of the layer.
        """

    @abstractmethod
    def merged(self, weight: Tensor, added: Mapping[str, Tensor]) -> Tensor:
        """Return the weight with which a layer without an adapter computes the same in evaluation, given the unsplit
        weight and parameters."""

    @abstractmethod
    def unmerged(self, weight: Tensor, added: Mapping[str, Tensor]) -> Tensor:
        """Return the weight of which `merged` makes this one, to rounding. Raises ConfigError if it is lost."""


class Adapted(NamedTuple):
    """A linear layer of a transformer's layer with its adapter. base: the row of its weight."""

    base: Row
    adapter: Adapter

    @property
    def linear(self) -> str:
        """The name of the linear layer."""
        return self.base.name.removesuffix(".weight")

    @property
    def one(self) -> Row:
        """The row of its weight, of one expert where there are several."""
        return self.base.of_one_expert() if self.base.by_expert else self.base

    @property
    def own_rows(self) -> tuple[Row, ...]:
        """The added parameters; each expert has its own."""
        rows = self.adapter.rows(self.one)
        return tuple(row.of_experts(self.base.shape[0]) if self.base.by_expert else row for row in rows)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The added parameters, named below the linear layer."""
        return tuple(under(f"{self.linear}.{ADAPTER}", self.own_rows))

    def products(self, at: Place, visits: Number) -> list[Product]:
        """Return the matrix products that are added. visits: rows that the layer computes for each position."""
        found = self.adapter.products(self.one, at)
        if not self.base.by_expert:
            return found
        return [replace(each, visits=visits, matrices=self.base.shape[0] / at.expert) for each in found]

    def kept(self, at: Place, visits: Number) -> Iterator[Kept]:
        """Yield what the backward needs besides the inputs of the layer. visits: as in `products`."""
        experts = self.base.shape[0] / at.expert if self.base.by_expert else None
        return self.adapter.kept(self.one, at, visits * at.positions, experts)

    def sums(self, expert: int = 1) -> Sums:
        """Return what tensor ranks exchange besides the messages of the layer. expert: ranks that divide the experts,
        whose weights are summed one by one."""
        found, here = self.adapter.sums(self.one), self.base.shape[0] // expert if self.base.by_expert else 1
        return found._replace(for_weights=here * found.for_weights, remembered=here * found.remembered)


class AdapterGroup(Config):
    """The linear layers whose names match a pattern, and the adapter that they get."""

    match: str = "*"  # pattern of the names of linear layers, such as layers.*.attention.qkv; by default all
    kind: str = "lora"  # kind of adapter: the name of a file in trivium/adapters
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
    """Return the number of the first group that takes a row of layer `number`; None for what gets no adapter."""
    if not row.is_linear:
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


def base_name(name: str) -> str:
    """Return the name of the weight beside which a parameter was added."""
    return f"{name.rpartition(f'.{ADAPTER}.')[0]}.weight"


def frozen(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return the rows as those of parameters that are not trained."""
    return tuple(replace(row, trainable=False) for row in rows)


@cache
def adapter_kinds() -> tuple[str, ...]:
    """Return the names of all kinds of adapter, sorted."""
    return tuple(
        sorted(found.name for found in pkgutil.iter_modules([f"{place}/adapters" for place in trivium.__path__]))
    )


@cache
def _kind_named(name: str) -> type[Adapter]:
    module: Any = import_module(f"{trivium.__name__}.adapters.{name}")
    kind: type[Adapter] = module.ADAPTER
    return kind
