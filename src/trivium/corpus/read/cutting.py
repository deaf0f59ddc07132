"""Cut long texts into documents at blank lines, by the same rule in every kind of file."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from trivium.corpus.document import Document, origin_of

CUT_FROM = "cut_from"  # metadata key of a piece: the id of the whole text, and the number of the piece from 0
TEXT_PIECE = "-"  # separates the id of a text from the number of a piece of it

_MAX_PARAGRAPH = 1 << 14  # characters; a longer paragraph is cut as well
_SENTENCE_ENDS = (". ", "! ", "? ", "。", "！", "？")


def paragraphs_of(text: str, *, longest: int) -> Iterator[str]:
    """Yield the pieces of a text, cut at blank lines, of at most `longest` characters where paragraphs allow it.

    A paragraph of more than `longest` and 16,384 characters is cut at ends of lines, else of sentences, else at blanks,
    else anywhere. The end of a piece depends only on the text before and shortly behind it, so a text may be cut while
    it is read: each piece but the last is final.
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
    """Yield the document itself or, if it is longer, its pieces under ids of their own: `7-0`, `7-1`, …"""
    texts = [document.text]
    if len(document.text) > longest:
        texts = list(filter(str.strip, paragraphs_of(document.text, longest=longest)))
    if len(texts) < 2:
        yield document
        return
    for number, text in enumerate(texts):
        metadata = {**document.metadata, CUT_FROM: {"id": document.id, "piece": number}}
        yield replace(document, id=f"{document.id}{TEXT_PIECE}{number}", text=text, metadata=metadata)


def id_of_text(identity: str, metadata: Mapping[str, Any]) -> str:
    """Return the id of the whole text that a document with this id and metadata is a piece of, or its own id."""
    cut = metadata.get(CUT_FROM)
    return str(cut["id"]) if isinstance(cut, Mapping) and "id" in cut else origin_of(identity, metadata)


def is_later_piece(document: Document) -> bool:
    """Return whether a document is a piece of a text, and not the first one."""
    match document.metadata.get(CUT_FROM):
        case {"piece": int(piece)}:
            return piece > 0
    return False


def _end_of_piece(text: str, start: int, longest: int) -> tuple[int, int]:
    """Return where the piece at `start` ends, and where the next one begins."""
    stop = start + longest
    end = text.rfind("\n\n", start, stop + 2)
    if end >= 0:
        return end, end + 2
    most = start + max(longest, _MAX_PARAGRAPH)
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
