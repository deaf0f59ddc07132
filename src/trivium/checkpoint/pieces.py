"""Safetensors files, written one tensor at a time: no more than one is in memory unless the caller holds them."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trivium.checkpoint.durable import Written, never, read_back, write_blocks
from trivium.checkpoint.format import DTYPE_NAMES
from trivium.checkpoint.verify import NOT_FINITE
from trivium.errors import CheckpointError
from trivium.provenance import unheard

TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, dtype) for name, dtype in DTYPE_NAMES.items()}
DTYPES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


class Entry(NamedTuple):
    """A tensor of a file: its name in it, and how to get its values when their turn comes."""

    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    values: Callable[[], torch.Tensor]

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def write_pieces(
    path: Path,
    entries: Sequence[Entry],
    *,
    about: dict[str, str] | None = None,
    cancelled: Any = never,
    alive: Callable[[], None] = unheard,
) -> Written:
    """Write a safetensors file durably, and read it back. about: the file's own metadata; alive: called after every
    block that was written, or read back.

    Raises CheckpointError naming the first tensor that holds a NaN or an infinity: nothing of that kind is published.
    """
    header: dict[str, Any] = {"__metadata__": about} if about else {}
    offset = 0
    for entry in entries:
        header[entry.key] = {
            "dtype": DTYPES[entry.dtype],
            "shape": entry.shape,
            "data_offsets": [offset, offset + entry.bytes],
        }
        offset += entry.bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format wants the data aligned
    written = write_blocks(path, _blocks(text, entries), cancelled, alive)
    read_back(path, written, alive)
    return written


def _blocks(header: bytes, entries: Sequence[Entry]) -> Iterator[memoryview | bytes]:
    yield len(header).to_bytes(8, "little")
    yield header
    for entry in entries:
        values = entry.values()
        if not is_finite(values):
            name = entry.key.rpartition(":")[2]
            raise CheckpointError(f"{name} {NOT_FINITE}, so that nothing was published")
        yield _bytes(values)


def is_finite(values: torch.Tensor) -> bool:
    """Whether no element is NaN or infinite. Both extremes of a tensor that holds a NaN are NaN, and finding them takes
    one pass, a tenth of the time of hashing, where isfinite would take as long as that."""
    if not values.is_floating_point() or values.numel() == 0:
        return True
    return all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(values))


def _bytes(values: torch.Tensor) -> memoryview:
    # numpy has no bfloat16; the bytes are the same under any dtype of the same width.
    array: Any = values.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)
