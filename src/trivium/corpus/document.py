"""A document: one page's text, where it came from, and what was decided about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PIECE = "#"  # between a document's id and the number of a piece it was cut into


@dataclass(frozen=True, slots=True)
class Document:
    """One page's text.

    id: unique in the corpus and stable across runs. source: the dataset it came from, the unit of blending.
    metadata: plain JSON data; curation adds its scores and decisions here, so a document carries its history.
    """

    id: str
    text: str
    source: str
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def text_bytes(self) -> int:
        """Size of the text in UTF-8."""
        return len(self.text) if self.text.isascii() else len(self.text.encode("utf-8", "surrogatepass"))


def whole_of(identity: str) -> str:
    """The id of the document that a piece is of; an id that does not end as a piece's is its own."""
    whole, mark, number = identity.rpartition(PIECE)
    return whole if mark and number.isdecimal() else identity


def origin_of(identity: str, metadata: Mapping[str, Any]) -> str:
    """The id of the document that this one is a piece of, or its own: any id may end as a piece's."""
    cuts = metadata.get("decontamination")
    return str(cuts["of"]) if isinstance(cuts, Mapping) and "of" in cuts else identity
