"""The description of a part of a layer: parameters, constraints, matrix products and what its backward needs.

Nothing here imports torch. Sizes may be numbers, or NumPy arrays with one entry for each plan, so that each formula
prices one plan or thousands at once.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from math import prod
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

Number = float | NDArray[Any]
Owner = int | Literal["embedding", "head"]
Initial = Literal["normal", "residual", "uniform", "ones", "zeros", "row_norms"]
Kind = Literal["weights", "wide", "index", "flag"]
Recomputed = Literal["attention", "activation_function"]


@dataclass(frozen=True)
class Fused:
    """Several matrices that are stored as one parameter.

    The leading dimensions of the parameter, viewed as `view`, have the matrices one after the other along dimension
    `along`, with `sizes` entries each. Import, export and optimizers that work on matrices read this.
    """

    view: tuple[int, ...]
    along: int
    sizes: tuple[int, ...]

    def pieces(self, tensor: Any) -> tuple[Any, ...]:
        """Return the matrices in order, each with its leading dimensions flattened into one."""
        rest = self._rest(tensor)
        viewed, found, start = tensor.reshape(*self.view, *rest), [], 0
        for size in self.sizes:
            index = (slice(None),) * self.along + (slice(start, start + size),)
            found.append(viewed[index].reshape(-1, *rest))
            start += size
        return tuple(found)

    def viewed(self, pieces: Iterable[Any]) -> list[Any]:
        """Return the matrices in the shape in which they are concatenated along `along`: the inverse of `pieces`."""
        found = []
        for piece, size in zip(pieces, self.sizes, strict=True):
            view = (*self.view[: self.along], size, *self.view[self.along + 1 :])
            found.append(piece.reshape(*view, *piece.shape[1:]))
        return found

    def _rest(self, tensor: Any) -> tuple[int, ...]:
        """The dimensions behind those that `view` covers."""
        used, shape = prod(self.view), tuple(tensor.shape)
        behind = next(n for n in range(len(shape) + 1) if prod(shape[:n]) == used)
        return shape[behind:]


@dataclass(frozen=True)
class Row:
    """One parameter of the unsplit model.

    shape: unsplit and unpadded. split: the dimension divided over tensor ranks; None if every rank holds all of it.
    initial: "residual" is "normal" with the standard deviation divided by sqrt(2 layers), for matrices that write to
    the residual stream (GPT-2, Megatron-LM). "uniform" is uniform in ±1 / sqrt(inputs). "row_norms" are
    the norms of the rows of the weight beside which an adapter adds it.
    per_position: it acts on each position alone. Under sequence parallelism the gradient of a tensor rank covers only
    its own positions, and must be summed over tensor ranks. summed: tensor ranks always compute parts of its gradient,
    because it acts on each head alone, and they divide the heads, or because it weights what each computes a part of.
    by_expert: its first dimension is the number of experts, which expert ranks divide.
    padded: `split` is the vocabulary, which is padded first. fused: the matrices that are stored together.
    inside: it is the weight of a linear layer inside a tensor region, whose inputs have entered it and whose results
    have not left it. An adapter beside it may be there too.
    wide: it has the dtype of master weights, as small steps would be lost in a narrower one.
    """

    name: str
    shape: tuple[int, ...]
    split: int | None = None
    decay: bool = True
    initial: Initial = "normal"
    per_position: bool = False
    summed: bool = False
    by_expert: bool = False
    padded: bool = False
    trainable: bool = True
    inside: bool = False
    fused: Fused | None = None
    wide: bool = False

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def of_expert_rank(self, expert: int) -> Self:
        """Return the row of one of `expert` ranks, which divide the experts; the row itself without experts."""
        if not self.by_expert or expert == 1:
            return self
        fused = self.fused
        if fused is not None:  # experts are the first of what is fused
            view = (fused.view[0] // expert, *fused.view[1:])
            fused = Fused(view, fused.along, fused.sizes[: len(fused.sizes) // expert])
        return replace(self, shape=(self.shape[0] // expert, *self.shape[1:]), fused=fused)

    def of_one_expert(self) -> Self:
        """Return the row of one of the experts."""
        alone = self.of_expert_rank(self.shape[0])
        split = None if self.split is None else self.split - 1
        return replace(alone, shape=self.shape[1:], split=split, by_expert=False)

    def of_experts(self, experts: int) -> Self:
        """Return the row of as many experts, each of which has this one: the inverse of `of_one_expert`."""
        own = self.fused or Fused(self.shape[:1], 0, self.shape[:1])
        fused = Fused((experts * own.view[0], *own.view[1:]), own.along, experts * own.sizes)
        split = None if self.split is None else self.split + 1
        return replace(self, shape=(experts, *self.shape), split=split, fused=fused, by_expert=True)

    @property
    def splits_outputs(self) -> bool:
        """Whether it is a matrix whose outputs are divided over tensor ranks, so that each reads the full input."""
        return len(self.shape) > 1 and self.split is not None and self.split < len(self.shape) - 1

    @property
    def splits_inputs(self) -> bool:
        """Whether it is a matrix whose inputs are divided over tensor ranks, so that each computes a part of a sum."""
        return len(self.shape) > 1 and self.split == len(self.shape) - 1

    @property
    def is_linear(self) -> bool:
        """Whether it is the weight of a linear layer that may have an adapter: split over tensor ranks, or held by
        every rank, inside their regions or outside of them."""
        return len(self.shape) > 1 and (self.split is not None or self.per_position or self.inside)


@dataclass(frozen=True)
class Parameter(Row):
    """A row with its full name and owner: the number of its layer, or the end of the model that it belongs to."""

    owner: Owner = "embedding"


def owned(rows: Iterable[Row], prefix: str, owner: Owner) -> Iterator[Parameter]:
    """Yield the rows with `prefix` before their names."""
    for row in rows:
        fields: dict[str, Any] = {**vars(row), "name": f"{prefix}.{row.name}", "owner": owner}
        yield Parameter(**fields)


def under(prefix: str, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows with `prefix` before their names."""
    return (replace(row, name=f"{prefix}.{row.name}") for row in rows)


