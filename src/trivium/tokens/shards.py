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
SUFFIXES = (".idx", ".bin", ".weights")  # suffixes of a shard's files; the last one is optional
_WEIGHTS = tuple(map(np.dtype, ("u1", "<f4")))  # dtypes of weights
# The codes of ids; 6 and 7 are floats.
_DTYPES = {n: np.dtype(name) for n, name in {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}.items()}
_HEADER = struct.Struct("<9sQBQQ")
_MAX_DOCUMENT_TOKENS = 2**31 - 1  # the index stores lengths in 32 bits
_BLOCK_ENTRIES = 1 << 16  # entries of an index that are checked at a time
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

    @staticmethod
    def read(path: Path) -> "Index":
        """Read the header and the ends of an index. Raises DataError if it is missing or these are damaged."""
        try:
            size = path.stat().st_size
            with open_regular(path) as file:
                head = file.read(_HEADER.size)
        except OSError as error:
            raise DataError(f"{_with_target(path)} cannot be read ({error.strerror}); {_REDO}") from None
        if not head.startswith(MAGIC):
            raise DataError(f"{path} starts with {head[:9]!r}, a token index with {MAGIC!r}; {_REDO}")
        if len(head) < _HEADER.size:
            raise DataError(f"{path} has {len(head)} bytes, fewer than its {_HEADER.size}-byte header; {_REDO}")
        _, version, code, sequences, marks = _HEADER.unpack(head)
        if version != VERSION:
            raise DataError(f"{path} is version {version}; this reader knows version {VERSION}; {_REDO}")
        if code not in _DTYPES:
            known = ", ".join(f"{c} = {d.name}" for c, d in _DTYPES.items())
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
        index = Index(path, _DTYPES[code], sequences, marks - 1, 0)
        lengths, pointers, documents = index._arrays()
        if not marks or documents[0] != 0 or documents[-1] != sequences:
            raise index._not_rising(documents)
        tokens = int(pointers[-1]) // index.dtype.itemsize + int(lengths[-1]) if sequences else 0
        return index._replace(tokens=tokens)

    def _arrays(self) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Map the lengths and byte offsets of sequences, and the first sequence of each document."""
        data = np.memmap(self.path, dtype=np.uint8, mode="r")
        lengths = np.frombuffer(data, "<i4", self.sequences, _HEADER.size)
        pointers = np.frombuffer(data, "<i8", self.sequences, _HEADER.size + 4 * self.sequences)
        return lengths, pointers, np.frombuffer(data, "<i8", self.documents + 1, _HEADER.size + 12 * self.sequences)

    def starts(self, first: int, stop: int) -> "Starts":
        """Return the starts of documents [first, stop) and the end of the last, in tokens [stop - first + 1]."""
        _, pointers, marks = self._arrays()
        return Starts(self, pointers, marks[first : stop + 1])

    def check(self) -> None:
        """Check the full index. Raises DataError unless each sequence begins where the previous one ends, and the
        documents are consecutive."""
        lengths, pointers, marks = self._arrays()
        total = 0
        for first in range(0, self.sequences, _BLOCK_ENTRIES):
            here = lengths[first : first + _BLOCK_ENTRIES].astype(np.int64)
            if here.min() < 0:
                at = int(np.argmin(here))
                raise DataError(
                    f"{self.path}: sequence {first + at} has length {here[at]}; lengths are 0 or more; {_REDO}"
                )
            ends = total + np.cumsum(here)
            expected = (ends - here) * self.dtype.itemsize
            differ = np.flatnonzero(pointers[first : first + _BLOCK_ENTRIES] != expected)
            if differ.size:
                at = int(differ[0])
                raise DataError(
                    f"{self.path}: sequence {first + at} is said to start at byte {pointers[first + at]}, but the "
                    f"lengths before it end at byte {expected[at]}; {_REDO}"
                )
            total = int(ends[-1])
        blocks = range(0, len(marks), _BLOCK_ENTRIES)
        if any((np.diff(marks[n : n + _BLOCK_ENTRIES + 1]) < 0).any() for n in blocks):
            raise self._not_rising(marks)

    def _not_rising(self, marks: NDArray[np.int64]) -> DataError:
        return DataError(
            f"{self.path}: document marks must rise from 0 to {self.sequences} sequences; "
            f"found {marks[:3].tolist()} … {marks[-3:].tolist()}; {_REDO}"
        )


class Starts:
    """Starts of the documents of a shard and the end of the last, in tokens, relative to the first document.

    They are read from the index on demand: an array would have 800 MB for a hundred million documents.
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
    weights: NDArray[np.uint8 | np.float32] | None = None  # weights of `tokens` as targets; None stands for 1
    first: int | None = None  # in a pair made elsewhere: the number of its first document, as they have no other name

    @staticmethod
    def open(prefix: str | Path) -> "TokenShard":
        """Open a shard and check its full index. Raises DataError if it is missing, damaged or inconsistent."""
        Index.read(files_of(Path(prefix))[0]).check()
        return TokenShard.mapped(Path(prefix))

    @staticmethod
    def mapped(prefix: Path) -> "TokenShard":
        """Open a shard whose index is checked elsewhere. Raises DataError if its files do not fit each other.

        Only the ends of the index are read, so that thousands of ranks can open it.
        """
        idx, bin_, weights = files_of(prefix)
        index = Index.read(idx)
        expected = index.tokens * index.dtype.itemsize
        if not bin_.is_file():
            raise DataError(f"{_with_target(bin_)} is missing, but {idx.name} describes it; {_REDO}")
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

        The index file stays open while the result exists, so do not keep it: a corpus may have thousands of sources.
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
        return self.documents

    def __getitem__(self, index: int) -> NDArray[np.integer]:
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} of {self.prefix}: it has {len(self)} documents")
        begin, end = self.document_starts[index : index + 2].tolist()
        return self.tokens[begin:end]


def files_of(prefix: Path) -> tuple[Path, ...]:
    """Return the paths of a shard's files, in the order of SUFFIXES; a dot in the prefix is kept."""
    return tuple(prefix.with_name(prefix.name + suffix) for suffix in SUFFIXES)


def _with_target(path: Path) -> str:
    return f"{path} (a link to {path.readlink()})" if path.is_symlink() else str(path)


class ShardWriter:
    """Appends documents to a shard. `close` writes the index, without which it is incomplete.

    No file stays open between appends, because a corpus may have more sources than a process may open files.
    """

    def __init__(self, prefix: Path, *, dtype: str, weights: Literal["uint8", "float32"] | None = None) -> None:
        """weights: the dtype of the targets' weights, in a shard that has them."""
        self.prefix = prefix
        self.dtype = np.dtype(dtype).newbyteorder("<")
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
        code = next(code for code, known in _DTYPES.items() if known == self.dtype)
        pointers = np.zeros(len(lengths), dtype="<i8")
        pointers[1:] = np.cumsum(lengths[:-1]) * self.dtype.itemsize
        with open(files_of(self.prefix)[0], "wb") as file:
            file.write(_HEADER.pack(MAGIC, VERSION, code, len(lengths), len(lengths) + 1))
            file.write(lengths.astype("<i4").tobytes())
            file.write(pointers.tobytes())
            file.write(np.arange(len(lengths) + 1, dtype="<i8").tobytes())
        return lengths


def _mapped_weights(path: Path, tokens: int) -> NDArray[np.uint8 | np.float32] | None:
    """Map the weights of a shard of `tokens` tokens; None if it has none. Raises DataError for a wrong size."""
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
