"""Parts of a page: sections with figures, tables and text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import plotly.graph_objects as go


@dataclass(frozen=True)
class Table:
    """Rows of text with headings, or names and values without headings."""

    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    @property
    def numeric(self) -> tuple[bool, ...]:
        """For each column, whether it contains numbers, which are right-aligned."""
        return tuple(all(map(_NUMBER.fullmatch, column)) for column in zip(*self.rows, strict=True))


_NUMBER = re.compile(
    r"<? ?[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?%?( to [-+]?[\d.,]+%?)?( ?(%|[KMG]i?B|ms|s|us|min \d+ s))?|unknown|none|–"
)


@dataclass(frozen=True)
class Drawn:
    """A figure and its caption."""

    caption: str
    figure: go.Figure


@dataclass(frozen=True)
class Section:
    """A section of the page.

    missing: the command that creates its results, if there are none. outdated: a note that its results are of
    another input.
    """

    name: str
    title: str
    shows: str
    reading: str = ""
    limits: str = ""
    figures: list[Drawn] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    samples: list[tuple[str, str]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    missing: str = ""
    outdated: str = ""
