"""Long texts → documents: cut at blank lines, by the same rule whatever kind of file they stand in."""

from collections.abc import Iterator
from dataclasses import replace

from trivium.corpus.document import Document

CUT_FROM = "cut_from"  # metadata key of a piece: the id of the whole text, and the number of the piece from 0

_LONGEST_PARAGRAPH = 1 << 14  # characters; a longer one is cut as well
_SENTENCE_ENDS = (". ", "! ", "? ", "。", "！", "？")


def paragraphs_of(text: str, *, longest: int) -> Iterator[str]:
    """`text` cut at blank lines into pieces of at most `longest` characters where paragraphs allow it.

    A paragraph of more than `longest` and 16,384 characters is cut at ends of lines, else of sentences, else at blanks,
    else anywhere. Where a piece ends depends on what stands before its end and shortly behind it, so a text may be cut
    as it is read: each piece but the last is final.
    """
    text = text.replace("\r\n", "\n")
    start = 0
    while len(text) - start > longest:
        end, following = _end_of_piece(text, start, longest)
        yield text[start:end]
        start = following
        if end == len(text):
            return
    yield text[start:]


def pieces_of(document: Document, *, longest: int) -> Iterator[Document]:
    """Yield the document itself, or its pieces if it is longer, each under an id of its own: `7-0`, `7-1`, …"""
    texts = [document.text]
    if len(document.text) > longest:
        texts = list(filter(str.strip, paragraphs_of(document.text, longest=longest)))
    if len(texts) < 2:
        yield document
        return
    for number, text in enumerate(texts):
        told = {**document.metadata, CUT_FROM: {"id": document.id, "piece": number}}
        yield replace(document, id=f"{document.id}-{number}", text=text, metadata=told)


def is_later_piece(document: Document) -> bool:
    """Return whether a document is a piece of a text, and not the first one."""
    told = document.metadata.get(CUT_FROM)
    return isinstance(told, dict) and isinstance(told.get("piece"), int) and told["piece"] > 0


def _end_of_piece(text: str, start: int, longest: int) -> tuple[int, int]:
    """Return where the piece at `start` ends, and where the next one begins."""
    stop = start + longest
    end = text.rfind("\n\n", start, stop + 2)
    if end >= 0:
        return end, end + 2
    most = start + max(longest, _LONGEST_PARAGRAPH)
    end = text.find("\n\n", start, most + 2)
    if end >= 0:
        return end, end + 2
    if len(text) <= most:
        return len(text), len(text)
    end = text.rfind("\n", start, stop + 1)
    if end > start:
        return end, end + 1
    ends = [found + len(mark) for mark in _SENTENCE_ENDS if (found := text.rfind(mark, start, stop)) >= 0]
    end = max(ends, default=0) or text.rfind(" ", start, stop) + 1 or stop
    return end, end
