"""Write a whole checkpoint from one process, a piece at a time: whatever its size, little of it is in memory.

Any layout reads any checkpoint as it is. Other files are wanted to move it, or to read it from many disks.
"""

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from math import ceil, prod
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trivium.checkpoint.durable import check_room, explained
from trivium.checkpoint.format import STRUCTURE, boxes_of_range, step_name
from trivium.checkpoint.load import Checkpoint
from trivium.checkpoint.pieces import DTYPES, TORCH_DTYPES, Entry, write_pieces
from trivium.checkpoint.save import write_manifest
from trivium.errors import CheckpointError, ConfigError
from trivium.plan.parameters import Box
from trivium.provenance import publishing_new

ANOTHER = "choose another --to"
PIECE_BYTES = 64 << 20  # the most of a tensor that is in memory at once
MOST_FILES = 1 << 16
_WIDEST = max(dtype.itemsize for dtype in TORCH_DTYPES.values())


class Part(NamedTuple):
    """A box of the unsplit tensor `name` of `shape`, and how to get its values when their turn comes."""

    name: str
    shape: tuple[int, ...]
    box: Box
    dtype: torch.dtype
    values: Callable[[], torch.Tensor]

    @property
    def bytes(self) -> int:
        return self.box.elements * self.dtype.itemsize


def reshard(source: Checkpoint, root: Path, *, files: int) -> Path:
    """Write `source` into `root` as `files` files of equal size; returns the published directory.

    Raises ConfigError for fewer files than one or more than it can fill, and when `root` holds that step already,
    CheckpointError when it cannot be written.
    """
    final = root / step_name(source.step)
    most = min(MOST_FILES, max(1, _bytes(source) // _WIDEST))  # something for each
    if not 1 <= files <= most:
        raise ConfigError(f"--files ({files}) must be 1 to {most} for {source.directory}")
    if final.exists():
        raise ConfigError(f"{final} exists already; choose another --to, or remove it first")
    about = {k: v for k, v in source.manifest.items() if k not in STRUCTURE}
    return write_whole(root, source.step, about, _shares(source, files))


def write_whole(root: Path, step: int, about: dict[str, Any], shares: Sequence[Sequence[Part]]) -> Path:
    """Publish a checkpoint of these parts, one file for each share; CheckpointError when that fails, or a value is not
    finite, and what `publishing_new` raises where the name is taken or another process writes it."""
    final = root / step_name(step)
    needed = sum(part.bytes for share in shares for part in share)
    try:
        root.mkdir(parents=True, exist_ok=True)
        check_room(root, needed, ANOTHER)
        with publishing_new(final, f"{ANOTHER}, or remove it first") as partial:
            notes = [_write(partial, number, share) for number, share in enumerate(shares)]
            write_manifest(partial, {"step": step, **about}, notes)
    except (OSError, CheckpointError) as error:
        raise CheckpointError(f"{final} was not written: {explained(error, root, needed, ANOTHER)}") from None
    return final


def _write(folder: Path, number: int, share: Sequence[Part]) -> dict[str, Any]:
    file = f"pieces-{number:05d}.safetensors"
    keys = [f"{n}:{part.name}" for n, part in enumerate(share)]
    entries = [Entry(k, p.dtype, p.box.shape, p.values) for k, p in zip(keys, share, strict=True)]
    written = write_pieces(folder / file, entries)
    pieces = [
        {
            "name": p.name,
            "dtype": DTYPES[p.dtype],
            "shape": p.shape,
            "piece": {"file": file, "key": k, "start": p.box.start, "shape": p.box.shape},
        }
        for k, p in zip(keys, share, strict=True)
    ]
    return {"file": file, **written._asdict(), "pieces": pieces}


def parts_of(source: Checkpoint, name: str, borders: Iterable[int] = ()) -> list[Part]:
    """A tensor as parts of at most PIECE_BYTES, in order, none of them across a border: an element of it flattened."""
    tensor = source.manifest["tensors"][name]
    shape, dtype = tuple(tensor["shape"]), TORCH_DTYPES[tensor["dtype"]]
    size, step = prod(shape), max(1, PIECE_BYTES // dtype.itemsize)
    ends = sorted({*range(step, size, step), *borders, size})
    boxes = [b.box for at, end in pairwise((0, *ends)) for b in boxes_of_range(at, end, shape)]
    return [
        Part(name, shape, box, dtype, lambda box=box: source.read(name, box, dtype))  # type: ignore[misc]
        for box in boxes
    ]


def _shares(source: Checkpoint, files: int) -> list[list[Part]]:
    """The parts of all tensors, cut so that every file gets as many bytes, but for one element."""
    total, done = _bytes(source), 0
    shares: list[list[Part]] = [[] for _ in range(files)]
    for name in source.names:
        for part in parts_of(source, name, _borders(source, name, done, Fraction(total, files))):
            shares[done * files // total].append(part)
            done += part.bytes
    return shares


def _borders(source: Checkpoint, name: str, begin: int, share: Fraction) -> list[int]:
    """The elements of a tensor, which begins at this byte of all, that are the first of another share of bytes."""
    item = TORCH_DTYPES[source.manifest["tensors"][name]["dtype"]].itemsize
    first, behind = begin // share + 1, ceil((begin + _bytes_of(source, name)) / share)
    return [ceil((number * share - begin) / item) for number in range(first, behind)]


def _bytes(source: Checkpoint) -> int:
    return sum(_bytes_of(source, name) for name in source.names)


def _bytes_of(source: Checkpoint, name: str) -> int:
    tensor = source.manifest["tensors"][name]
    return int(prod(tensor["shape"])) * TORCH_DTYPES[tensor["dtype"]].itemsize
