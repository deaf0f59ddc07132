"""Parts of a page: cards, and sections with figures, tables and text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import plotly.graph_objects as go

Row = tuple[str, ...]


@dataclass(frozen=True)
class Card:
    """A headline figure. points: (x, y) of its sparkline, both from 0 to 1, with y downwards."""

    label: str
    value: str
    note: str = ""
    points: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Table:
    """Rows of text with headings, or names and values without headings.

    not_significant: further rows, which the page folds away.
    """

    headings: Row
    rows: Sequence[Row]
    not_significant: Sequence[Row] = ()

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Return for each column whether it contains numbers, which are right-aligned."""
        rows = (*self.rows, *self.not_significant)
        return tuple(all(map(_NUMBER.fullmatch, column)) for column in zip(*rows, strict=True))


_NUMBER = re.compile(
    r"<? ?[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?%?( to [-+]?[\d.,]+(e[-+]?\d+)?%?)?"
    r"( ?(%|[KMG]i?B|ms|s|us|min \d+ s))?|unknown|none|–"
)


@dataclass(frozen=True)
class Drawn:
    """A figure and its caption.

    tier: pictures are shown below the cards, some of them only for the demo. Details are folded with their section,
    and figures of what is not significant are folded once more.
    """

    caption: str
    figure: go.Figure
    tier: Literal["picture", "demo picture", "detail", "not significant"] = "detail"


@dataclass(frozen=True)
class Section:
    """A section of the page, folded until the reader opens it.

    gist: its result in a few words, shown while it is folded. missing: the command that creates its results, if there
    are none. outdated: a note that its results are of another input.
    """

    name: str
    title: str
    shows: str
    gist: str = ""
    reading: str = ""
    limits: str = ""
    figures: list[Drawn] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    samples: list[tuple[str, str]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    missing: str = ""
    outdated: str = ""
