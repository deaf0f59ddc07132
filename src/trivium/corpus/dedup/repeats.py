"""Exact repetition across documents: whole texts, or single lines or paragraphs of earlier documents.

Texts are equal if their words are; case, punctuation and blanks do not count (kernels.words). Memory holds a hash for
each different text, line or paragraph, and, if whole texts are compared, id, source and quality of each document.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Literal

from trivium.corpus.config import DedupConfig
from trivium.corpus.dedup.groups import SAME_TEXT, ranks_of, survivors, text_key
from trivium.corpus.document import Document
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.kernels.words import keys_and_words
from trivium.corpus.steps import Drop, Reject, Tally, figure_of, noted

Unit = Literal["lines", "paragraphs"]
_BREAK = {"lines": "\n", "paragraphs": "\n\n"}
NOTHING_NEW = "nothing in it that did not stand in an earlier document"


def without_equal_texts(
    read: Callable[[], Iterable[Document]], config: DedupConfig, tally: Tally
) -> Iterator[Document | Reject]:
    """Keep the document that survives for each text (`groups.survivors`). Rejects name it in their metadata (`same`).

    read: gives the documents. It is called twice, because the best may be the last.
    """
    numbers: dict[bytes, int] = {}  # of each text
    ids, sources, texts, figures = list[str](), list[str](), array("q"), array("d")
    for document in read():
        texts.append(numbers.setdefault(text_key(document.text), len(numbers)))
        figures.append(figure_of(document.metadata, config.quality))
        ids.append(document.id)
        sources.append(document.source)
    best = survivors(texts, ranks_of(sources, priority=config.priority), figures).tolist()
    for number, document in enumerate(read()):
        result: Document | Reject = document
        if best[number] != number:
            result = Reject(noted(document, same={"survivor": ids[best[number]]}), tally.step, SAME_TEXT)
        yield _counted(result, tally)


def without_repeated(
    documents: Iterable[Document], unit: Unit, tally: Tally, *, words: int
) -> Iterator[Document | Reject]:
    """Remove lines or paragraphs that occurred before, in the same or another document. Those with fewer than `words`
    words stay, such as separators.

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
    keys, counts = keys_and_words(texts_of(pieces))
    for key, count in zip(keys[:, 0].tolist(), counts.tolist(), strict=True):
        short = count < words
        found.append(short or key not in seen)
        if not short:
            seen.add(key)
    return found


def _counted(result: Document | Reject, tally: Tally) -> Document | Reject:
    if isinstance(result, Reject):
        tally.drop(result.document, Drop(result.reason))
    else:
        tally.keep(result)
    return result
