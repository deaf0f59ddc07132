"""Token shards as Megatron-LM reads and writes them: `PREFIX.bin` holds ids, `PREFIX.idx` says where texts start.

    .idx, little-endian: magic b"MMIDIDX\\0\\0" · version uint64 = 1 · dtype code uint8 · sequences S uint64 ·
    document marks D uint64 · length of each sequence int32[S] · byte offset of each sequence int64[S] ·
    first sequence of each document, and S, int64[D]
    .bin: the ids of all sequences, one after another

Format: Megatron-LM, megatron/core/datasets/indexed_dataset.py. We write one sequence per document.

A shard may also have `PREFIX.weights`: for each token, in the order of `.bin`, how much its loss counts where it is the
target. Without this file every target counts 1. Its elements are uint8 or float32; the size of the file says which.
"""

import struct
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from trivium.errors import DataError
from trivium.untrusted import open_regular

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
SUFFIXES = (".idx", ".bin", ".weights")  # of a shard's files; the last one is optional
_WEIGHTS = tuple(map(np.dtype, ("u1", "<f4")))  # dtypes of weights
_HEADER = struct.Struct("<9sQBQQ")
_MAX_DOCUMENT_TOKENS = 2**31 - 1  # the index stores lengths in 32 bits
_BLOCK_ENTRIES = 1 << 16  # of an index, checked at a time
_REDO = "restore it, or make the tokens again (`trivium tokenize`, or the program that wrote them)"


class Index(NamedTuple):
    """The description in an `.idx`.

    Only the ends of its arrays have been read. The arrays are mapped on demand and not kept, because the index of a
    hundred million documents has 2 GB, and every rank opens it.
    """

    path: Path
    dtype: np.dtype
    sequences: int
    documents: int
    tokens: int

    def starts(self, first: int, stop: int) -> "Starts":
        """Return the starts of documents [first, stop) and the end of the last, in tokens [stop - first + 1]."""
        _, pointers, marks = _arrays(self.path, self.sequences, self.documents + 1)
        return Starts(self, pointers, marks[first : stop + 1])

    def check(self) -> None:
        """Check the full index. Raises DataError if sequences or documents are not consecutive."""
        lengths, pointers, marks = _arrays(self.path, self.sequences, self.documents + 1)
        _check_sequences(self.path, lengths, pointers, self.dtype.itemsize)
        _check_documents(self.path, marks, self.sequences)


class Starts:
    """Starts of the documents of a shard and the end of the last, in tokens, read from the index on demand.

    An array of all of them would have 800 MB for a hundred million documents. Starts are relative to that of the
    first document.
    """

    def __init__(self, index: Index, pointers: NDArray[np.int64], marks: NDArray[np.int64]) -> None:
        """pointers: the byte offsets of all sequences.
        marks: the first sequence of each document, and of the one after the last.
        Raises DataError if the first mark is not the number of a sequence.
        """
        self._index, self._pointers, self._marks = index, pointers, marks
        self._origin = 0
        self._origin = int(self[0])

    def __len__(self) -> int:
        """The number of documents plus one."""
        return len(self._marks)

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> NDArray[np.int64]: ...
    def __getitem__(self, place: int | slice) -> int | NDArray[np.int64]:
        """Raises DataError if a mark is not the number of a sequence."""
        sequences = np.atleast_1d(self._marks[place])
        index, tokens = self._index, self._index.tokens
        if sequences.size and not 0 <= sequences.min() <= sequences.max() <= index.sequences:
            raise DataError(
                f"{index.path}: document marks from {sequences.min()} to {sequences.max()}, and it has "
                f"{index.sequences} sequences; {_REDO}"
            )
        found = np.full(len(sequences), tokens, dtype=np.int64)
        begun = sequences < index.sequences  # a document may start where the last sequence ends
        found[begun] = self._pointers[sequences[begun]] // index.dtype.itemsize
        found -= self._origin
        return found if isinstance(place, slice) else int(found[0])

    def search(self, token: int, *, side: Literal["left", "right"]) -> int:
        """Count the starts before a token ("left"), or before or at it ("right"), as numpy's searchsorted does."""
        token += self._origin
        if token > self._index.tokens or (token == self._index.tokens and side == "right"):
            return len(self)
        # numpy's own function would copy the arrays, because the 34-byte header leaves them unaligned.
        bisected = bisect_left if side == "left" else bisect_right
        begun = bisected(self._pointers, token * self._index.dtype.itemsize)  # sequences
        return bisect_left(self._marks, begun)


