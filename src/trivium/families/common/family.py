"""The description of a family, and the lookup of families.

Legend: B sequences, S positions, V vocabulary.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

import trivium.families as package
from trivium.plan.model_shape import ModelShape

Config = Mapping[str, Any]  # a config.json
Tree = dict[str, Any]
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Tensors(NamedTuple):
    """The tensors of a folder: `get` returns one by its name, and `names` are all."""

    get: Callable[[str], torch.Tensor]
    names: frozenset[str]


class Names(NamedTuple):
    """Names of tensors by those of our parameters.

    prefix: of every tensor but the head's. layer: what a layer's tensors begin with, with {} for its number. ends:
    full names outside the layers. modules: of a layer's modules, below `layer`; several where we store several
    matrices as one parameter, and with {} for the number of an expert. joined: modules of which theirs stores queries
    of all heads, then keys, then values, in one tensor. transposed: whether matrices are stored [inputs, outputs].
    kinds: last names of tensors that differ from ours, by the names of our parameters.
    """

    prefix: str
    layer: str
    ends: Mapping[str, str]
    modules: Mapping[str, tuple[str, ...]]
    joined: tuple[str, ...] = ()
    transposed: bool = False
    kinds: Mapping[str, str] = MappingProxyType({})


class Family(NamedTuple):
    """An architecture of Hugging Face.

    architecture: its name in config.json. settings: those of our models that it decides. sizes: fields that config.json
    must give. must: fields that may have these values only; the first is the default of transformers. unsaid: other
    defaults of transformers. tied: whether the head is tied where config.json does not say.
    free: settings that `read` and `write` convert. Those that only other families decide or convert have their
    defaults. differs: settings besides these in which its layers may differ.
    besides: numbers of layers in the files that are no part of the model, by its config.json with the defaults of
    `unsaid`; an import leaves them out, and says so.
    read: settings of a model from a config.json (the second argument names the file in messages; raises DataError).
    write: fields of config.json for a model; raises ConfigError where they cannot say what the model computes.
    names: of its tensors, for a model. can_say: whether config.json can say which layers have a window.
    rank: of several families that compute the same, the lowest is exported.
    logits: tokens [B, S] -> logits [B, S, V] of a folder, from the definition of the architecture alone.
    """

    architecture: str
    settings: Mapping[str, Any]
    sizes: tuple[str, ...]
    must: Mapping[str, tuple[Any, ...]]
    read: Callable[[Config, str], Tree]
    write: Callable[[ModelShape], Tree]
    names: Callable[[ModelShape], Names]
    logits: Callable[[Config, Tensors, torch.Tensor], torch.Tensor]
    can_say: Callable[[ModelShape], bool] = lambda model: not has_windows(model)
    unsaid: Mapping[str, Any] = NOTHING
    tied: bool = False
    rank: int = 0
    free: tuple[str, ...] = ()
    differs: tuple[str, ...] = ("window",)
    besides: Callable[[Config], range] = lambda config: range(0)


@cache
def families() -> Mapping[str, Family]:
    """Every family, by the name of its architecture."""
    files = sorted(info.name for info in pkgutil.iter_modules(package.__path__) if not info.ispkg)
    found = (importlib.import_module(f"{package.__name__}.{name}").FAMILY for name in files)
    return MappingProxyType({family.architecture: family for family in found})


def has_windows(model: ModelShape) -> bool:
    """Whether any layer of a model has a window."""
    return any(model.form_of(n).window is not None for n in range(model.layers))
