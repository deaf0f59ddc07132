"""Cuts evaluation text out of the corpus by MT-NLG's n-gram rule, as in Megatron-LM's filter_ngrams.

Words are `\\w+` in lower case, or single letters in scripts without blanks between words. An evaluation text of 13 or
more words gives all its 13-grams as keys, one of 8 to 12 words is one key as a whole, a shorter one none. Keys found
too often in the corpus are common phrases and are spared. At a hit the document is split: the hit and 200 characters on
each side go, on to the ends of the sentences; pieces under 200 characters are dropped, and so is a document that falls
into more than 10 pieces.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from trivium.corpus.config import DecontaminationConfig
from trivium.corpus.document import PIECE, Document
from trivium.corpus.kernels.ngrams import Ngrams, find_ngrams, ngram_index, ngrams_of
from trivium.corpus.kernels.texts import WORD, Texts, fold, joined, texts_of, words_of

_SENTENCE_ENDS = ".!?。！？｡။។"


class Hit(NamedTuple):
    """An occurrence of a key: the characters [start, end) of the text, and the key's number in `Keys`."""

    start: int
    end: int
    key: int


class Cut(NamedTuple):
    """What is left of a text: spans [start, end) of characters, and how often it was split."""

    pieces: list[tuple[int, int]]
    splits: int


@dataclass(slots=True)
class Counters:
    """The paper's four figures (split, removed, too many pieces, trimmed at one end), and the number of documents."""

    documents: int = 0
    split: int = 0
    trimmed: int = 0
    removed: int = 0
    too_many_pieces: int = 0
    keys: set[int] = field(default_factory=set)  # found in the corpus

    def as_json(self) -> dict[str, Any]:
        """Return the figures of decontamination.json."""
        names = ("documents", "split", "trimmed", "removed", "too_many_pieces")
        return {name: getattr(self, name) for name in names}


class Keys:
    """The n-grams of evaluation texts, indexed for fast search."""

    def __init__(self, items: Mapping[str, str], config: DecontaminationConfig) -> None:
        """items: evaluation texts by their ids."""
        self._items, self._texts = list(items), list(items.values())
        self._words: dict[int, list[str]] = {}  # of the texts whose keys were requested
        self._use(ngrams_of(joined(self._texts), longest=config.ngram, shortest=config.shortest))

    def __len__(self) -> int:
        return len(self._ngrams.hashes)

    @property
    def owners(self) -> dict[str, str]:
        """The first item of every key."""
        texts = self._ngrams.texts.tolist()
        return {self.text_of(which): self._items[text] for which, text in enumerate(texts)}

    def items_with(self, keys: Collection[str]) -> set[str]:
        """Return the first item of each of these keys."""
        chosen = np.isin(self._ngrams.hashes, ngrams_of(texts_of(list(keys))).hashes)
        return {self._items[text] for text in self._ngrams.texts[chosen].tolist()}

    def spare(self, common: Collection[str]) -> None:
        """Remove keys that are common phrases."""
        spared = np.isin(self._ngrams.hashes, ngrams_of(texts_of(list(common))).hashes)
        self._use(self._ngrams.only(~spared))

    def text_of(self, which: int) -> str:
        """Return the words of the key of this number."""
        text, first, size = (int(column[which]) for column in self._ngrams[2:5])
        if text not in self._words:
            self._words[text] = words_of(self._texts[text])
        return " ".join(self._words[text][first : first + size])

    def hits(self, texts: Texts) -> dict[int, list[Hit]]:
        """Return the occurrences of keys by the number of the text; where several begin, the longest."""
        matches = find_ngrams(texts, self._index).tolist()
        result: dict[int, list[Hit]] = {}
        for number, some in groupby(matches, itemgetter(0)):
            data = texts.data[texts.offsets[number] : texts.offsets[number + 1]].tobytes()
            if hits := self._verified(fold(data.decode("utf-8", "surrogatepass")), some):
                result[number] = hits
        return result

    def _verified(self, text: str, matches: Iterable[Sequence[int]]) -> list[Hit]:
        """Return the matches in one folded text whose words are those of the key: equal hashes may be a collision."""
        spans = np.fromiter((place for word in WORD.finditer(text) for place in word.span()), np.int64)
        hits: list[Hit] = []
        for _, first, size, key in matches:
            start, end = int(spans[2 * first]), int(spans[2 * (first + size) - 1])
            if hits and hits[-1].start == start:
                continue
            if " ".join(WORD.findall(text, start, end)) == self.text_of(key):
                hits.append(Hit(start, end, key))
        return hits

    def _use(self, ngrams: Ngrams) -> None:
        self._ngrams, self._index = ngrams, ngram_index(ngrams)


