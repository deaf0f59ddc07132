"""Documents, and the other results of reading: damage, and valid records of other kinds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

RAW = "raw"  # metadata key: the format of the text, "html" until it is extracted
PIECE = "#"  # separates a document's id from the number of a piece of it


@dataclass(frozen=True, slots=True)
class Document:
    """The text of one page.

    id: unique in the corpus and stable across runs. source: the dataset that it belongs to, the unit of blending.
    metadata: plain JSON data, to which curation adds its scores and decisions.
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
    """Return the id without the number of a piece, or the id itself if it does not end in one."""
    whole, mark, number = identity.rpartition(PIECE)
    return whole if mark and number.isdecimal() else identity


def origin_of(identity: str, metadata: Mapping[str, Any]) -> str:
    """Return, from its metadata, the id of the document that this one is a piece of, or its own id."""
    cuts = metadata.get("decontamination")
    return str(cuts["of"]) if isinstance(cuts, Mapping) and "of" in cuts else identity


class Trouble(StrEnum):
    """The reasons for which raw input is quarantined."""

    EMPTY = "empty file"
    UNREADABLE = "cannot be read"
    BLANK = "nothing but blanks"
    NOT_TEXT = "not text"
    TOO_LONG = "too long"
    BOMB = "compression bomb"
    PACKED = "damaged compression"
    CUT = "ends early"
    NO_LINE = "no line"
    NOT_JSON = "not JSON"
    NOT_UTF8 = "not UTF-8"
    SURROGATE = "lone surrogate"
    NO_TEXT = "no text"
    PARQUET = "damaged Parquet"
    NO_RECORD = "no WARC record"
    NOT_A_RECORD = "not a WARC record"
    LENGTH = "wrong length"
    HEAD = "no HTTP head"
    DIGEST = "digest differs"
    ENCODING = "wrong encoding"


@dataclass(frozen=True, slots=True)
class Damage:
    """Part of a file that could not be read.

    path: a local path, or a URL. detail: what exactly is wrong. offset: the byte of the stored file where it
    begins (in compressed files, where its gzip member begins; in Parquet, the row). records: how many are lost
    if they can be counted, else 1.
    """

    path: Path | str
    trouble: Trouble
    detail: str
    offset: int = 0
    records: int = 1

    @property
    def text_bytes(self) -> int:
        """Damage and other records have no text."""
        return 0

    @property
    def reason(self) -> str:
        """One line for a person."""
        return f"{self.trouble} at {self.offset}: {' '.join(self.detail.split())}"


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A sound record that is no document, such as a request or an image.

    path: a local path, or a URL. kind: the name it is counted by.
    """

    path: Path | str
    kind: str

    @property
    def text_bytes(self) -> int:
        """Damage and other records have no text."""
        return 0
