"""Write a full checkpoint from one process, piece by piece, so that little of it is in memory.

Any layout reads any checkpoint. Another number of files helps to move it, or to read it from many disks.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from math import ceil, prod
from pathlib import Path
from typing import Any

from trivium.checkpoint.durable import check_room, explained
from trivium.checkpoint.format import STRUCTURE, boxes_of_range, step_name
from trivium.checkpoint.load import Checkpoint
from trivium.checkpoint.pieces import TORCH_DTYPES, Part, write_parts
from trivium.checkpoint.save import write_manifest
from trivium.errors import CheckpointError, ConfigError
from trivium.provenance import publishing_new

ANOTHER = "choose another --to"
PIECE_BYTES = 64 << 20  # largest part of a tensor in memory
MAX_FILES = 1 << 16
_MAX_ITEM_BYTES = max(dtype.itemsize for dtype in TORCH_DTYPES.values())


def reshard(source: Checkpoint, root: Path, *, files: int) -> Path:
    """Write `source` into `root` as `files` files of equal size; returns the published directory.

    Raises ConfigError for less than one file or more than the tensors can fill, and if `root` contains that step
    already; CheckpointError if it cannot be written.
    """
    final = root / step_name(source.step)
    most = min(MAX_FILES, max(1, _bytes(source) // _MAX_ITEM_BYTES))  # at least one element per file
    if not 1 <= files <= most:
        raise ConfigError(f"--files ({files}) must be 1 to {most} for {source.directory}")
    if final.exists():
        raise ConfigError(f"{final} exists already; choose another --to, or remove it first")
    about = {k: v for k, v in source.manifest.items() if k not in STRUCTURE}
    return write_whole(root, source.step, about, _shares(source, files))


def write_whole(root: Path, step: int, about: dict[str, Any], shares: Sequence[Sequence[Part]]) -> Path:
    """Publish a checkpoint, one file for each share.

    Raises CheckpointError if writing fails or a value is not finite, and what `publishing_new` raises if the name
    exists or another process is writing it.
    """
    final = root / step_name(step)
    needed = sum(part.bytes for share in shares for part in share)
    try:
        root.mkdir(parents=True, exist_ok=True)
        check_room(root, needed, ANOTHER)
        with publishing_new(final, f"{ANOTHER}, or remove it first") as partial:
            files = [write_parts(partial, number, share) for number, share in enumerate(shares)]
            write_manifest(partial, {"step": step, **about}, files)
    except (OSError, CheckpointError) as error:
        raise CheckpointError(f"{final} was not written: {explained(error, root, needed, ANOTHER)}") from None
    return final


def parts_of(source: Checkpoint, name: str, borders: Iterable[int] = ()) -> list[Part]:
    """Return a tensor as parts of at most PIECE_BYTES, in order. None crosses a border, which is an element's index in
    the flattened tensor."""
    tensor = source.manifest["tensors"][name]
    shape, dtype = tuple(tensor["shape"]), TORCH_DTYPES[tensor["dtype"]]
    size, step = prod(shape), max(1, PIECE_BYTES // dtype.itemsize)
    ends = sorted({*range(step, size, step), *borders, size})
    boxes = [b.box for at, end in pairwise((0, *ends)) for b in boxes_of_range(at, end, shape)]
    return [Part(name, shape, box, dtype, lambda box=box: source.read(name, box, dtype)) for box in boxes]


def _shares(source: Checkpoint, files: int) -> list[list[Part]]:
    """Return the parts of each file. The files differ by at most one element in size."""
    total, done = _bytes(source), 0
    shares: list[list[Part]] = [[] for _ in range(files)]
    for name in source.names:
        for part in parts_of(source, name, _borders(source, name, done, Fraction(total, files))):
            shares[done * files // total].append(part)
            done += part.bytes
    return shares


def _borders(source: Checkpoint, name: str, begin: int, share: Fraction) -> list[int]:
    """Return the borders of a tensor: its elements at which another share of all bytes begins. begin: the number of
    bytes before the tensor."""
    item = TORCH_DTYPES[source.manifest["tensors"][name]["dtype"]].itemsize
    first, behind = begin // share + 1, ceil((begin + _bytes_of(source, name)) / share)
    return [ceil((number * share - begin) / item) for number in range(first, behind)]


def _bytes(source: Checkpoint) -> int:
    return sum(_bytes_of(source, name) for name in source.names)


def _bytes_of(source: Checkpoint, name: str) -> int:
    tensor = source.manifest["tensors"][name]
    return int(prod(tensor["shape"])) * TORCH_DTYPES[tensor["dtype"]].itemsize
