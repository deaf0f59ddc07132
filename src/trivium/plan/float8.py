"""Linear layers whose products have 8-bit operands: how operands are scaled, and which layers keep the weights' dtype.

Recipes. `tensor`: one scale for each operand. `delayed`: the same from the largest values of earlier steps. `row`: one
scale for each row of the reduction (torchao's rowwise). `block`: one for `block` numbers along the reduction, and for
`block` x `block` weights (DeepSeek-V3, arXiv 2412.19437, section 3.3).
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from math import gcd
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from trivium.config import Config
from trivium.plan.adapters import is_added
from trivium.plan.layers.part import Parameter

Recipe = Literal["tensor", "delayed", "row", "block"]


class Float8(Config):
    """Products of linear layers in blocks with operands in 8 bits, summed in fp32. Embedding, head, norms, attention
    and routers always keep the dtype of the weights."""

    recipe: Recipe = "tensor"  # what shares one scale
    gradients: Literal["e5m2", "e4m3"] = "e5m2"  # format of gradients; weights and activations are in e4m3
    # linear layers in the dtype of the weights: `first` and `last` layer, or patterns such as layers.*.mlp.down
    keep: tuple[str, ...] = ("first", "last")
    weight_gradients: bool = True  # whether products that give weight gradients have 8-bit operands too
    power_of_two: bool = False  # round scales down to powers of two, which scale without rounding
    block: Annotated[int, Field(ge=1)] = 128  # numbers in a block of recipe 'block'
    history: Annotated[int, Field(ge=1, le=1024)] = 16  # steps whose largest values recipe 'delayed' uses
    margin: Annotated[int, Field(ge=0, le=16)] = 0  # powers of two between the scaled and the largest value
    gathered: bool = False  # gather the weights of these layers in 8 bits; no effect below ZeRO stage 3

    def keeps(self, name: str, layers: int) -> bool:
        """Return whether the linear layer of a weight keeps the dtype of the weights."""
        return any(fnmatchcase(name.removesuffix(".weight"), _pattern(each, layers)) for each in self.keep)


def is_of_linear(p: Parameter) -> bool:
    """Return whether a parameter is the weight of a linear layer in a block, an expert's too. Those of routers and
    adapters are not: every tensor rank holds the whole of a router, and computes the same with it."""
    splits = p.split is not None or p.per_position
    return isinstance(p.owner, int) and len(p.shape) > 1 and splits and not is_added(p)


def scaled_weights(float8: Float8 | None, rows: Sequence[Parameter], layers: int) -> list[Parameter]:
    """Return those of some parameters with which products are computed in 8 bits. layers: of the model."""
    if float8 is None:
        return []
    return [p for p in rows if is_of_linear(p) and not float8.keeps(p.name, layers)]


def keep_problems(float8: Float8, rows: Sequence[Parameter], layers: int) -> Iterator[str]:
    """Yield the patterns that match nothing, and that all layers are kept. rows: the parameters of the model."""
    linear = [p.name.removesuffix(".weight") for p in rows if is_of_linear(p)]
    for each in float8.keep:
        if not any(fnmatchcase(name, _pattern(each, layers)) for name in linear):
            yield (
                f"plan.precision.float8.keep has '{each}', which matches no linear layer; name 'first', 'last' or a "
                f"pattern of names such as {linear[0]}"
            )
    if not scaled_weights(float8, rows, layers):
        yield (
            f"plan.precision.float8.keep {list(float8.keep)} keeps every linear layer of the {layers} layers; remove "
            f"an entry, or set plan.precision.float8 to null"
        )


class Divided(NamedTuple):
    """How a plan divides operands: tensor, context and expert ranks, neighbouring positions of a sequence on a context
    rank (own_positions: on a tensor rank outside of its regions), sequences of a micro-batch, and chunks of
    row-parallel products."""

    tensor: int
    context: int
    expert: int
    positions: int
    own_positions: int
    micro: int
    row_chunks: int

    @classmethod
    def of(cls, here: int, *, zigzag: bool, sequence_parallel: bool, **more: int) -> "Divided":
        """Return the division of sequences of which a context rank has `here` positions, in two pieces if `zigzag`."""
        positions = here // 2 if zigzag else here
        own = gcd(positions, here // more["tensor"]) if sequence_parallel else positions
        return cls(positions=positions, own_positions=own, **more)


def division_problems(float8: Float8, rows: Sequence[Parameter], layers: int, at: Divided) -> Iterator[str]:
    """Yield the divisions with which scales would depend on the layout. rows: the parameters of the model."""
    field, scaled = "plan.precision.float8", scaled_weights(float8, rows, layers)
    if float8.recipe in ("tensor", "delayed") and at.row_chunks > 1 and at.tensor > 1:
        yield (
            f"{field}.recipe '{float8.recipe}' has one scale for each operand, and plan.row_chunks ({at.row_chunks}) "
            f"multiplies chunks of it before the rest is there; set plan.row_chunks to 1, or the recipe to row"
        )
    by_token = float8.recipe in ("row", "block") and not float8.weight_gradients
    divides = at.context > 1 and (at.expert > 1 or float8.recipe == "block")
    if divides and not by_token and any(p.by_expert for p in scaled):
        yield (
            f"{field}.recipe '{float8.recipe}' scales tokens of an expert together, which plan.layout.context "
            f"({at.context}) and plan.layout.expert ({at.expert}) divide in another way; set plan.layout.context to 1, "
            f"recipe row with {field}.weight_gradients false, or add layers.*.mlp.experts.* to {field}.keep"
        )
    if float8.recipe == "block":
        yield from _block_problems(float8, scaled, at)


def _block_problems(float8: Float8, scaled: Sequence[Parameter], at: Divided) -> Iterator[str]:
    for p in scaled if at.tensor > 1 else ():
        if p.split is not None and p.shape[p.split] // at.tensor % float8.block:
            yield (
                f"{p.name} has {p.shape[p.split] // at.tensor} of {p.shape[p.split]} rows or columns on each of "
                f"{at.tensor} tensor ranks, no multiple of plan.precision.float8.block ({float8.block}): a block would "
                f"lie on two ranks; lower plan.layout.tensor, change the sizes of the model, or add "
                f"'{p.name.removesuffix('.weight')}' to plan.precision.float8.keep"
            )
            break
    outer = any(p.split is None for p in scaled)
    positions = at.own_positions if outer else at.positions
    divides = at.context > 1 or (outer and at.own_positions < at.positions)
    if float8.weight_gradients and divides and positions * at.micro % float8.block:
        yield (
            f"a rank has {positions} neighbouring positions of {at.micro} sequences (plan.batch.micro), no multiple of "
            f"plan.precision.float8.block ({float8.block}) tokens: a block of the sum of weight gradients would lie on "
            f"two ranks; lower plan.layout.context ({at.context}), change plan.batch.micro, or set "
            f"plan.precision.float8.weight_gradients to false"
        )


def _pattern(entry: str, layers: int) -> str:
    return {"first": "layers.0.*", "last": f"layers.{layers - 1}.*"}.get(entry, entry)
