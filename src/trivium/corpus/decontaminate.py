"""Evaluation text is cut out of the corpus: MT-NLG's n-gram rule, as in Megatron-LM's filter_ngrams.

Words are `\\w+` in lower case. An evaluation text of 13 or more words gives all its 13-grams as keys, one of 8 to
12 words is one key as a whole, a shorter one none. Keys found too often in the corpus are common phrases and are
spared. At a hit the document is split: the hit and 200 characters on each side go, on to the ends of the
sentences; pieces under 200 characters are dropped, and so is a document that falls into more than 10 pieces.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from trivium.corpus.config import DecontaminationConfig
from trivium.corpus.document import Document

_WORDS = re.compile(r"\w+")
_SENTENCE_ENDS = ".!?"


class Hit(NamedTuple):
    """A key found: the characters [start, end) of the text, and the key."""

    start: int
    end: int
    key: str


class Cut(NamedTuple):
    """What is left of a text: spans [start, end) of characters, how often it was split, the keys found."""

    pieces: list[tuple[int, int]]
    splits: int
    keys: list[str]


@dataclass(slots=True)
class Counters:
    """The paper's four figures (split, removed, too many pieces, trimmed at one end) and what they are out of."""

    documents: int = 0
    split: int = 0
    trimmed: int = 0
    removed: int = 0
    too_many_pieces: int = 0
    seen: set[str] = field(default_factory=set)

    def as_json(self) -> dict[str, Any]:
        """Plain data, as in decontamination.json."""
        names = ("documents", "split", "trimmed", "removed", "too_many_pieces")
        return {name: getattr(self, name) for name in names}


class Keys:
    """The n-grams of evaluation texts, by length, made to be looked up fast."""

    def __init__(self, items: Mapping[str, str], config: DecontaminationConfig) -> None:
        """`items`: evaluation text by its id."""
        self.owners: dict[str, str] = {}
        for item, text in items.items():
            for key in keys_of(text, config):
                self.owners.setdefault(key, item)
        self._index()

    def spare(self, common: Iterable[str]) -> None:
        """Forget keys that turned out to be common phrases."""
        for key in common:
            self.owners.pop(key, None)
        self._index()

    def find(self, words: list[str], position: int) -> str | None:
        """The longest key that begins at this word."""
        for size in self._sizes:
            key = " ".join(words[position : position + size])
            if position + size <= len(words) and key in self.owners:
                return key
        return None

    def may_begin(self, words: list[str]) -> Iterator[int]:
        """Positions whose three words begin some key; few, so that most of a text is never looked up."""
        begins = self._begins
        for position, three in enumerate(zip(words, words[1:], words[2:], strict=False)):
            if three in begins:
                yield position

    def _index(self) -> None:
        split = [key.split(" ") for key in self.owners]
        self._begins = {tuple(words[:3]) for words in split}
        self._sizes = sorted({len(words) for words in split}, reverse=True)


def keys_of(text: str, config: DecontaminationConfig) -> list[str]:
    """The keys of one evaluation text."""
    words = _WORDS.findall(text.lower())
    if len(words) < config.shortest:
        return []
    size = min(config.ngram, len(words))
    return [" ".join(words[i : i + size]) for i in range(len(words) - size + 1)]


def hits(text: str, keys: Keys) -> Iterator[Hit]:
    """Every key in a text, by position."""
    matches = list(_WORDS.finditer(text))
    words = [match.group().lower() for match in matches]
    for position in keys.may_begin(words):
        key = keys.find(words, position)
        if key is not None:
            last = position + key.count(" ")
            yield Hit(matches[position].start(), matches[last].end(), key)


def common_keys(texts: Iterable[str], keys: Keys, *, common: int) -> Counter[str]:
    """The keys that occur at least `common` times in the corpus, with their counts."""
    counts = Counter(hit.key for text in texts for hit in hits(text, keys))
    return Counter({key: count for key, count in counts.items() if count >= common})


def cut(text: str, keys: Keys, config: DecontaminationConfig) -> Cut:
    """What the rule leaves of one text."""
    pieces: list[tuple[int, int]] = []
    found: list[str] = []
    start = splits = 0
    open_end = True
    for hit in hits(text, keys):
        found.append(hit.key)
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
    return Cut(pieces, splits, found)


def decontaminate(
    document: Document, keys: Keys, config: DecontaminationConfig, counters: Counters
) -> list[Document]:
    """The documents that are left of one: itself, its pieces under ids of their own, or none."""
    result = cut(document.text, keys, config)
    counters.documents += 1
    counters.seen.update(keys.owners[key] for key in result.keys)
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
    return [_piece(document, number, span, result) for number, span in enumerate(result.pieces)]


def _piece(document: Document, number: int, span: tuple[int, int], result: Cut) -> Document:
    cuts = {"splits": result.splits, "piece": number, "pieces": len(result.pieces), "of": document.id}
    return replace(
        document,
        id=document.id if len(result.pieces) == 1 else f"{document.id}#{number}",
        text=document.text[slice(*span)].strip(),
        metadata={**document.metadata, "decontamination": cuts},
    )


def _sentence_end_before(text: str, position: int, *, floor: int) -> int:
    """End of the last sentence that ends at or before `position`; `floor` when there is none after it."""
    ends = [text.rfind(mark, floor, max(position + 1, floor)) for mark in _SENTENCE_ENDS]
    return max(ends) + 1 if max(ends) > floor else floor


def _sentence_end_after(text: str, position: int) -> int:
    """Just after the first sentence end at or after `position`; the length of the text when there is none."""
    ends = [end for mark in _SENTENCE_ENDS if (end := text.find(mark, position)) >= 0]
    return min(ends) + 1 if ends else len(text)
