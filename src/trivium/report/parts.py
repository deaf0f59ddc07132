"""What a page is made of: sections with figures, tables and text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import plotly.graph_objects as go


@dataclass(frozen=True)
class Table:
    """Rows of text under headings; without headings, names and their values."""

    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    @property
    def numeric(self) -> tuple[bool, ...]:
        """For each column, whether it holds numbers, which stand to the right."""
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
    """A part of the page. missing: the command that would fill it, when nothing is there yet. outdated: that it is of
    another input than the page's, if it is."""

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
