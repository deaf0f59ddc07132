"""Map each parameter to its Hugging Face tensors and their layout."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from trivium.families.common.family import Family, Names
from trivium.interchange.settings import family_of
from trivium.plan.layers.part import Parameter
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import parameters

Tensors = tuple[torch.Tensor, ...]
WEIGHTS, INDEX = (
    "model.safetensors",
    "model.safetensors.index.json",
)  # all weights in one file, or the index of several


class Twin(NamedTuple):
    """A parameter of ours and its tensors there; `apart` and `together` turn one into the other."""

    ours: Parameter
    theirs: tuple[str, ...]
    apart: Callable[[torch.Tensor], Tensors]
    together: Callable[[Tensors], torch.Tensor]


def twins(model: ModelShape, family: Family | None = None) -> Iterator[Twin]:
    """Yield every parameter with its Hugging Face tensors, in the order of the parameter table.

    family: the tensors' family; by default the one of the export.
    """
    names = (family or family_of(model)).names(model)
    return (_twin(row, names) for row in parameters(model))


def _twin(row: Parameter, names: Names) -> Twin:
    if isinstance(row.owner, str):
        return _alike(row, names.ends[row.name], transposed=False)
    module, _, kind = row.name.split(".", 2)[2].rpartition(".")
    theirs = tuple(f"{names.layer.format(row.owner)}.{name}.{kind}" for name in names.modules[module])
    transposed = names.transposed and len(row.shape) > 1
    fused = row.fused
    if fused is None or (len(theirs) == 1 and module not in names.joined):
        return _alike(row, theirs[0], transposed=transposed)

    def joined(pieces: Tensors) -> torch.Tensor:
        return torch.cat(fused.viewed(pieces), dim=fused.along).reshape(row.shape)

    if module not in names.joined:
        return Twin(row, theirs, fused.pieces, joined)
    sizes = [len(piece) for piece in fused.pieces(torch.empty(row.shape, device="meta"))]
    return Twin(
        row,
        theirs,
        lambda w: (_turned(torch.cat(fused.pieces(w)), transposed),),
        lambda there: joined(torch.split(_turned(there[0], transposed), sizes)),
    )


def _alike(row: Parameter, theirs: str, *, transposed: bool) -> Twin:
    return Twin(row, (theirs,), lambda w: (_turned(w, transposed),), lambda there: _turned(there[0], transposed))


def _turned(w: torch.Tensor, transposed: bool) -> torch.Tensor:
    return w.T.contiguous() if transposed else w
