"""Adapters put into the weights of their layers, and taken out again."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from trivium.checkpoint.base import BASE_HASH
from trivium.checkpoint.format import STRUCTURE
from trivium.checkpoint.load import Checkpoint
from trivium.checkpoint.pieces import TORCH_DTYPES, Part
from trivium.checkpoint.reshard import parts_of, write_whole
from trivium.errors import CheckpointError, ConfigError
from trivium.plan.adapters import Adapted
from trivium.plan.parameters import Box, parameters

Tensor = torch.Tensor
Change = Callable[[Adapted, Tensor, dict[str, Tensor]], Tensor]  # (adapter, weight, parameters) -> weight


def merge(source: Checkpoint, root: Path) -> Path:
    """Write a checkpoint of weights that have the adapters of `source` in them; returns its directory."""
    return _changed(source, source, root, lambda each, weight, added: each.adapter.merged(weight, added))


def unmerge(source: Checkpoint, adapters: Checkpoint, root: Path) -> Path:
    """Write the base of which `source` is the merged model; returns its directory. adapters: the checkpoint that was
    merged. Weights are those of the base to rounding."""
    own = adapters.plan.model.model_copy(update={"adapters": ()})
    if source.plan.model.of_weights() != own.of_weights():
        raise ConfigError(
            f"{source.directory} is no merged model of {adapters.directory}: their plan.model differ; name the "
            f"checkpoint that `trivium checkpoint merge` wrote of it"
        )
    unchanged = (row.name for row in parameters(own) if row.name not in adapted_layers(adapters))
    if other := next((name for name in unchanged if not torch.equal(whole(source, name), whole(adapters, name))), None):
        raise CheckpointError(
            f"{source.directory} is no merged model of {adapters.directory}: {other}, which has no adapter, differs; "
            f"name the checkpoint that `trivium checkpoint merge` wrote of it"
        )
    return _changed(source, adapters, root, lambda each, weight, added: each.adapter.unmerged(weight, added))


def adapted_layers(source: Checkpoint) -> dict[str, tuple[int, Adapted]]:
    """Return the adapted linear layers of a checkpoint by the names of their weights, each with its layer's number.

    Raises ConfigError if there are none.
    """
    layers = enumerate(source.plan.model.each_layer)
    found = {f"layers.{n}.{each.base.name}": (n, each) for n, layer in layers for each in layer.adapted or ()}
    if not found:
        raise ConfigError(f"{source.directory} has no adapters (plan.model.adapters is empty); name one that has")
    return found


def added_tensors(source: Checkpoint, number: int, each: Adapted) -> dict[str, Tensor]:
    """Return the unsplit parameters of an adapter by their own names."""
    return {row.name.rpartition(".")[2]: whole(source, f"layers.{number}.{row.name}") for row in each.rows}


def whole(source: Checkpoint, name: str) -> Tensor:
    """Return the unsplit weights of a parameter, in the dtype in which they are stored."""
    tensor = source.manifest["tensors"][f"weights/{name}"]
    shape = tuple(tensor["shape"])
    return source.read(f"weights/{name}", Box(tuple(0 for _ in shape), shape), TORCH_DTYPES[tensor["dtype"]])


def _changed(source: Checkpoint, adapters: Checkpoint, root: Path, change: Change) -> Path:
    """Write the weights of `source` without adapters, those of adapted layers changed in fp32 or wider."""
    adapted = adapted_layers(adapters)

    def values(name: str) -> Tensor:
        number, each = adapted[name]
        weight = whole(source, name)
        wide = torch.promote_types(weight.dtype, torch.float32)
        added = {key: x.to(wide) for key, x in added_tensors(adapters, number, each).items()}
        return change(each, weight.to(wide), added).to(weight.dtype)

    parts: list[Part] = []
    for row in parameters(source.plan.model.model_copy(update={"adapters": ()})):
        name = f"weights/{row.name}"
        if row.name in adapted:
            dtype = TORCH_DTYPES[source.manifest["tensors"][name]["dtype"]]
            box = Box(tuple(0 for _ in row.shape), row.shape)
            parts.append(Part(name, row.shape, box, dtype, partial(values, row.name)))
        else:
            parts += parts_of(source, name)
    about = {k: v for k, v in source.manifest.items() if k not in (*STRUCTURE, BASE_HASH)}
    about["plan"] = {**about["plan"], "model": {**about["plan"]["model"], "adapters": []}}
    return write_whole(root, source.step, about, [parts])
