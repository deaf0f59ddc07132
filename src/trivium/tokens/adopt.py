"""Use Megatron-LM `.bin/.idx` pairs as a token directory. They are linked in place, read once and never changed."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trivium.config import MAX_COUNT
from trivium.errors import ConfigError, DataError
from trivium.progress import Progress, silent
from trivium.provenance import file_sha256
from trivium.tokens.encode import file_stems, write_tokens_manifest
from trivium.tokens.manifest import SPLITS, TOKENIZER
from trivium.tokens.shards import TokenShard, files_of
from trivium.tokens.split import TRAIN, VALIDATION
from trivium.tokens.tokenizer import Tokenizer

_BLOCK_TOKENS = 1 << 22


class Pairs(NamedTuple):
    """Prefixes of pairs.

    weights: of `train` in any unit; empty: proportional to their tokens. fraction: part of each pair's tokens, at its
    end, that validates if `validation` is empty. ended: whether every document must end with the end-of-text token.
    """

    train: tuple[Path, ...]
    weights: tuple[float, ...] = ()
    validation: tuple[Path, ...] = ()
    fraction: float = 0.0
    ended: bool = True


class Adopted(NamedTuple):
    """A pair. Its documents from `cut` on are for validation, those before it for training."""

    shard: TokenShard
    cut: int
    stem: str  # stem of the links' names

    def entry(self) -> dict[str, Any]:
        """Return the pair's manifest entry: the range of its documents in each split."""
        starts = self.shard.document_starts
        parts = zip(SPLITS, ((0, self.cut), (self.cut, len(self.shard))), strict=True)
        weights = {} if self.shard.weights is None else {"weights": self.shard.weights.dtype.name}
        return {
            split: {
                "prefix": self.stem,
                "first": first,
                "documents": stop - first,
                "tokens": starts[stop] - starts[first],
                **weights,
            }
            for split, (first, stop) in parts
            if first < stop
        }


def adopt_pairs(pairs: Pairs, out: Path, tokenizer: Tokenizer, progress: Progress = silent) -> dict[str, Any]:
    """Make the existing directory `out` a token directory of these pairs, and return its manifest.

    Each pair is read once, for its hash and ids. Raises DataError if one is damaged or empty, contains an id or a
    document end that does not fit the tokenizer, if there is no validation text, or if two pairs have the same ids.
    Raises ConfigError for invalid weights and for a pair that is named twice.
    """
    sources = source_names((*pairs.train, *pairs.validation))
    stems = file_stems(sources)
    found: dict[str, Adopted] = {}
    for source, prefix in sources.items():
        shard = TokenShard.open(prefix.absolute())
        found[source] = Adopted(shard, _cut(shard, pairs, validates=prefix in pairs.validation), stems[source])
    if all(one.cut == len(one.shard) for one in found.values()):
        raise DataError(
            f"there is no validation text: pairs are split by documents, and {len(found)} of {len(found)} have only "
            "one with tokens; name a pair that validates with --validation PREFIX"
        )
    _refuse_copies(found.values())
    entries = {source: one.entry() for source, one in found.items()}
    weights = _weights(pairs, entries)
    counts = {split: np.zeros(tokenizer.vocabulary, np.int64) for split in SPLITS}
    files, begun = _linked(found.values(), out, _Reader(tokenizer, pairs.ended, counts), progress)
    written = tokenizer if begun else tokenizer.without_opening()
    files |= {path.name: file_sha256(path) for path in written.save(out / TOKENIZER)}
    return write_tokens_manifest(
        out,
        written,
        {source: {"weight": weights[source], **entry} for source, entry in entries.items()},
        counts,
        dtype=", ".join(sorted({one.shard.tokens.dtype.name for one in found.values()})),
        validation="pairs of their own" if pairs.validation else "last documents of each pair",
        files=files,
    )


def source_names(prefixes: Iterable[Path]) -> dict[str, Path]:
    """Name each pair by the last part of its prefix, or by all of it if that is not unique. Refuses duplicates."""
    every = list(prefixes)
    often = Counter(prefix.resolve() for prefix in every)
    if twice := next((prefix for prefix in every if often[prefix.resolve()] > 1), None):
        raise ConfigError(f"PREFIX {twice} is named {often[twice.resolve()]} times; name each pair once")
    alike = Counter(prefix.name for prefix in every)
    return {prefix.name if alike[prefix.name] == 1 else str(prefix): prefix for prefix in every}


def _cut(shard: TokenShard, pairs: Pairs, *, validates: bool) -> int:
    starts, total = shard.document_starts, len(shard.tokens)
    if not total:
        raise DataError(f"{shard.prefix}.bin holds 0 tokens; leave this pair out")
    if pairs.validation:
        return 0 if validates else len(shard)
    held_out = starts.search(math.floor(total * (1 - pairs.fraction)), side="right") - 1
    cut = max(held_out, starts.search(0, side="right"))  # some documents of every pair are for training
    return cut if starts[cut] < total else len(shard)


