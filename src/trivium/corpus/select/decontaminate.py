"""Removes evaluation text from the corpus by MT-NLG's n-gram rule, as Megatron-LM's filter_ngrams does.

Words are `\\w+` in lower case, or single letters in scripts without blanks between words. The keys of an evaluation
text of 13 or more words are all its 13-grams. One of 8 to 12 words is a single key, a shorter one has none. Keys that
are too frequent in the corpus are common phrases and are spared. A document is split at a hit: the hit and 200
characters on each side are removed, up to the ends of the sentences. Pieces under 200 characters are dropped, and so is
a document with more than 10 splits.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import count, groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from trivium.corpus.config import DecontaminationConfig
from trivium.corpus.document import PIECE, Document
from trivium.corpus.kernels.ngrams import Ngrams, find_ngrams, ngram_index, ngrams_of
from trivium.corpus.kernels.texts import Texts, joined, texts_of, words_of

_SENTENCE_ENDS = ".!?。！？｡။។"


class Hit(NamedTuple):
    """An occurrence of a key: the characters [start, end) of the text, and the key's number in `Keys`."""

    start: int
    end: int
    key: int


class Cut(NamedTuple):
    """The remaining pieces of a text as spans [start, end) of characters, and the number of splits."""

    pieces: list[tuple[int, int]]
    splits: int


@dataclass(slots=True)
class Counters:
    """The number of documents, and the paper's four figures: split, removed, too many pieces, trimmed at one end."""

    documents: int = 0
    split: int = 0
    trimmed: int = 0
    removed: int = 0
    too_many_pieces: int = 0
    keys: set[int] = field(default_factory=set)  # found in the corpus

    def as_json(self) -> dict[str, Any]:
        """Return the figures of decontamination.json."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "keys"}


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
        matches: list[list[int]] = find_ngrams(texts, self._index).tolist()
        result: dict[int, list[Hit]] = {}
        for number, some in groupby(matches, itemgetter(0)):
            data = texts.data[texts.offsets[number] : texts.offsets[number + 1]].tobytes()
            if hits := self._verified(data, some):
                result[number] = hits
        return result

    def _verified(self, data: bytes, matches: Iterable[Sequence[int]]) -> list[Hit]:
        """Return the matches in one text whose words are those of the key: equal hashes may be a collision."""
        hits: list[Hit] = []
        place = characters = 0  # of the same position in the text, in bytes and in characters
        last = -1
        for _, start, end, key in matches:
            text = data[start:end].decode("utf-8", "surrogatepass")
            if start == last or " ".join(words_of(text)) != self.text_of(key):
                continue
            characters += len(data[place:start].decode("utf-8", "surrogatepass"))
            place = last = start
            hits.append(Hit(characters, characters + len(text), key))
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
    """Apply the rule to one text, given every occurrence of a key in it."""
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
    """Return the document itself, its pieces under new ids, or nothing.

    is_taken: whether another document has this id.
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
