"""What is no document: where it stands and why, and the balance of everything that was read."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class Trouble(StrEnum):
    """Every reason for which raw input is set aside."""

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
        """It has no text."""
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
        """It has no text."""
        return 0


@dataclass(slots=True)
class Intake:
    """What reading did with everything it saw. Law: seen = documents + passed over + quarantined."""

    seen: int = 0
    documents: int = 0
    # records that are sound but no documents: reason → count
    passed_over: Counter[str] = field(default_factory=Counter)
    # trouble → records
    quarantined: Counter[str] = field(default_factory=Counter)

    @property
    def balances(self) -> bool:
        """Whether everything seen is accounted for."""
        return self.seen == self.documents + self.passed_over.total() + self.quarantined.total()
