"""The order of training data: sample i is a pure function of the seed and i.

It does not depend on layout, micro-batches, processes or length of the run. Resuming in another layout, or repeating
one batch of a million, therefore needs only the sample's number.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from trivium.errors import DataError, nearest
from trivium.tokens.blend import Blend
from trivium.tokens.left_out import NOTHING, SKIPPED, LeftOut
from trivium.tokens.lineage import Found, Lineage, Span, find_documents, lineage_file, spans
from trivium.tokens.manifest import SPLITS, open_shards, read_tokens_manifest
from trivium.tokens.permutation import Permutation
from trivium.tokens.rows import Digest, Rows, digest
from trivium.tokens.shards import TokenShard

BLOCK_SAMPLES = 1 << 14  # looked up at a time: NumPy's cost is the same for a few as for thousands


class Where(NamedTuple):
    """The place of a sample: tokens [start, start + sequence + 1) of a source in `epoch`, counted from 0."""

    source: str
    epoch: int
    start: int


class Sighting(NamedTuple):
    """An occurrence of a document in a sample: tokens [offset, offset + length) are the document's from `begin` on."""

    sample: int
    epoch: int
    offset: int
    length: int
    begin: int


class _Places(NamedTuple):
    """Places of several samples, one array per field; sources are indices."""

    source: NDArray[np.int64]
    epoch: NDArray[np.int64]
    start: NDArray[np.int64]


