"""Safetensors files, written one tensor at a time, so that no more than one has to be in memory."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trivium.checkpoint.durable import Written, never, read_back, write_blocks
from trivium.checkpoint.format import DTYPE_NAMES
from trivium.checkpoint.verify import NOT_FINITE
from trivium.errors import CheckpointError
from trivium.plan.parameters import Box
from trivium.provenance import unheard

TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, dtype) for name, dtype in DTYPE_NAMES.items()}
DTYPES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


class Entry(NamedTuple):
    """A tensor of a file: its key, and a function that returns its values when they are written."""

    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    values: Callable[[], torch.Tensor]

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class Part(NamedTuple):
    """A box of the unsplit tensor `name` of `shape`, and a function that returns its values when they are written."""

    name: str
    shape: tuple[int, ...]
    box: Box
    dtype: torch.dtype
    values: Callable[[], torch.Tensor]

    @property
    def bytes(self) -> int:
        return self.box.elements * self.dtype.itemsize


def write_parts(
    folder: Path,
    number: int,
    parts: Sequence[Part],
    cancelled: Callable[[], bool] = never,
    alive: Callable[[], None] = unheard,
    *,
    read_back: bool = True,
) -> dict[str, Any]:
    """Write file `number` of a checkpoint; returns its description for `manifest_of`. read_back: whether to read the
    file again and compare."""
    file, entries = f"pieces-{number:05d}.safetensors", entries_of(parts)
    written = write_pieces(folder / file, entries, cancelled=cancelled, alive=alive, reads_back=read_back)
    return described(file, written, parts)


def entries_of(parts: Sequence[Part]) -> list[Entry]:
    """Return parts as the entries of a file."""
    return [Entry(f"{n}:{part.name}", part.dtype, part.box.shape, part.values) for n, part in enumerate(parts)]


def described(file: str, written: Written, parts: Sequence[Part]) -> dict[str, Any]:
    """Return the description of a file of these parts for `manifest_of`."""
    pieces = [
        {
            "name": part.name,
            "dtype": DTYPES[part.dtype],
            "shape": part.shape,
            "piece": {"file": file, "key": entry.key, "start": part.box.start, "shape": part.box.shape},
        }
        for entry, part in zip(entries_of(parts), parts, strict=True)
    ]
    return {"file": file, **written._asdict(), "pieces": pieces}


def write_pieces(
    path: Path,
    entries: Sequence[Entry],
    *,
    about: dict[str, str] | None = None,
    cancelled: Callable[[], bool] = never,
    alive: Callable[[], None] = unheard,
    reads_back: bool = True,
) -> Written:
    """Write a safetensors file durably, and read it back unless that is not wanted.

    about: the file's metadata. alive: called after every block that was written or read back. Raises CheckpointError
    naming the first tensor that holds a NaN or an infinity, so that none is published.
    """
    written = write_blocks(path, blocks_of(entries, about), cancelled, alive)
    if reads_back:
        read_back(path, written, alive)
    return written


def blocks_of(entries: Sequence[Entry], about: dict[str, str] | None = None) -> Iterator[memoryview | bytes]:
    """Yield the content of a safetensors file. about, and what is raised: see `write_pieces`."""
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
    text += b" " * (-len(text) % 8)  # The format requires aligned data.
    yield len(text).to_bytes(8, "little")
    yield text
    for entry in entries:
        values = entry.values()
        if not is_finite(values):
            name = entry.key.rpartition(":")[2]
            raise CheckpointError(f"{name} {NOT_FINITE}, so that nothing was published")
        yield _bytes(values)


def is_finite(values: torch.Tensor) -> bool:
    """Whether no element is NaN or infinite.

    Both extremes of a tensor with a NaN are NaN. Computing them takes a tenth of the time of hashing; isfinite takes as
    long as hashing.
    """
    if not values.is_floating_point() or values.numel() == 0:
        return True
    return all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(values))


def _bytes(values: torch.Tensor) -> memoryview:
    # numpy has no bfloat16, but only the bytes matter.
    array: Any = values.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)