@dataclass(frozen=True)
class TokenShard:
    """A shard, mapped from disk. Document i is `shard[i]`."""

    prefix: Path
    tokens: NDArray[np.integer]  # all ids in order
    index: Index
    begin: int  # index of its first document in the index file
    documents: int  # number of documents
    weights: NDArray[np.uint8 | np.float32] | None = None  # of `tokens` as targets; None stands for 1
    first: int | None = None  # in a pair made elsewhere: the number of its first document, as they have no other name

    @staticmethod
    def open(prefix: str | Path) -> "TokenShard":
        """Open a shard. Raises DataError if `.idx` or `.bin` is missing, damaged or inconsistent. Reads the full
        index."""
        check_index(files_of(Path(prefix))[0])
        return TokenShard.mapped(Path(prefix))

    @staticmethod
    def mapped(prefix: Path) -> "TokenShard":
        """Open a shard whose index is checked elsewhere.

        Only the ends of the index are read, so that thousands of ranks can open it. Raises DataError if they do not
        fit `.bin` or `.weights`.
        """
        idx, bin_, weights = files_of(prefix)
        index = _read_index(idx)
        expected = index.tokens * index.dtype.itemsize
        if not bin_.is_file():
            raise DataError(f"{_told(bin_)} is missing, but {idx.name} describes it; {_REDO}")
        if bin_.stat().st_size != expected:
            raise DataError(
                f"{bin_} has {bin_.stat().st_size} bytes, but {idx.name} says {index.tokens} tokens of "
                f"{index.dtype.itemsize} bytes = {expected}; {_REDO}"
            )
        # An empty file cannot be mapped.
        tokens = np.memmap(bin_, dtype=index.dtype, mode="r") if expected else np.empty(0, dtype=index.dtype)
        return TokenShard(prefix, tokens, index, 0, index.documents, _mapped_weights(weights, index.tokens))

    def check_weights(self) -> None:
        """Raise DataError if a weight is negative or not finite. Reads all weights."""
        if self.weights is not None and self.weights.dtype.kind == "f":
            for first in range(0, len(self.weights), _BLOCK_ENTRIES):
                _check_weights(self.prefix, self.weights[first : first + _BLOCK_ENTRIES], first)

    @property
    def document_starts(self) -> Starts:
        """Starts of the documents in `tokens` and the end of the last [documents + 1].

        The index file stays open while the result exists. Do not keep it: a corpus may have more sources than a
        process may open files.
        """
        return self.index.starts(self.begin, self.begin + self.documents)

    def part(self, first: int, documents: int) -> "TokenShard":
        """Return `documents` documents from number `first` on, or fewer at the end; they keep their numbers."""
        begin = min(first, len(self))
        stop = min(first + documents, len(self))
        starts = self.document_starts
        here = slice(starts[begin], starts[stop])
        weights = None if self.weights is None else self.weights[here]
        return TokenShard(self.prefix, self.tokens[here], self.index, self.begin + begin, stop - begin, weights, first)

    def __len__(self) -> int:
        """The number of documents."""
        return self.documents

    def __getitem__(self, index: int) -> NDArray[np.integer]:
        """Return the ids of a document."""
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} of {self.prefix}: it has {len(self)} documents")
        begin, end = self.document_starts[index : index + 2].tolist()
        return self.tokens[begin:end]


def check_index(path: Path) -> None:
    """Check an `.idx`. Raises DataError if it is missing or damaged."""
    _read_index(path).check()


def files_of(prefix: Path) -> tuple[Path, ...]:
    """Return the paths of a shard's files, in the order of SUFFIXES; a dot in the prefix is kept."""
    return tuple(prefix.with_name(prefix.name + suffix) for suffix in SUFFIXES)


def _told(path: Path) -> str:
    """Format a path with the target of its link."""
    return f"{path} (a link to {path.readlink()})" if path.is_symlink() else str(path)


