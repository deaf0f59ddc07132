"""Token shards as Megatron-LM reads and writes them: `PREFIX.bin` holds ids, `PREFIX.idx` says where texts start.

    .idx, little-endian: magic b"MMIDIDX\\0\\0" · version uint64 = 1 · dtype code uint8 · sequences S uint64 ·
    document marks D uint64 · length of each sequence int32[S] · byte offset of each sequence int64[S] ·
    first sequence of each document, and S, int64[D]
    .bin: the ids of all sequences, one after another

Format: Megatron-LM, megatron/core/datasets/indexed_dataset.py. We write one sequence per document.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trivium.errors import DataError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
_HEADER = struct.Struct("<9sQBQQ")
_LONGEST = 2**31 - 1  # tokens of a document: the index counts them in 32 bits
_REDO = "restore it, or make the tokens again (`trivium tokenize`, or the program that wrote them)"


@dataclass(frozen=True, slots=True)
class TokenShard:
    """One shard, mapped from disk, never copied: document i is `shard[i]`."""

    prefix: Path
    tokens: NDArray[np.integer]  # every id, in order
    document_starts: NDArray[np.int64]  # [documents + 1], positions in `tokens`
    first: int | None = (
        None  # in a pair made elsewhere: the number of its first document, as they have no other name
    )

    @staticmethod
    def open(prefix: Path) -> "TokenShard":
        """Map a shard; DataError when `.idx` or `.bin` is missing, damaged, or they disagree."""
        idx, bin_ = files_of(prefix)
        dtype, lengths, documents = _read_index(idx)
        ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        expected = int(ends[-1]) * dtype.itemsize
        if not bin_.is_file():
            raise DataError(f"{_told(bin_)} is missing, but {idx.name} describes it; {_REDO}")
        if bin_.stat().st_size != expected:
            raise DataError(
                f"{bin_} has {bin_.stat().st_size} bytes, but {idx.name} says {ends[-1]} tokens of "
                f"{dtype.itemsize} bytes = {expected}; {_REDO}"
            )
        # An empty file cannot be mapped.
        tokens = np.memmap(bin_, dtype=dtype, mode="r") if expected else np.empty(0, dtype=dtype)
        return TokenShard(prefix, tokens, ends[documents])

    def part(self, first: int, documents: int) -> "TokenShard":
        """So many documents from the first on, known by their numbers; fewer where there are not so many."""
        starts = self.document_starts[min(first, len(self)) : first + documents + 1]
        return TokenShard(self.prefix, self.tokens[starts[0] : starts[-1]], starts - starts[0], first)

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.document_starts) - 1

    def __getitem__(self, index: int) -> NDArray[np.integer]:
        """The ids of one document."""
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} of {self.prefix}: it has {len(self)} documents")
        return self.tokens[self.document_starts[index] : self.document_starts[index + 1]]


def files_of(prefix: Path) -> tuple[Path, Path]:
    """`PREFIX.idx` and `PREFIX.bin`; a dot in the prefix stays."""
    return prefix.with_name(prefix.name + ".idx"), prefix.with_name(prefix.name + ".bin")


def _told(path: Path) -> str:
    """A path, and what it links to."""
    return f"{path} (a link to {path.readlink()})" if path.is_symlink() else str(path)


class ShardWriter:
    """Appends documents to a shard; `close` writes the index, without which it is not a shard.

    No file stays open between appends: a corpus may have more sources than a process may have files.
    """

    def __init__(self, prefix: Path, *, dtype: str) -> None:
        self.prefix = prefix
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self._code = next(code for code, known in _dtypes().items() if known == self.dtype)
        self._lengths: list[NDArray[np.int64]] = []
        self._path = files_of(prefix)[1]
        self._path.write_bytes(b"")

    def append(self, ids: NDArray[np.integer], lengths: NDArray[np.integer]) -> None:
        """Add documents: their ids end to end, and how many each has; DataError when one does not fit its type."""
        limits = np.iinfo(self.dtype)
        if ids.size and not limits.min <= ids.min() <= ids.max() <= limits.max:
            raise DataError(
                f"{self._path}: ids from {ids.min()} to {ids.max()} do not fit {self.dtype.name} "
                f"({limits.min} to {limits.max}); set tokens.dtype to int32"
            )
        if lengths.size and lengths.max() > _LONGEST:
            raise DataError(
                f"{self._path}: a document of {lengths.max()} tokens; an index counts up to {_LONGEST}; lower "
                "harvest.read.longest_bytes, or cut the text"
            )
        if lengths.sum() != ids.size:
            raise DataError(
                f"{self._path}: {ids.size} ids for documents of {lengths.sum()} in all; give as many as they have"
            )
        with open(self._path, "ab") as file:
            file.write(ids.astype(self.dtype).data)
        self._lengths.append(np.asarray(lengths, dtype=np.int64))

    def close(self) -> NDArray[np.int64]:
        """Finish the shard; returns the length of each document in tokens."""
        lengths = np.concatenate([np.empty(0, np.int64), *self._lengths])
        _write_index(files_of(self.prefix)[0], self._code, self.dtype.itemsize, lengths)
        return lengths


def _write_index(path: Path, code: int, item_bytes: int, lengths: NDArray[np.int64]) -> None:
    pointers = np.zeros(len(lengths), dtype="<i8")
    pointers[1:] = np.cumsum(lengths[:-1]) * item_bytes
    with open(path, "wb") as file:
        file.write(_HEADER.pack(MAGIC, VERSION, code, len(lengths), len(lengths) + 1))
        file.write(lengths.astype("<i4").tobytes())
        file.write(pointers.tobytes())
        file.write(np.arange(len(lengths) + 1, dtype="<i8").tobytes())


def _read_index(path: Path) -> tuple[np.dtype, NDArray[np.int64], NDArray[np.int64]]:
    """dtype, length of each sequence, first sequence of each document (and their number)."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{_told(path)} cannot be read ({error.strerror}); {_REDO}") from None
    if not data.startswith(MAGIC):
        raise DataError(f"{path} starts with {data[:9]!r}, a token index with {MAGIC!r}; {_REDO}")
    if len(data) < _HEADER.size:
        raise DataError(f"{path} has {len(data)} bytes, fewer than its {_HEADER.size}-byte header; {_REDO}")
    _, version, code, sequences, marks = _HEADER.unpack_from(data)
    if version != VERSION:
        raise DataError(f"{path} is version {version}; this reader knows version {VERSION}; {_REDO}")
    if code not in _dtypes():
        known = ", ".join(f"{c} = {d.name}" for c, d in sorted(_dtypes().items()))
        raise DataError(f"{path} has dtype code {code}; token ids are one of {known}; {_REDO}")
    expected = _HEADER.size + 12 * sequences + 8 * marks
    if sequences and len(data) == expected + sequences:
        raise DataError(
            f"{path} has a mode for each of its {sequences} sequences, as multimodal data has; only text is read: "
            "write it without modes"
        )
    if len(data) != expected:
        raise DataError(
            f"{path} has {len(data)} bytes; {sequences} sequences and {marks} document marks take {expected}; {_REDO}"
        )
    lengths = np.frombuffer(data, "<i4", sequences, _HEADER.size).astype(np.int64)
    pointers = np.frombuffer(data, "<i8", sequences, _HEADER.size + 4 * sequences)
    documents = np.frombuffer(data, "<i8", marks, _HEADER.size + 12 * sequences).astype(np.int64)
    _check_index(path, lengths=lengths, pointers=pointers, documents=documents, item=_dtypes()[code].itemsize)
    return _dtypes()[code], lengths, documents


def _check_index(
    path: Path,
    *,
    lengths: NDArray[np.int64],
    pointers: NDArray[np.int64],
    documents: NDArray[np.int64],
    item: int,
) -> None:
    if lengths.size and lengths.min() < 0:
        at = int(np.argmin(lengths))
        raise DataError(f"{path}: sequence {at} has length {lengths[at]}; lengths are 0 or more; {_REDO}")
    expected = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[: len(lengths)] * item
    if not np.array_equal(pointers, expected):
        at = int(np.flatnonzero(pointers != expected)[0])
        raise DataError(
            f"{path}: sequence {at} is said to start at byte {pointers[at]}, but the lengths before it "
            f"end at byte {expected[at]}; {_REDO}"
        )
    rising = documents.size > 0 and documents[0] == 0 and documents[-1] == len(lengths)
    if not rising or (np.diff(documents) < 0).any():
        raise DataError(
            f"{path}: document marks must rise from 0 to {len(lengths)} sequences; "
            f"found {documents[:3].tolist()} … {documents[-3:].tolist()}; {_REDO}"
        )


def _dtypes() -> dict[int, np.dtype]:
    codes = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}  # 6 and 7 are floats, never ids
    return {code: np.dtype(name) for code, name in codes.items()}