class TokenDataset:
    """Samples of `sequence + 1` tokens from the concatenated documents of a split.

    Windows start every `sequence` tokens, so each target is predicted once per epoch.
    "train" has a sample for every i >= 0. Sources are chosen by largest deficit (`Blend`). Within a source, each
    epoch has a new keyed permutation of its windows. A source shorter than one window repeats within it.
    "validation" has `num_samples`: the windows of all sources in one order that does not depend on the seed. Any
    prefix is a representative part of all sources.
    left_out: samples of "train" that are skipped; i counts only the others.
    """

    left_out: LeftOut = NOTHING
    _beside: Mapping[str, Sequence[NDArray[Any]]] = MappingProxyType({})  # arrays of each source, by name

    def __init__(
        self,
        directory: Path,
        split: str,
        *,
        manifest: dict[str, Any],
        shards: dict[str, TokenShard],
        sequence: int,
        seed: int,
    ) -> None:
        """Use `TokenDataset.open` instead."""
        self.directory, self.split, self.sequence, self.seed = directory, split, sequence, seed
        self.vocabulary = int(manifest["vocabulary"])
        self.end_of_text = int(manifest["end_of_text"])
        self._packed = "packed" in manifest
        windows = {s: max(0, len(shard.tokens) - 1) // sequence for s, shard in shards.items()}
        if split == "train":
            shares = {s: e["weight"] for s, e in manifest["sources"].items() if s in shards}
            self._blend = Blend({s: w for s, w in shares.items() if len(shards[s].tokens)})
            self._sources = self._blend.sources
        else:
            self._sources = tuple(sorted(s for s in shards if windows[s]))
        self._shards: list[TokenShard] = [shards[s] for s in self._sources]
        self._windows = np.asarray([max(1, windows[s]) for s in self._sources], dtype=np.int64)
        if not self._sources:
            raise DataError(
                f"{directory} has {sum(len(s.tokens) for s in shards.values())} tokens for {split}, fewer in every "
                f"source than one sample of {sequence} + 1; add text, raise tokens.validation_fraction, or lower "
                "plan.model.sequence"
            )
        self._lineage: dict[int, Lineage] = {}
        # Slicing a memmap costs more than copying the slice, so use plain views.
        self._texts = [np.asarray(shard.tokens).view(np.ndarray) for shard in self._shards]
        # A source without weights takes no memory for those of its tokens, which are 1.
        self._weights = [
            np.broadcast_to(np.float32(1), shard.tokens.shape)
            if shard.weights is None
            else np.asarray(shard.weights).view(np.ndarray)
            for shard in self._shards
        ]
        self._blocks: dict[int, _Places] = {}  # blocks of consecutive samples

    @staticmethod
    def open(
        directory: str | Path,
        split: str,
        *,
        sequence: int,
        seed: int,
        opened: Callable[[Path], TokenShard] = TokenShard.open,
    ) -> "TokenDataset":
        """Open a split. Raises DataError if the directory is damaged or too small for one sample.

        opened: opens a shard. `TokenShard.mapped` suffices if only tokens are read.
        """
        if split not in SPLITS:
            raise DataError(f"there is no split '{split}'; {nearest(split, SPLITS)}")
        directory = Path(directory)
        manifest, shards = read_tokens_manifest(directory), open_shards(directory, split, opened)
        return TokenDataset(directory, split, manifest=manifest, shards=shards, sequence=sequence, seed=seed)

    @property
    def num_samples(self) -> int:
        """The number of distinct windows: all of validation, or one epoch of every source of train."""
        return int(self._windows.sum())

    def sample(self, i: int) -> NDArray[np.int64]:
        tokens: NDArray[np.int64] = self.samples([i])[0]
        return tokens

    def samples(self, indices: Iterable[int]) -> NDArray[np.int64]:
        """Return the tokens of several samples [samples, sequence + 1]. Raises DataError for an invalid id."""
        return self._tokens_at(self._places_ahead(np.fromiter(indices, dtype=np.int64)))

    def rows(self, first: int, count: int) -> Rows:
        """Return samples [first, first + count) as rows of a batch."""
        return self._rows_at(self._places_ahead(np.arange(first, first + count)))

    def stored(self, source: str, first: int, count: int) -> Rows:
        """Return windows [first, first + count) of a source as rows, in the order in which they are stored."""
        windows, number = np.arange(first, first + count), self._sources.index(source)
        return self._rows_at(_Places(np.full(count, number), np.zeros(count, np.int64), windows * self.sequence))

    @property
    def windows(self) -> dict[str, int]:
        """The number of windows of each source."""
        return dict(zip(self._sources, self._windows.tolist(), strict=True))

    def _rows_at(self, places: _Places) -> Rows:
        tokens, starts = self._tokens_at(places), None
        beside = {name: self._filled(arrays, places)[:, 1:] for name, arrays in self._beside.items()}
        if self._packed:
            starts = np.zeros(tokens.shape, np.bool_)
            for row, begins in enumerate(self._begins(places)):
                starts[row, begins] = True
        if all(shard.weights is None for shard in self._shards):
            return Rows.of_text(tokens, None, starts)._replace(beside=beside)
        weights = np.empty(tokens.shape, np.float32)
        self._fill(weights, self._weights, places)
        return Rows.of_text(tokens, weights, starts)._replace(beside=beside)

    def _filled(self, arrays: Sequence[NDArray[Any]], places: _Places) -> NDArray[Any]:
        """Return the windows of arrays by source, which have an element for each token."""
        found = np.empty((len(places.start), self.sequence + 1, *arrays[0].shape[1:]), arrays[0].dtype)
        self._fill(found, arrays, places)
        return found

    def costs(self, first: int, count: int) -> NDArray[np.int64] | None:
        """Return the sum of the squared lengths of each sample's documents, to which attention's work is proportional.

        None if the documents of a sample are not packed, so that all samples have equal work.
        """
        if not self._packed:
            return None
        places = self._places_ahead(np.arange(first, first + count))
        edges = [np.append(begins, self.sequence) for begins in self._begins(places)]
        return np.array([(np.diff(one[one <= self.sequence]) ** 2).sum() for one in edges], np.int64)

    def _begins(self, places: _Places) -> Iterator[NDArray[np.int64]]:
        """Yield the positions in each sample at which documents begin."""
        starts = {source: self._shards[source].document_starts for source in np.unique(places.source).tolist()}
        for source, start in zip(places.source.tolist(), places.start.tolist(), strict=True):
            first, behind = (starts[source].search(at, side="left") for at in (start, start + self.sequence + 1))
            yield np.asarray(starts[source][first:behind]) - start

    def _tokens_at(self, places: _Places) -> NDArray[np.int64]:
        tokens = np.empty((len(places.start), self.sequence + 1), dtype=np.int64)
        self._fill(tokens, self._texts, places)
        if tokens.size and not 0 <= tokens.min() <= tokens.max() < self.vocabulary:
            self._refuse(tokens, places)
        return tokens

    def _fill(self, rows: NDArray[Any], arrays: Sequence[NDArray[Any]], places: _Places) -> None:
        """Set each row to the window at its place. arrays: by source, with an element for each token."""
        for row, (source, start) in enumerate(zip(places.source.tolist(), places.start.tolist(), strict=True)):
            array = arrays[source]
            window = array[start : start + self.sequence + 1]
            # Only a source shorter than one window is too short, and it repeats.
            if len(window) > self.sequence:
                rows[row] = window
            else:
                rows[row] = np.resize(array, (self.sequence + 1, *array.shape[1:]))

    def _refuse(self, tokens: NDArray[np.int64], places: _Places) -> NoReturn:
        """Raise DataError for the first invalid id in `tokens`, the samples at `places`."""
        row, column = np.argwhere((tokens < 0) | (tokens >= self.vocabulary))[0]
        shard = self._shards[places.source[row]]
        raise DataError(
            f"{shard.prefix}.bin holds id {tokens[row, column]} at token {places.start[row] + column}, but the "
            f"vocabulary has {self.vocabulary}: it is damaged; restore it, or run `trivium tokenize` again"
        )

    def where(self, i: int) -> Where:
        places = self._places(np.asarray([i], dtype=np.int64))
        return Where(self._sources[places.source[0]], int(places.epoch[0]), int(places.start[0]))

    def documents_of(self, i: int) -> list[Span]:
        """Return the documents of sample i in order.

        Their lengths sum to sequence + 1. For packed documents they sum to sequence, because the last token begins the
        next window and is no target.
        """
        places = self._places(np.asarray([i], dtype=np.int64))
        source, start = int(places.source[0]), int(places.start[0])
        shard = self._shards[source]
        stop = start + self.sequence + (not self._packed)
        return spans(self._names(source), shard.document_starts, (start, stop))

    def documents(self) -> Iterator[Found]:
        """Yield every document that has tokens in this split."""
        for number, (source, shard) in enumerate(zip(self._sources, self._shards, strict=True)):
            for first, table in self._names(number).tables(["document"]):
                starts = shard.document_starts[first : first + table.num_rows + 1].tolist()
                for name, (start, stop) in zip(table["document"].to_pylist(), pairwise(starts), strict=True):
                    if start < stop:
                        yield Found(str(name), source, start, stop)

    def find(self, document: str) -> list[Found]:
        """Return the places of a document, or of all its pieces, in this split; [] if it has none."""
        return [
            found
            for source, shard in zip(self._sources, self._shards, strict=True)
            for found in find_documents(lineage_file(shard), shard, source, document)
        ]

    def sightings(self, found: Found, samples: int) -> list[Sighting]:
        """Return the occurrences of a document in the first `samples` samples of "train", in order.

        They are computed without reading samples, from the windows that contain the document, their positions in
        each epoch's permutation, and the places of these in the blend.
        """
        if found.source not in self._sources or found.start == found.stop:
            return []
        source = self._sources.index(found.source)
        counted = self.counts_after(samples)[found.source] + sum(stop - first for first, stop in self.left_out.gaps)
        windows = int(self._windows[source])
        seen = []
        for epoch in range(-(-counted // windows)):
            order = Permutation(windows, self.seed, "samples", found.source, epoch)
            here = self._windows_over(source, found.start, found.stop)
            places = self._blend.place(source, epoch * windows + order.inverse(here))
            numbers = self.left_out.numbers(places)
            seen += [
                Sighting(int(n), epoch, *touch)
                for n, w in zip(numbers, here, strict=True)
                if n != SKIPPED and n < samples
                for touch in self._touches(source, int(w) * self.sequence, found)
            ]
        return sorted(seen)

    def _names(self, source: int) -> Lineage:
        if source not in self._lineage:
            shard = self._shards[source]
            self._lineage[source] = Lineage(lineage_file(shard), shard)
        return self._lineage[source]

    def _windows_over(self, source: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the windows of a source that contain any of its tokens [start, stop)."""
        if len(self._shards[source].tokens) <= self.sequence:
            return np.zeros(1, dtype=np.int64)  # there is one window, in which the source repeats
        # Window w has tokens w * sequence to (w + 1) * sequence, inclusive; of packed documents the last is no target.
        begin = start if self._packed else start - 1
        first, last = max(0, begin // self.sequence), (stop - 1) // self.sequence
        return np.arange(first, min(last + 1, int(self._windows[source])), dtype=np.int64)

    def _touches(self, source: int, start: int, found: Found) -> list[tuple[int, int, int]]:
        """Return (offset, length, begin) of a document in the window at `start`; several if the source repeats."""
        window, total = (start, start + self.sequence + 1), len(self._shards[source].tokens)
        turns = range(0, self.sequence + 1 if total <= self.sequence else 1, total)
        parts = [(max(window[0], found.start + t), min(window[1], found.stop + t), t) for t in turns]
        return [(a - start, b - a, a - t - found.start) for a, b, t in parts if a < b]

    def counts_after(self, n: int) -> dict[str, int]:
        """Return the number of samples of each source among the first n."""
        if self.split == "train":
            gaps = self.left_out.before(n)
            counts = self._blend.counts_after(n + sum(stop - first for first, stop in gaps))
            for first, stop in gaps:
                after, until = self._blend.counts_after(stop), self._blend.counts_after(first)
                counts = {s: c - after[s] + until[s] for s, c in counts.items()}
            return counts
        read = np.bincount(self._places(np.arange(n)).source, minlength=len(self._sources))
        return dict(zip(self._sources, read.tolist(), strict=True))

    def digest(self, first: int, count: int) -> Digest:
        """Return the digest of samples [first, first + count), as logged by training."""
        return digest(range(first, first + count), self.rows(first, count))

    def leaving_out(self, left_out: LeftOut) -> "TokenDataset":
        """Return a copy that skips these samples and renumbers the others."""
        other = copy(self)
        other.left_out, other._blocks = left_out, {}
        return other

    def with_beside(self, arrays: Mapping[str, Mapping[str, NDArray[Any]]]) -> "TokenDataset":
        """Return a copy whose rows have these arrays beside their tokens. arrays: by source and name, each [tokens, …]
        (`Beside.arrays`)."""
        other, names = copy(self), next(iter(arrays.values()), {})
        other._beside = {name: [arrays[source][name] for source in self._sources] for name in names}
        return other

    def _places_ahead(self, indices: NDArray[np.int64]) -> _Places:
        """Return the places of samples from cached blocks: batches are consecutive, and many cost the same as one."""
        if not indices.size:
            return self._places(indices)
        first, last = int(indices.min()) // BLOCK_SAMPLES, int(indices.max()) // BLOCK_SAMPLES
        if self.split != "train" or first < 0 or last > first + 1:
            return self._places(indices)
        for number in range(first, last + 1):
            if number not in self._blocks:
                self._blocks = {n: b for n, b in self._blocks.items() if n == number - 1}
                self._blocks[number] = self._places(np.arange(number * BLOCK_SAMPLES, (number + 1) * BLOCK_SAMPLES))
        blocks = [self._blocks[number] for number in range(first, last + 1)]
        together = blocks[0] if len(blocks) == 1 else _Places(*map(np.concatenate, zip(*blocks, strict=True)))
        return _Places(*(each[indices - first * BLOCK_SAMPLES] for each in together))

    def _places(self, indices: NDArray[np.int64]) -> _Places:
        limit = self.num_samples if self.split == "validation" else np.iinfo(np.int64).max
        if indices.size and not 0 <= indices.min() <= indices.max() < limit:
            raise IndexError(f"samples {indices.min()}..{indices.max()} of {self.split}: 0 to {limit - 1} exist")
        if self.split == "validation":
            ends, order = np.cumsum(self._windows), Permutation(limit, 0, "validation")[indices]
            source = np.searchsorted(ends, order, side="right")
            window = order - (ends - self._windows)[source]
            return _Places(source, np.zeros_like(indices), window * self.sequence)
        places = self.left_out.places(indices)
        source = self._blend.source(places)
        epoch, position = np.divmod(self._blend.ordinal(places), self._windows[source])
        return _Places(source, epoch, self._shuffled(source, epoch, position) * self.sequence)

    def _shuffled(
        self, source: NDArray[np.int64], epoch: NDArray[np.int64], position: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the window at each position of its source's permutation in its epoch."""
        window = np.zeros_like(position)  # sources with a single window need no permutation
        for s in np.unique(source[self._windows[source] > 1]).tolist():
            mine = np.flatnonzero(source == s)
            epochs, which = np.unique(epoch[mine], return_inverse=True)
            orders = [
                Permutation(int(self._windows[s]), self.seed, "samples", self._sources[s], e) for e in epochs.tolist()
            ]
            window[mine] = Permutation.each(orders, which, position[mine])
        return window