class ShardWriter:
    """Appends documents to a shard. `close` writes the index, without which it is incomplete.

    No file stays open between appends, because a corpus may have more sources than a process may open files.
    """

    def __init__(self, prefix: Path, *, dtype: str, weights: Literal["uint8", "float32"] | None = None) -> None:
        """weights: the dtype of the targets' weights, in a shard that has them."""
        self.prefix = prefix
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self._code = next(code for code, known in _dtypes().items() if known == self.dtype)
        self._lengths: list[NDArray[np.int64]] = []
        self._path = files_of(prefix)[1]
        self._path.write_bytes(b"")
        self._weights = None if weights is None else np.dtype(weights).newbyteorder("<")
        if self._weights is not None:
            files_of(prefix)[2].write_bytes(b"")

    def append(
        self, ids: NDArray[np.integer], lengths: NDArray[np.integer], weights: NDArray[Any] | None = None
    ) -> None:
        """Append documents: concatenated ids, the length of each, and in a shard with weights that of each id.

        Raises DataError if an id or a weight does not fit its dtype, or if their numbers differ.
        """
        limits = np.iinfo(self.dtype)
        if ids.size and not limits.min <= ids.min() <= ids.max() <= limits.max:
            raise DataError(
                f"{self._path}: ids from {ids.min()} to {ids.max()} do not fit {self.dtype.name} "
                f"({limits.min} to {limits.max}); set tokens.dtype to int32"
            )
        if lengths.size and lengths.max() > _MAX_DOCUMENT_TOKENS:
            raise DataError(
                f"{self._path}: a document has {lengths.max()} tokens, more than the {_MAX_DOCUMENT_TOKENS} of "
                "an index; lower harvest.read.longest_bytes, or cut the text"
            )
        if lengths.sum() != ids.size:
            raise DataError(
                f"{self._path}: {ids.size} ids for documents of {lengths.sum()} in all; give as many as they have"
            )
        if self._weights is not None:
            self._append_weights(np.empty(0) if weights is None else weights, ids.size)
        with open(self._path, "ab") as file:
            file.write(ids.astype(self.dtype).data)
        self._lengths.append(np.asarray(lengths, dtype=np.int64))

    def _append_weights(self, weights: NDArray[Any], ids: int) -> None:
        path, dtype = files_of(self.prefix)[2], self._weights
        if weights.size != ids:
            raise DataError(f"{path}: {weights.size} weights for {ids} ids; give each id a weight")
        _check_weights(self.prefix, weights, 0)
        stored = weights.astype(dtype)
        if dtype == np.uint8 and not np.array_equal(stored, weights):
            place = int(np.argmax(stored != weights))
            raise DataError(
                f"{path}: weight {weights[place]} is no whole number from 0 to 255; write this shard with float32"
            )
        with open(path, "ab") as file:
            file.write(stored.data)

    def close(self) -> NDArray[np.int64]:
        """Write the index, and return the length of each document in tokens."""
        lengths = np.concatenate([np.empty(0, np.int64), *self._lengths])
        _write_index(files_of(self.prefix)[0], self._code, self.dtype.itemsize, lengths)
        return lengths


def _mapped_weights(path: Path, tokens: int) -> NDArray[np.uint8 | np.float32] | None:
    """Map the weights of a shard with so many tokens; None if it has none. Raises DataError for a wrong size."""
    if not path.is_file():
        return None
    size = path.stat().st_size
    if size not in [dtype.itemsize * tokens for dtype in _WEIGHTS]:
        raise DataError(
            f"{path} has {size} bytes, but there are {tokens} tokens, whose weights take 1 byte each (uint8) or 4 "
            "(float32); restore it, or make it again"
        )
    dtype = _WEIGHTS[size > tokens]
    return np.memmap(path, dtype=dtype, mode="r") if size else np.empty(0, dtype)


def _check_weights(prefix: Path, weights: NDArray[Any], first: int) -> None:
    """Raise DataError if a weight is negative or not finite. first: the token of the first weight."""
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        place = int(np.argmax(wrong))
        raise DataError(
            f"{files_of(prefix)[2]}: token {first + place} has weight {weights[place]}; weights are finite numbers of "
            "0 or more; make the file again"
        )


def _write_index(path: Path, code: int, item_bytes: int, lengths: NDArray[np.int64]) -> None:
    pointers = np.zeros(len(lengths), dtype="<i8")
    pointers[1:] = np.cumsum(lengths[:-1]) * item_bytes
    with open(path, "wb") as file:
        file.write(_HEADER.pack(MAGIC, VERSION, code, len(lengths), len(lengths) + 1))
        file.write(lengths.astype("<i4").tobytes())
        file.write(pointers.tobytes())
        file.write(np.arange(len(lengths) + 1, dtype="<i8").tobytes())


