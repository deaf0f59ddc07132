"""The table of parameters: one row each, read by the model, the checkpoint, the optimizer and the cost model."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from trivium.plan.layout import Layout
from trivium.plan.model_shape import ModelShape

Owner = int | Literal["embedding", "head"]
Initial = Literal["normal", "residual", "ones", "zeros"]

TOKENS = "embedding.tokens.weight"


@dataclass(frozen=True)
class Parameter:
    """One parameter of the unsplit model.

    shape: unsplit and unpadded. split: the dimension divided over tensor ranks, None when each holds it whole.
    owner: the layer number, or the end of the model, it belongs to. initial: "residual" is "normal" with the
    deviation divided by sqrt(2 layers), for matrices that write to the residual stream (GPT-2, Megatron).
    per_position: it acts on positions one by one, so under sequence parallelism each tensor rank's gradient
    covers only its own positions and the sum over tensor ranks is the gradient. per_head: it acts on heads one by
    one, which tensor ranks always divide: so is the sum then, with sequence parallelism or without.
    fused: rows come in groups of so many of each kind, and the rows of a kind are a matrix of their own. Otherwise the
    last two dimensions are one.
    """

    name: str
    shape: tuple[int, ...]
    owner: Owner
    split: int | None = None
    decay: bool = True
    initial: Initial = "normal"
    per_position: bool = False
    per_head: bool = False
    fused: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        return prod(self.shape)


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
        return tuple(
            slice(s - o, s - o + n) for s, o, n in zip(self.start, outer.start, self.shape, strict=True)
        )


def parameters(model: ModelShape) -> tuple[Parameter, ...]:
    """Every parameter, in the model's order. A tied head is the embedding's own row."""
    return (*_embedding(model), *(p for n in range(model.layers) for p in _block(model, n)), *_head(model))


def stage_parameters(model: ModelShape, layers: range, *, first: bool, last: bool) -> tuple[Parameter, ...]:
    """The parameters of a stage. The last stage also holds a tied embedding (once, if it is also the first)."""
    borrowed = last and model.head == "tied"
    embedding = (p for p in _embedding(model) if first or (borrowed and p.name == TOKENS))
    blocks = (p for n in layers for p in _block(model, n))
    return (*embedding, *blocks, *(_head(model) if last else ()))


def padded_rows(parameter: Parameter, model: ModelShape, layout: Layout) -> int:
    """Size of the split dimension over all tensor ranks, padding included."""
    assert parameter.split is not None, f"{parameter.name} is not split"
    size = parameter.shape[parameter.split]
    return model.padded_vocabulary(layout.tensor) if _is_vocabulary(parameter) else size


def local_shape(parameter: Parameter, model: ModelShape, layout: Layout) -> tuple[int, ...]:
    """Shape of one tensor rank's shard, padding included."""
    shape = list(parameter.shape)
    if _is_vocabulary(parameter) or (parameter.split is not None and layout.tensor > 1):
        assert parameter.split is not None, f"{parameter.name} is not split"
        shape[parameter.split] = padded_rows(parameter, model, layout) // layout.tensor
    return tuple(shape)


def shard_box(parameter: Parameter, model: ModelShape, layout: Layout, tensor: int) -> Box:
    """The region of the unsplit, unpadded tensor that tensor rank `tensor` holds; it may be empty of rows."""
    start, shape = [0] * len(parameter.shape), list(parameter.shape)
    if parameter.split is not None:
        rows = local_shape(parameter, model, layout)[parameter.split]
        size = parameter.shape[parameter.split]
        start[parameter.split] = min(tensor * rows, size)
        shape[parameter.split] = min((tensor + 1) * rows, size) - start[parameter.split]
    return Box(tuple(start), tuple(shape))


def count(model: ModelShape) -> int:
    """Parameters of the model, padding apart."""
    return sum(p.elements for p in parameters(model))


def _is_vocabulary(parameter: Parameter) -> bool:
    return parameter.name in (TOKENS, "head.weight")


def _embedding(model: ModelShape) -> Iterator[Parameter]:
    yield Parameter(TOKENS, (model.vocabulary, model.hidden), "embedding", split=0)
    if model.family == "gpt":
        yield Parameter(
            "embedding.positions.weight", (model.sequence, model.hidden), "embedding", per_position=True
        )


def _head(model: ModelShape) -> Iterator[Parameter]:
    yield from _norm(model, "head.norm", "head")
    if model.head == "untied":
        yield Parameter("head.weight", (model.vocabulary, model.hidden), "head", split=0)


def _block(model: ModelShape, layer: int) -> Iterator[Parameter]:
    at = f"layers.{layer}"
    # Rows come in groups of (queries of the group, one key, one value), so that a split keeps groups whole.
    qkv = (model.heads + 2 * model.kv) * model.head_columns
    yield from _norm(model, f"{at}.attention.norm", layer)
    kinds = (model.heads // model.kv * model.head_columns, model.head_columns, model.head_columns)
    for row in _linear(
        model, f"{at}.attention.qkv", (qkv, model.hidden), layer, split=0, bias=model.qkv_bias
    ):
        yield replace(row, fused=kinds) if len(row.shape) == 2 else row
    yield from _head_norms(model, f"{at}.attention", layer)
    yield from _linear(
        model, f"{at}.attention.out", (model.hidden, model.heads * model.head_columns), layer, split=1
    )
    yield from _norm(model, f"{at}.mlp.norm", layer)
    if model.family == "llama":
        # Gate and up side by side: [2, ffn, hidden], split along ffn.
        yield Parameter(f"{at}.mlp.up.weight", (2, model.ffn_width, model.hidden), layer, split=1)
    else:
        yield from _linear(model, f"{at}.mlp.up", (model.ffn_width, model.hidden), layer, split=0)
    yield from _linear(model, f"{at}.mlp.down", (model.hidden, model.ffn_width), layer, split=1)


def _head_norms(model: ModelShape, at: str, layer: int) -> Iterator[Parameter]:
    if model.qk_norm == "none":
        return
    for name, heads in (("query_norm", model.heads), ("key_norm", model.kv)):
        row = Parameter(f"{at}.{name}.weight", (model.head_columns,), layer, decay=False, initial="ones")
        if model.qk_norm == "each_head":
            yield replace(row, per_head=True)
        else:  # a weight for every column, which are split as the heads are
            yield replace(row, shape=(heads * model.head_columns,), split=0)


def _linear(
    model: ModelShape, name: str, shape: tuple[int, int], layer: int, *, split: int, bias: bool = False
) -> Iterator[Parameter]:
    column = split == 0
    yield Parameter(f"{name}.weight", shape, layer, split, initial="normal" if column else "residual")
    if bias or model.family == "gpt":
        # A row-split layer adds its bias once, after the sum over tensor ranks: whole, and per position.
        yield Parameter(
            f"{name}.bias",
            shape[:1],
            layer,
            split=0 if column else None,
            decay=False,
            initial="zeros",
            per_position=not column,
        )


def _norm(model: ModelShape, name: str, owner: Owner) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (model.hidden,), owner, decay=False, initial="ones", per_position=True)
    if model.family == "gpt":
        yield Parameter(
            f"{name}.bias", (model.hidden,), owner, decay=False, initial="zeros", per_position=True
        )