def keys_of(text: str, config: DecontaminationConfig) -> list[str]:
    """Return the keys of one evaluation text."""
    words = words_of(text)
    if len(words) < config.shortest:
        return []
    size = min(config.ngram, len(words))
    return [" ".join(words[i : i + size]) for i in range(len(words) - size + 1)]


def cut(text: str, hits: Sequence[Hit], config: DecontaminationConfig) -> Cut:
    """Return what the rule leaves of one text, given every place of a key in it."""
    pieces: list[tuple[int, int]] = []
    start = splits = 0
    open_end = True
    for hit in hits:
        if hit.start < start:
            continue
        splits += 1
        left = _sentence_end_before(text, hit.start - config.margin, floor=start)
        if left > start:
            pieces.append((start, left))
        start = _sentence_end_after(text, hit.end + config.margin)
        if start >= len(text):
            open_end = False
            break
    if open_end:
        pieces.append((start, len(text)))
    if splits:
        pieces = [piece for piece in pieces if piece[1] - piece[0] >= config.piece]
    return Cut(pieces, splits)


def decontaminate(
    document: Document,
    hits: Sequence[Hit],
    config: DecontaminationConfig,
    counters: Counters,
    is_taken: Callable[[str], bool] = lambda _: False,
) -> list[Document]:
    """Return what is left of a document: itself, its pieces under new ids, or nothing.

    is_taken: whether another document has an id that a piece would get.
    """
    counters.documents += 1
    result = cut(document.text, hits, config)
    counters.keys.update(hit.key for hit in hits)
    if result.splits == 0:
        return [document]
    if result.splits > config.pieces:
        counters.too_many_pieces += 1
        return []
    if not result.pieces:
        counters.removed += 1
        return []
    if len(result.pieces) == 1:
        counters.trimmed += 1
    else:
        counters.split += 1
    own = (one for number in count() if not is_taken(one := f"{document.id}{PIECE}{number}"))
    ids = [document.id] if len(result.pieces) == 1 else islice(own, len(result.pieces))
    return [_piece(document, number, one, result) for number, one in enumerate(ids)]


def _piece(document: Document, number: int, identity: str, result: Cut) -> Document:
    cuts = {"splits": result.splits, "piece": number, "pieces": len(result.pieces), "of": document.id}
    return replace(
        document,
        id=identity,
        text=document.text[slice(*result.pieces[number])].strip(),
        metadata={**document.metadata, "decontamination": cuts},
    )


def _sentence_end_before(text: str, position: int, *, floor: int) -> int:
    """Return the end of the last sentence that ends at or before `position` and after `floor`, else `floor`."""
    ends = [text.rfind(mark, floor, max(position + 1, floor)) for mark in _SENTENCE_ENDS]
    return max(ends) + 1 if max(ends) > floor else floor


def _sentence_end_after(text: str, position: int) -> int:
    """Return the place behind the first end of a sentence at or after `position`, else the length of the text."""
    ends = [end for mark in _SENTENCE_ENDS if (end := text.find(mark, position)) >= 0]
    return min(ends) + 1 if ends else len(text)