def vector(name: str, length: int, initial: Initial, **more: Any) -> Row:
    """Return the row of a bias or of a norm's weight, which have no weight decay."""
    return Row(name, (length,), decay=False, initial=initial, **more)


def linear(name: str, shape: tuple[int, int], *, split: int, bias: bool, fused: Fused | None = None) -> Iterator[Row]:
    """Yield the matrix [outputs, inputs] of a linear layer, split by outputs (0) or by inputs (1), and its bias.

    A matrix that is split by inputs writes to the residual stream. Its bias is added once, after the sum over tensor
    ranks, so every rank holds all of it.
    """
    yield Row(f"{name}.weight", shape, split, initial="residual" if split else "normal", fused=fused)
    if bias and split:
        yield vector(f"{name}.bias", shape[0], "zeros", per_position=True)
    elif bias:
        yield vector(f"{name}.bias", shape[0], "zeros", split=0, fused=fused)


@dataclass(frozen=True, kw_only=True)
class Place:
    """The sizes of one rank's work on one micro-batch, from which a part is priced.

    sequence: positions of the whole sequence. vocabulary: rows of the table over all tensor ranks, padding included.
    expert: ranks that divide the experts of a layer. ring: whether context ranks attend in a ring rather than by
    exchanging heads (Ulysses). separate: whether packed documents are masked from each other. wide_weights: whether
    weights have the dtype of master weights.
    """

    sequence: Number = 1
    vocabulary: Number = 1
    micro: Number = 1
    tensor: Number = 1
    context: Number = 1
    expert: Number = 1
    sequence_parallel: Number = 0  # 0 or 1
    ring: Number = 1  # 0 or 1
    apart: Number = 0  # 0 or 1
    function_again: Number = 0  # 0 or 1
    weight_bytes: Number = 2
    master_bytes: Number = 4

    @property
    def local_sequence(self) -> Number:
        """Positions of a sequence on one context rank."""
        return self.sequence / self.context

    @property
    def positions(self) -> Number:
        """Positions of a micro-batch on one context rank."""
        return self.micro * self.local_sequence

    @property
    def along(self) -> Number:
        """Tensor ranks that divide the positions between tensor regions among them."""
        return np.where(np.asarray(self.sequence_parallel) > 0, self.tensor, 1)

    @property
    def split(self) -> NDArray[Any]:
        """Whether there are several tensor ranks."""
        return np.asarray(self.tensor) > 1

    @property
    def element_bytes(self) -> dict[Kind, Number]:
        """Bytes of one element of each kind that a backward needs."""
        return {"weights": self.weight_bytes, "wide": self.master_bytes, "index": 8, "flag": 1}


class Division(NamedTuple):
    """A size that tensor ranks must divide into whole `unit`s.

    field: the setting that decides the size. name: the size for people, in "the 96 heads".
    """

    field: str
    size: int
    unit: str
    name: str


@dataclass(frozen=True)
class Product:
    """One matrix product with a weight, on one rank, for each position: `inner` numbers become `columns`.

    enters: the weight is split by its outputs, so that the product reads from between tensor regions. Otherwise it is
    split by its inputs, and tensor ranks sum the results. trained: the backward computes the gradient of the weight.
    visits: rows of the product for each position; experts compute one for each visit of a token. matrices: weights
    among which the rows are divided, those of a rank's experts. whole: its input has all positions, even where tensor
    ranks divide them. wide: its operands have the dtype of master weights, and autograd computes their gradients at
    once. repeated: recomputation before a backward includes it even if it is the last product. outer: its result does
    not enter a tensor region either.
    """

    columns: Number
    inner: Number
    enters: bool
    trained: bool = True
    visits: Number = 1
    matrices: Number = 1
    whole: bool = False
    wide: bool = False
    repeated: bool = False
    outer: bool = False

    @property
    def flops(self) -> Number:
        """FLOPs of the product for each position."""
        return 2.0 * self.columns * self.inner * self.visits

    def deferred(self, at: Place) -> Number:
        """Elements that are kept until the gradient of the weight is computed: the input of the product and the
        gradient of its output. Between tensor regions the input may be divided over tensor ranks."""
        if not self.trained or self.wide:
            return 0.0
        rows = at.positions * self.visits
        return rows * self.inner / (at.along if self.enters and not self.whole else 1) + rows * self.columns


