"""Checkpoints at a URL: the same files as in a folder, without renaming, because object stores cannot rename.

Every file has at most FILE_BYTES and is named by its sha256, so that a save that resumes after an interruption sends
only what is missing. The manifest is written last, as one object, so that a step that has one is complete.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trivium.checkpoint.durable import Written
from trivium.checkpoint.durable import remove as remove_folder
from trivium.checkpoint.format import MANIFEST, manifest_of, manifest_text, step_of
from trivium.checkpoint.pieces import TORCH_DTYPES, Part, blocks_of, described, entries_of
from trivium.errors import CheckpointError
from trivium.stores.remote import Location, Remote
from trivium.untrusted import parse_json

FILE_BYTES = 64 << 20  # most bytes of tensors in a file, which is in memory while it is sent
_HEADER_GUESS = 1 << 16  # bytes of a file that are read first; longer headers take a second request
_DESCRIPTION = "part-{:05d}.json"


class InStore:
    """The files of a checkpoint that is being written to a URL. The methods are those of `save.OnDisk`."""

    def __init__(self, final: Remote) -> None:
        self._final = final

    def prepare(self, needed: int) -> None:
        """Do nothing: stores report no free space, and files that an interrupted save left are used."""

    def write(self, rank: int, parts: Sequence[Part], cancelled: Callable[[], bool], alive: Callable[[], None]) -> None:
        """Send a rank's pieces in files that are not there yet, then a description of them for the manifest."""
        files: list[dict[str, Any]] = []
        for group in _files_of(parts):
            if cancelled():
                raise CheckpointError(f"{self._final}: given up after {len(files)} files, as another rank failed")
            content = b"".join(blocks_of(entries_of(group)))
            written = Written(hashlib.sha256(content).hexdigest(), len(content))
            file = f"pieces-{rank:05d}-{written.sha256}.safetensors"
            if not (self._final / file).contains(content):
                (self._final / file).write(content)
            files.append(described(file, written, group))
            alive()
        (self._final / _DESCRIPTION.format(rank)).write(json.dumps(files).encode())

    def publish(self, about: dict[str, Any], ranks: int) -> None:
        """Write the manifest if the store has every file in its size; delete what belongs to no checkpoint."""
        names = [_DESCRIPTION.format(rank) for rank in range(ranks)]
        files = [file for name in names for file in parse_json((self._final / name).read())]
        held = self._final.sizes()
        for file in files:
            if held.get(file["file"]) != file["bytes"]:
                raise CheckpointError(
                    f"{self._final / file['file']} has {held.get(file['file'], 0)} bytes and should have "
                    f"{file['bytes']}: the store does not hold what was sent to it"
                )
        manifest = manifest_text(manifest_of(about, files))
        (self._final / MANIFEST).write(manifest.encode())
        self._final.delete(sorted(held.keys() - {MANIFEST} - {file["file"] for file in files}))

    def clear(self) -> None:
        """Do nothing: without a manifest there is no checkpoint, and the next save of this step uses the files."""


def remove(place: Location) -> None:
    """Delete a checkpoint so that its name never refers to a part of it: at a URL, the manifest first."""
    if isinstance(place, Path):
        remove_folder(place)
        return
    place.delete([MANIFEST])
    place.delete(sorted(place.sizes()))


def remove_unfinished(root: Remote, newest: str) -> None:
    """Delete the files of saves that were not finished before the checkpoint `newest`."""
    for place in root.folders():
        step = step_of(place.name)
        if step is not None and place.name < newest and not (place / MANIFEST).is_file():
            place.delete(sorted(place.sizes()))


def _files_of(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Yield parts by file: cut along their first axis, and joined up to FILE_BYTES."""
    group: list[Part] = []
    for part in (cut for whole in parts for cut in _cut(whole)):
        if group and sum(each.bytes for each in group) + part.bytes > FILE_BYTES:
            yield group
            group = []
        group.append(part)
    yield group


def _cut(part: Part) -> Iterator[Part]:
    """Yield a part in boxes of at most FILE_BYTES, or of one row each."""
    if part.bytes <= FILE_BYTES or not part.box.shape:
        yield part
        return
    first, *rest = part.box.shape
    rows = max(1, FILE_BYTES * first // part.bytes)
    for begin in range(0, first, rows):
        count = min(rows, first - begin)
        box = replace(part.box, start=(part.box.start[0] + begin, *part.box.start[1:]), shape=(count, *rest))
        yield part._replace(box=box, values=_rows(part, begin, count))


def _rows(part: Part, begin: int, count: int) -> Callable[[], torch.Tensor]:
    return lambda: part.values().reshape(part.box.shape)[begin : begin + count]


class RemoteFile:
    """A safetensors file at a URL, of which only the wanted rows are read. Its content is verified elsewhere."""

    def __init__(self, place: Remote) -> None:
        size = place.size()
        if size is None:
            raise CheckpointError(f"{place} is missing, but {MANIFEST} lists it; use an older checkpoint")
        start = place.read(0, min(size, _HEADER_GUESS))
        length = int.from_bytes(start[:8], "little")
        if 8 + length > size:
            raise CheckpointError(f"{place} is not a safetensors file; use an older checkpoint")
        self._place, self._data = place, 8 + length
        head = start if self._data <= len(start) else place.read(0, self._data)
        self._header: dict[str, Any] = parse_json(head[8 : self._data])

    def shape(self, key: str) -> list[int] | None:
        """Return the shape of a piece; None if the file has no such piece."""
        return self._header[key]["shape"] if key in self._header else None

    def read(self, key: str, region: tuple[slice, ...]) -> torch.Tensor:
        """Return a region of a piece; the rows that it spans are read."""
        entry = self._header[key]
        dtype, shape, (begin, end) = TORCH_DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        if region:
            row = (end - begin) // shape[0]
            begin, end = begin + region[0].start * row, begin + region[0].stop * row
            shape, region = [region[0].stop - region[0].start, *shape[1:]], (slice(None), *region[1:])
        data = self._place.read(self._data + begin, self._data + end)
        return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)[region]
