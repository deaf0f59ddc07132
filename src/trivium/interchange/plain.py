"""Logits of an exported folder, read and computed as Hugging Face's architectures define them.

It shares nothing with the engine or the exporter, whose work it checks.
"""

from pathlib import Path

import torch
from safetensors import safe_open

from trivium.families.common.family import Tensors, families
from trivium.untrusted import read_json

Tensor = torch.Tensor


def logits(folder: Path, tokens: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """tokens [B, S] -> logits [B, S, vocabulary], computed in `dtype`, whatever that of the files."""
    config = read_json(folder / "config.json")
    (architecture,) = config["architectures"]
    with torch.no_grad():
        return families()[architecture].logits(config, _tensors(folder, dtype), tokens)


def _tensors(folder: Path, dtype: torch.dtype) -> Tensors:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        where = read_json(index)["weight_map"]
    else:
        with safe_open(str(folder / "model.safetensors"), framework="pt") as file:
            where = dict.fromkeys(file.keys(), "model.safetensors")

    def get(name: str) -> Tensor:
        with safe_open(str(folder / where[name]), framework="pt") as file:
            found: Tensor = file.get_tensor(name)
        return found.to(dtype)

    return Tensors(get, frozenset(where))