def _weights(pairs: Pairs, entries: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the weight of each source, scaled to sum to 1; 0 for validation pairs."""
    given = pairs.weights or tuple(float(e[TRAIN]["tokens"]) for e in entries.values() if TRAIN in e)
    if len(given) != len(pairs.train) or not all(0 < weight <= MAX_COUNT for weight in given):
        raise ConfigError(
            f"WEIGHT: {len(pairs.train)} pairs need as many weights above 0 and below 2**63, or none; found {given}"
        )
    return dict.fromkeys(entries, 0.0) | dict(zip(entries, (w / sum(given) for w in given), strict=False))


class _Reader(NamedTuple):
    """Reads the ids of pairs once: counts them by split [vocabulary], and checks them. ended: see Pairs."""

    tokenizer: Tokenizer
    ended: bool
    counts: Mapping[str, NDArray[np.int64]]

    def read(self, pair: Adopted, report: Callable[[int], None]) -> tuple[str, int]:
        """Return the sha256 of a pair's `.bin`, and how many of its documents begin with the tokenizer's opening.

        report: called with the number of tokens read.
        """
        tokens, cut = pair.shard.tokens, pair.shard.document_starts[pair.cut]
        digest, begun = hashlib.sha256(), 0
        for at in range(0, len(tokens), _BLOCK_TOKENS):
            report(at)
            block = np.ascontiguousarray(tokens[at : at + _BLOCK_TOKENS])
            digest.update(block.data)
            begun += self._check(pair.shard, at, block)
            border = min(max(cut - at, 0), len(block))
            for split, part in ((TRAIN, block[:border]), (VALIDATION, block[border:])):
                counts = self.counts[split]
                counts += np.bincount(part, minlength=len(counts))
        return digest.hexdigest(), begun

    def _check(self, shard: TokenShard, at: int, block: NDArray[np.integer]) -> int:
        """Raise DataError for an invalid id or document end. block: the ids from token `at` on. Return how many
        documents begin with the opening in it. Most pairs have it always or never."""
        starts, size = shard.document_starts, self.tokenizer.vocabulary
        if not 0 <= block.min() <= block.max() < size:
            place = int(np.argmax((block < 0) | (block >= size)))
            raise DataError(
                f"{shard.prefix}.bin holds id {block[place]} at token {at + place}, but the tokenizer has ids 0 to "
                f"{size - 1}; name the one that these tokens were made with in tokens.tokenizer"
            )
        first, behind = (starts.search(token, side="right") for token in (at, at + len(block)))
        wrong = block[starts[first:behind] - 1 - at] != self.tokenizer.end_of_text
        if self.ended and wrong.any():
            place = int(first + np.argmax(wrong))
            raise DataError(
                f"document {place - 1} of {shard.prefix} ends with id {shard.tokens[starts[place] - 1]}, but the "
                f"tokenizer's end of a text is {self.tokenizer.end_of_text}; name the one that these tokens were made "
                "with in tokens.tokenizer, or give --unended when they were made without ends (no --append-eod)"
            )
        begin, end = (starts.search(token, side="left") for token in (at, at + len(block)))
        return int((block[starts[begin:end] - at] == (*self.tokenizer.opening, -1)[0]).sum())


def _linked(pairs: Collection[Adopted], out: Path, reader: _Reader, progress: Progress) -> tuple[dict[str, str], bool]:
    """Read every pair and link its files into `out`.

    Returns the sha256 of each file by the name of its link, and whether most documents begin with the opening.
    """
    files, begun, done = {}, 0, 0
    total = sum(len(one.shard.tokens) for one in pairs)
    for one in pairs:

        def report(read: int, one: Adopted = one, done: int = done) -> None:
            progress(done + read, total, f"reading {one.shard.prefix.name}")

        one.shard.check_weights()
        for there in filter(Path.is_file, files_of(one.shard.prefix)):
            name = f"{one.stem}{there.suffix}"
            if there.suffix == ".bin":
                files[name], opened = reader.read(one, report)
                begun += opened
            else:
                files[name] = file_sha256(there)
            (out / name).symlink_to(there.resolve())
        done += len(one.shard.tokens)
    progress(total, total, "")
    return files, 2 * begun > sum(len(one.shard) for one in pairs)


def _refuse_copies(pairs: Iterable[Adopted]) -> None:
    """Raise DataError if two pairs have the same ids, whatever their names and dtypes are."""
    for one, other in combinations(pairs, 2):  # training pairs come first
        if not _same(one.shard.tokens, other.shard.tokens):
            continue
        same = f"{other.shard.prefix}: its ids are those of {one.shard.prefix}"
        if one.cut and not other.cut:
            raise DataError(
                f"--validation {same}, which trains, so its loss would be one of trained text; name another pair, or "
                "leave --validation out"
            )
        raise DataError(f"PREFIX {same}, and would count twice; name one of the two, and give it a larger weight")


def _same(one: NDArray[np.integer], other: NDArray[np.integer]) -> bool:
    """Whether both arrays have the same ids. Most pairs differ in length or in the first block."""
    blocks = (slice(at, at + _BLOCK_TOKENS) for at in range(0, len(one), _BLOCK_TOKENS))
    return len(one) == len(other) and all(np.array_equal(one[block], other[block]) for block in blocks)
