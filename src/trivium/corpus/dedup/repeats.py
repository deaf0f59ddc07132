"""Exact repetition across documents: whole texts, or single lines or paragraphs that stood in an earlier document.

What counts as equal is equal words: case, punctuation and blanks are set aside (kernels.words.text_keys). Memory
holds a hash for each different text, line or paragraph, of texts also the id, and never the texts.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

from trivium.corpus.dedup.exact import SAME_TEXT, text_key
from trivium.corpus.document import Document
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.kernels.words import text_keys
from trivium.corpus.steps import Reject, Tally, noted

Unit = Literal["lines", "paragraphs"]
_BREAK = {"lines": "\n", "paragraphs": "\n\n"}
NOTHING_NEW = "nothing in it that did not stand in an earlier document"


def without_equal_texts(documents: Iterable[Document], tally: Tally) -> Iterator[Document | Reject]:
    """The first document of each text; on every other is noted which one that is (`same`)."""
    first: dict[bytes, str] = {}
    for document in documents:
        key = text_key(document.text)
        result: Document | Reject = document
        if key in first:
            result = Reject(noted(document, same={"survivor": first[key]}), tally.step, SAME_TEXT)
        first.setdefault(key, document.id)
        yield _counted(result, tally)


def without_repeated(
    documents: Iterable[Document], unit: Unit, tally: Tally, *, words: int
) -> Iterator[Document | Reject]:
    """Every document without the lines or paragraphs that stood before, in it or another; those under `words` stay.

    Metadata of a document that lost some gains `repeated`: how many of the unit went.
    """
    seen: set[int] = set()
    for document in documents:
        pieces = document.text.split(_BREAK[unit])
        kept = [piece for piece, new in zip(pieces, _are_new(pieces, seen, words), strict=True) if new]
        if len(kept) == len(pieces):
            result: Document | Reject = document
        elif any(piece.strip() for piece in kept):
            less = replace(document, text=_BREAK[unit].join(kept))
            result = noted(less, repeated={unit: len(pieces) - len(kept)})
        else:
            result = Reject(document, tally.step, NOTHING_NEW)
        yield _counted(result, tally)


def _are_new(pieces: list[str], seen: set[int], words: int) -> list[bool]:
    found = []
    keys = text_keys(texts_of(pieces))[:, 0].tolist()
    for piece, key in zip(pieces, keys, strict=True):
        short = len(piece.split()) < words
        found.append(short or key not in seen)
        if not short:
            seen.add(key)
    return found


def _counted(result: Document | Reject, tally: Tally) -> Document | Reject:
    if isinstance(result, Reject):
        tally.dropped[result.reason] += 1
    else:
        tally.keep(result)
    return result
