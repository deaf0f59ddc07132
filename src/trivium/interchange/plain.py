"""Logits of an exported folder, computed as the Hugging Face architectures define them.

This verifies the engine and the exporter, so it shares no code with them.
"""

from pathlib import Path

import torch
from safetensors import safe_open

from trivium.families.common.family import Tensors, families
from trivium.untrusted import read_json

Tensor = torch.Tensor


def logits(folder: Path, tokens: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Compute logits [B, S, vocabulary] of tokens [B, S] in `dtype`, whatever the files' dtype is."""
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
