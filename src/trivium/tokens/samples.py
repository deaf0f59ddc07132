"""The order of training data: sample i is a pure function of the seed and i.

It depends on no layout, micro-batch, number of processes or length of run, so resuming in another layout, or
repeating one batch of a million, needs only the number of the sample.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trivium.errors import DataError, nearest
from trivium.tokens.blend import Blend
from trivium.tokens.lineage import Span, read_lineage, spans
from trivium.tokens.manifest import SPLITS, open_shards, read_tokens_manifest
from trivium.tokens.permutation import Permutation
from trivium.tokens.shards import TokenShard


class Where(NamedTuple):
    """A sample's place: tokens [start, start + sequence + 1) of a source, on its `epoch`-th pass from 0."""

    source: str
    epoch: int
    start: int


class _Places(NamedTuple):
    """Places of several samples, one array each; sources are numbers."""

    source: NDArray[np.int64]
    epoch: NDArray[np.int64]
    start: NDArray[np.int64]


class TokenDataset:
    """Samples of `sequence + 1` tokens over the documents of a split, end to end.

    Windows start every `sequence` tokens, so each target is predicted once per epoch. "train" has a sample for
    every i >= 0: sources by largest deficit (`Blend`), within a source a new keyed permutation of its windows each
    epoch; a source shorter than one window repeats within it. "validation" has `num_samples`: each source's windows
    in order, source after source.
    """

    def __init__(
        self, directory: Path, split: str, *, manifest: dict[str, Any], sequence: int, seed: int
    ) -> None:
        """Use `TokenDataset.open`."""
        self.directory, self.split, self.sequence, self.seed = directory, split, sequence, seed
        self.vocabulary = int(manifest["vocabulary"])
        self.end_of_text = int(manifest["end_of_text"])
        shards = open_shards(directory, split)
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
        self._lineage: dict[int, list[str]] = {}

    @staticmethod
    def open(directory: Path, split: str, *, sequence: int, seed: int) -> "TokenDataset":
        """Map a split; DataError when the directory is damaged or too small for one sample."""
        if split not in SPLITS:
            raise DataError(f"there is no split '{split}'; {nearest(split, SPLITS)}")
        manifest = read_tokens_manifest(directory)
        return TokenDataset(directory, split, manifest=manifest, sequence=sequence, seed=seed)

    @property
    def tokens_total(self) -> int:
        """Tokens of the split on disk."""
        return sum(len(shard.tokens) for shard in self._shards)

    @property
    def num_samples(self) -> int:
        """Different windows of the split: all of validation; one pass over every source of train."""
        return int(self._windows.sum())

    def sample(self, i: int) -> NDArray[np.int64]:
        """Tokens of sample i: [sequence + 1]."""
        tokens: NDArray[np.int64] = self.samples([i])[0]
        return tokens

    def samples(self, indices: Iterable[int]) -> NDArray[np.int64]:
        """Tokens of several samples: [samples, sequence + 1]."""
        places = self._places(np.fromiter(indices, dtype=np.int64))
        tokens = np.empty((len(places.start), self.sequence + 1), dtype=np.int64)
        for row, (source, start) in enumerate(zip(places.source, places.start, strict=True)):
            text = self._shards[source].tokens
            window = text[start : start + self.sequence + 1]
            # Only a source shorter than one window falls short: it begins again.
            tokens[row] = window if len(window) > self.sequence else np.resize(text, self.sequence + 1)
        return tokens

    def where(self, i: int) -> Where:
        """The place of sample i."""
        places = self._places(np.asarray([i], dtype=np.int64))
        return Where(self._sources[places.source[0]], int(places.epoch[0]), int(places.start[0]))

    def documents_of(self, i: int) -> list[Span]:
        """The documents sample i is made of, in order; lengths sum to sequence + 1."""
        places = self._places(np.asarray([i], dtype=np.int64))
        source, start = int(places.source[0]), int(places.start[0])
        shard = self._shards[source]
        if source not in self._lineage:
            self._lineage[source] = read_lineage(
                self.directory / f"documents-{shard.prefix.name}.parquet", shard
            )
        return spans(self._lineage[source], shard.document_starts, (start, start + self.sequence + 1))

    def counts_after(self, n: int) -> dict[str, int]:
        """Samples of each source among the first n."""
        if self.split == "train":
            return self._blend.counts_after(n)
        before = np.concatenate([[0], np.cumsum(self._windows)])[:-1]
        return dict(zip(self._sources, np.clip(n - before, 0, self._windows).tolist(), strict=True))

    def hash_batch(self, indices: Iterable[int]) -> str:
        """A short hash of samples, in order: equal hashes mean equal data."""
        return hashlib.blake2b(self.samples(indices).astype("<i8").tobytes(), digest_size=8).hexdigest()

    def _places(self, indices: NDArray[np.int64]) -> _Places:
        limit = self.num_samples if self.split == "validation" else np.iinfo(np.int64).max
        if indices.size and not 0 <= indices.min() <= indices.max() < limit:
            raise IndexError(
                f"samples {indices.min()}..{indices.max()} of {self.split}: 0 to {limit - 1} exist"
            )
        if self.split == "validation":
            ends = np.cumsum(self._windows)
            source = np.searchsorted(ends, indices, side="right")
            window = indices - (ends - self._windows)[source]
            return _Places(source, np.zeros_like(indices), window * self.sequence)
        source = self._blend.source(indices)
        epoch, position = np.divmod(self._blend.ordinal(indices), self._windows[source])
        window = np.empty_like(indices)
        for s, e in sorted(set(zip(source.tolist(), epoch.tolist(), strict=True))):
            order = Permutation(int(self._windows[s]), self.seed, "samples", self._sources[s], e)
            mine = (source == s) & (epoch == e)
            window[mine] = order[position[mine]]
        return _Places(source, epoch, window * self.sequence)
