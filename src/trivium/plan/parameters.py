"""The table of parameters: one row each, read by the model, the checkpoint, the optimizer and the cost model."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from trivium.plan.adapters import frozen
from trivium.plan.layers.part import Parameter, Part, Row, owned
from trivium.plan.layout import Layout
from trivium.plan.model_shape import ModelShape

TOKENS = "embedding.tokens.weight"


@dataclass(frozen=True)
class Box:
    """The region of an unsplit tensor from `start` (inclusive), of size `shape`."""

    start: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def intersect(self, other: "Box") -> "Box | None":
        """The common region, or None."""
        start = tuple(map(max, self.start, other.start))
        ends = zip(self.start, self.shape, other.start, other.shape, strict=True)
        shape = tuple(min(a + n, b + m) - s for s, (a, n, b, m) in zip(start, ends, strict=True))
        return Box(start, shape) if min(shape, default=1) > 0 else None

    def within(self, outer: "Box") -> tuple[slice, ...]:
        """This region as slices of an array that holds `outer`."""
        return tuple(slice(s - o, s - o + n) for s, o, n in zip(self.start, outer.start, self.shape, strict=True))


def parameters(model: ModelShape) -> tuple[Parameter, ...]:
    """Return every parameter, in the model's order. A tied head is the embedding's own row."""
    return (*_embedding(model), *(p for n in range(model.layers) for p in _layer(model, n)), *_head(model))


def stage_parameters(model: ModelShape, layers: range, *, first: bool, last: bool) -> tuple[Parameter, ...]:
    """The parameters of a stage. The last stage also holds a tied embedding (once, if it is also the first)."""
    borrowed = last and model.head == "tied"
    embedding = (p for p in _embedding(model) if first or (borrowed and p.name == TOKENS))
    blocks = (p for n in layers for p in _layer(model, n))
    return (*embedding, *blocks, *(_head(model) if last else ()))


def padded_rows(parameter: Parameter, model: ModelShape, layout: Layout) -> int:
    """Size of the split dimension over all tensor ranks, padding included."""
    assert parameter.split is not None, f"{parameter.name} is not split"
    size = parameter.shape[parameter.split]
    return model.padded_vocabulary(layout.tensor) if parameter.padded else size


def local_shape(parameter: Parameter, model: ModelShape, layout: Layout) -> tuple[int, ...]:
    """Shape of the shard of a rank, padding included."""
    shape = list(parameter.of_expert_rank(layout.expert).shape)
    if parameter.padded or (parameter.split is not None and layout.tensor > 1):
        assert parameter.split is not None, f"{parameter.name} is not split"
        shape[parameter.split] = padded_rows(parameter, model, layout) // layout.tensor
    return tuple(shape)


def shard_box(parameter: Parameter, model: ModelShape, layout: Layout, tensor: int, expert: int) -> Box:
    """The region of the unsplit, unpadded tensor that the rank with these indices in its tensor and expert groups
    holds; it may be empty of rows."""
    start, shape = [0] * len(parameter.shape), list(parameter.of_expert_rank(layout.expert).shape)
    if parameter.by_expert:
        start[0] = expert * shape[0]
    if parameter.split is not None:
        rows = local_shape(parameter, model, layout)[parameter.split]
        size = parameter.shape[parameter.split]
        start[parameter.split] = min(tensor * rows, size)
        shape[parameter.split] = min((tensor + 1) * rows, size) - start[parameter.split]
    return Box(tuple(start), tuple(shape))


def count(model: ModelShape) -> int:
    """Parameters of the model, padding apart."""
    return sum(p.elements for p in parameters(model))


def count_active(model: ModelShape) -> int:
    """Parameters of the model that one token uses, padding apart: all but those of the experts that it does not
    visit."""
    return sum(_used(p, model) for p in parameters(model))


def _used(parameter: Parameter, model: ModelShape) -> int:
    if not parameter.by_expert:
        return parameter.elements
    assert isinstance(parameter.owner, int), "experts are in layers"
    experts = model.form_of(parameter.owner).experts
    assert experts is not None, "a layer of experts has their settings"
    return parameter.elements // experts.count * experts.chosen


def _embedding(model: ModelShape) -> Iterator[Parameter]:
    return owned(_end(model, model.embedding_part), "embedding", "embedding")


def _head(model: ModelShape) -> Iterator[Parameter]:
    return owned(_end(model, model.head_part), "head", "head")


def _end(model: ModelShape, part: Part) -> Iterable[Row]:
    return frozen(part.rows()) if model.adapters else part.rows()


def _layer(model: ModelShape, number: int) -> Iterator[Parameter]:
    return owned(model.each_layer[number].rows, f"layers.{number}", number)
