"""Choose the validation documents by keyed hashes, so that adding text does not move other documents."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trivium.corpus.publish.store import read_tables
from trivium.seeds import seed_for

TRAIN, VALIDATION = "train", "validation"


class Survey(NamedTuple):
    """The properties of all documents that the split needs, in the order of the store. `source` indexes `sources`."""

    sources: tuple[str, ...]
    source: NDArray[np.int32]
    text_bytes: NDArray[np.int64]
    draws: NDArray[np.float64]  # a keyed random number for each document, between 0 and 1

    def __len__(self) -> int:
        return len(self.source)


class HeldOut(NamedTuple):
    """The validation text: full documents, or, if no source has two documents, the end of one."""

    whole: NDArray[np.bool_]  # by document
    tail_of: int = -1
    tail_fraction: float = 0.0


class Part(NamedTuple):
    document: str
    source: str
    split: str
    text: str


def survey(store: Path, *, seed: int) -> Survey:
    """Read every document of a store once, verifying its shards."""
    numbers: dict[str, int] = {}
    found: list[tuple[NDArray[Any], ...]] = []
    for table in read_tables(store, ["id", "source", "text"]):
        sources = [numbers.setdefault(name, len(numbers)) for name in table["source"].to_pylist()]
        sizes = pc.binary_length(table["text"]).to_numpy()
        draws = (_draws(table[name].to_pylist(), seed=seed) for name in ("text", "id"))
        found.append((np.array(sources, np.int32), sizes.astype(np.int64), *draws))
    empty = (np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0), np.empty(0))
    source, text_bytes, of_texts, of_ids = map(np.concatenate, zip(*[empty, *found], strict=True))
    # The draw is keyed by the text, which is the same in every file format, unlike ids. Duplicate texts are keyed by
    # their ids; curated corpora contain none.
    first = np.zeros(len(of_texts), np.bool_)
    first[np.unique(of_texts, return_index=True)[1]] = True
    return Survey(tuple(numbers), source, text_bytes, np.where(first, of_texts, of_ids))


def _draws(names: list[str], *, seed: int) -> NDArray[np.float64]:
    return np.array([seed_for(seed, "validation", name) / 2**63 for name in names], np.float64)


def choose_held_out(found: Survey, *, fraction: float) -> HeldOut:
    """Choose documents whose draw is below `fraction`, but never all documents of a source.

    If their text is less than half of that fraction, documents with the next lowest draws are added. If no source
    has several documents, the last `fraction` of the longest document is held out.
    """
    drawn = found.draws < fraction
    totals = np.bincount(found.source, minlength=len(found.sources))
    whole = np.bincount(found.source, drawn, minlength=len(found.sources)) == totals
    chosen = drawn & ~whole[found.source]
    left = totals - np.bincount(found.source, chosen, minlength=len(found.sources)).astype(np.int64)
    wanted = fraction * found.text_bytes.sum()
    held = int(found.text_bytes[chosen].sum())
    enough = wanted / 2 <= held
    for row in np.argsort(found.draws, kind="stable").tolist():
        if chosen.any() and (enough or held >= wanted):
            break
        if not chosen[row] and left[found.source[row]] > 1:
            chosen[row] = True
            left[found.source[row]] -= 1
            held += int(found.text_bytes[row])
    if chosen.any():
        return HeldOut(chosen)
    return HeldOut(chosen, int(found.text_bytes.argmax()), fraction)


def parts_of(table: pa.Table, first: int, held_out: HeldOut) -> Iterator[Part]:
    """Yield the documents of a table from number `first` on. The one whose tail is held out is cut at a blank."""
    columns = (table[name].to_pylist() for name in ("id", "source", "text"))
    for row, (document, source, text) in enumerate(zip(*columns, strict=True), first):
        if row == held_out.tail_of:
            cut = round(len(text) * (1 - held_out.tail_fraction))
            space = re.compile(r"\s").search(text, cut)
            cut = space.start() if space else cut
            yield Part(document, source, TRAIN, text[:cut])
            yield Part(document, source, VALIDATION, text[cut:])
        else:
            yield Part(document, source, VALIDATION if held_out.whole[row] else TRAIN, text)