def _read_index(path: Path) -> Index:
    """Read the header and the ends of an index. Raises DataError if it is missing or these are damaged."""
    try:
        size = path.stat().st_size
        with open_regular(path) as file:
            head = file.read(_HEADER.size)
    except OSError as error:
        raise DataError(f"{_told(path)} cannot be read ({error.strerror}); {_REDO}") from None
    if not head.startswith(MAGIC):
        raise DataError(f"{path} starts with {head[:9]!r}, a token index with {MAGIC!r}; {_REDO}")
    if len(head) < _HEADER.size:
        raise DataError(f"{path} has {len(head)} bytes, fewer than its {_HEADER.size}-byte header; {_REDO}")
    _, version, code, sequences, marks = _HEADER.unpack(head)
    if version != VERSION:
        raise DataError(f"{path} is version {version}; this reader knows version {VERSION}; {_REDO}")
    if code not in _dtypes():
        known = ", ".join(f"{c} = {d.name}" for c, d in sorted(_dtypes().items()))
        raise DataError(f"{path} has dtype code {code}; token ids are one of {known}; {_REDO}")
    expected = _HEADER.size + 12 * sequences + 8 * marks
    if sequences and size == expected + sequences:
        raise DataError(
            f"{path} has a mode for each of its {sequences} sequences, as multimodal data has; only text is read: "
            "write it without modes"
        )
    if size != expected:
        raise DataError(
            f"{path} has {size} bytes; {sequences} sequences and {marks} document marks take {expected}; {_REDO}"
        )
    lengths, pointers, documents = _arrays(path, sequences, marks)
    if not marks or documents[0] != 0 or documents[-1] != sequences:
        raise _not_rising(path, documents, sequences)
    dtype = _dtypes()[code]
    tokens = int(pointers[-1]) // dtype.itemsize + int(lengths[-1]) if sequences else 0
    return Index(path, dtype, sequences, marks - 1, tokens)


def _arrays(path: Path, sequences: int, marks: int) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Map the arrays of an index: lengths and byte offsets of sequences, and the first sequence of each document."""
    data = np.memmap(path, dtype=np.uint8, mode="r")
    lengths = np.frombuffer(data, "<i4", sequences, _HEADER.size)
    pointers = np.frombuffer(data, "<i8", sequences, _HEADER.size + 4 * sequences)
    return lengths, pointers, np.frombuffer(data, "<i8", marks, _HEADER.size + 12 * sequences)


def _check_sequences(path: Path, lengths: NDArray[np.int32], pointers: NDArray[np.int64], item: int) -> None:
    """Raise DataError unless each sequence begins where the previous one ends. item: bytes per id."""
    total = 0
    for first in range(0, len(lengths), _BLOCK_ENTRIES):
        here = lengths[first : first + _BLOCK_ENTRIES].astype(np.int64)
        if here.min() < 0:
            at = int(np.argmin(here))
            raise DataError(f"{path}: sequence {first + at} has length {here[at]}; lengths are 0 or more; {_REDO}")
        ends = total + np.cumsum(here)
        expected = (ends - here) * item
        differ = np.flatnonzero(pointers[first : first + _BLOCK_ENTRIES] != expected)
        if differ.size:
            at = int(differ[0])
            raise DataError(
                f"{path}: sequence {first + at} is said to start at byte {pointers[first + at]}, but the lengths "
                f"before it end at byte {expected[at]}; {_REDO}"
            )
        total = int(ends[-1])


def _check_documents(path: Path, marks: NDArray[np.int64], sequences: int) -> None:
    """Raise DataError unless the marks rise from 0 to `sequences`."""
    starts = range(0, len(marks), _BLOCK_ENTRIES)
    if any((np.diff(marks[n : n + _BLOCK_ENTRIES + 1]) < 0).any() for n in starts):
        raise _not_rising(path, marks, sequences)


def _not_rising(path: Path, marks: NDArray[np.int64], sequences: int) -> DataError:
    return DataError(
        f"{path}: document marks must rise from 0 to {sequences} sequences; "
        f"found {marks[:3].tolist()} … {marks[-3:].tolist()}; {_REDO}"
    )


def _dtypes() -> dict[int, np.dtype]:
    codes = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}  # codes 6 and 7 are floats
    return {code: np.dtype(name) for code, name in codes.items()}
