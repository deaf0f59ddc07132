"""The base of adapters: the weights beside which they were trained, known by their hash."""

import hashlib

import torch

from trivium.checkpoint.load import Checkpoint
from trivium.checkpoint.reshard import parts_of
from trivium.plan.parameters import parameters

BASE_HASH = "base_sha256"  # in the manifest of a checkpoint with adapters, and beside the adapters of a PEFT folder


def base_sha256(source: Checkpoint) -> str:
    """Return the hash of the weights beside which the adapters of a checkpoint were trained; without adapters, that of
    its weights. It depends on no layout, and on the dtype only where that rounds."""
    model = source.plan.model
    if model.adapters and BASE_HASH in source.manifest:
        return str(source.manifest[BASE_HASH])
    digest = hashlib.sha256()
    for row in parameters(model.model_copy(update={"adapters": ()})):
        name = f"weights/{row.name}"
        digest.update(f"{row.name} {row.shape}\n".encode())
        wide = torch.float64 if source.manifest["tensors"][name]["dtype"] == "F64" else torch.float32
        for part in parts_of(source, name):
            digest.update(part.values().to(wide).contiguous().numpy().data)
    return digest.hexdigest()