@dataclass(frozen=True)
class Scores:
    """Attention on one rank: `heads` heads of all sequences, each with `rows` queries, `columns` keys and `width`
    columns. reach: the most keys that one query attends to."""

    heads: Number
    rows: Number
    columns: Number
    width: Number
    reach: Number

    @property
    def visible(self) -> Number:
        """The share of the causal pairs of positions that a window leaves visible."""
        reach, columns = self.reach, self.columns  # the first positions have fewer keys before them
        return reach * (2 * columns - reach + 1) / (columns * (columns + 1))


@dataclass(frozen=True)
class Exchanged:
    """Numbers for each position that a rank sends to other context ranks: `ring`, the keys and values that go around
    the ring; `into` and `out`, what Ulysses exchanges before and after attention."""

    ring: Number
    into: Number
    out: Number


@dataclass(frozen=True)
class Dispatched:
    """Rows of `columns` numbers, and a weight with each, that a rank sends for each position to the ranks that hold
    their experts, itself included. It first tells how many rows each of the `experts` gets."""

    rows: Number
    columns: int
    experts: int


@dataclass(frozen=True)
class Moved:
    """Numbers that element-wise kernels read and write, in bytes for 16-bit elements: forward, backward, and what
    Megatron-LM's fused kernels compute on their way but separate kernels do not."""

    forward: Number
    backward: Number
    unfused: Number = 0.0


@dataclass(frozen=True)
class Kept:
    """Elements that the backward needs. recomputed: the setting with which they are computed again instead."""

    elements: Number
    kind: Kind = "weights"
    recomputed: Recomputed | None = None


class Part:
    """One kind of part; each kind overrides what applies to it. A part does not count its own input, because its
    wiring does."""

    @classmethod
    def problems(cls, form: Any) -> Iterator[str]:
        """Yield the contradictions among the settings that it reads."""
        return iter(())

    def rows(self) -> Iterator[Row]:
        """Yield its parameters."""
        return iter(())

    def divisions(self) -> Iterator[Division]:
        """Yield the sizes that tensor ranks must divide."""
        return iter(())

    def products(self, at: Place) -> list[Product]:
        """Return its matrix products with weights, in order."""
        return []

    def visits_of(self, row: Row, at: Place) -> Number:
        """Return how many rows the product with one of its weights computes for each position."""
        return 1

    def entering(self, hidden: int) -> tuple[int, ...]:
        """Return the columns of what enters its tensor region, one number for each message. hidden: of its input."""
        return (hidden,)

    def kept(self, at: Place) -> Iterator[Kept]:
        """Yield what its backward needs."""
        return iter(())

    def moved(self, at: Place) -> Moved:
        """Return what its element-wise kernels move."""
        return Moved(0.0, 0.0)

    def activation(self, at: Place) -> tuple[Number, Number, Number]:
        """Return how many numbers its activation function reads and writes for each position on a rank, and how many
        its backward has beside their gradients."""
        return 0.0, 0.0, 0.0

    def scores(self, at: Place) -> Scores | None:
        """Return its attention, if it has one."""
        return None

    def exchanged(self, at: Place) -> Exchanged | None:
        """Return what it exchanges with other context ranks, if anything."""
        return None

    def dispatched(self, at: Place) -> Dispatched | None:
        """Return what it sends to the ranks that hold experts, if it has experts."""
        return None

    def beside_dispatch(self, at: Place) -> list[Product]:
        """Return those of its products that are computed while its tokens are sent to other ranks."""
        return []

    @property
    def sums(self) -> int:
        """Numbers per position that are summed over tensor ranks, besides products."""
        return 0


def entries(value: Any, which: Any) -> Any:
    """Return the entries `which` of an array, or of every array inside a part; numbers for all plans stay."""
    if isinstance(value, np.ndarray):
        return value[which] if value.ndim else value
    if isinstance(value, tuple):
        found = [entries(each, which) for each in value]
        return type(value)(*found) if hasattr(value, "_fields") else tuple(found)
    if is_dataclass(value) and not isinstance(value, type):
        old = {field.name: getattr(value, field.name) for field in fields(value)}
        new = {name: entries(each, which) for name, each in old.items()}
        return value if all(new[name] is old[name] for name in old) else replace(value, **new)
    return value
