"""A page about one plan: its figures, and its schedule over time with the memory of each pipeline rank.

The schedule is drawn on a canvas, because a step of MT-NLG has 16,800 actions, too many for individual elements.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from trivium.provenance import write_whole
from trivium.report.embed import embedded_json, render_page
from trivium.units import format_bytes, format_seconds

TIME_DIGITS = 7  # significant digits of seconds: 0.01 s precision in a step of a day


@dataclass(frozen=True)
class Lane:
    """One pipeline rank.

    spans: (op F, B, I or W; micro-batch; stage; start and end in seconds), in order. memory: (seconds, bytes from
    then on), in order.
    """

    name: str
    spans: Sequence[tuple[str, int, int, float, float]]
    memory: Sequence[tuple[float, float]] = ()

    @property
    def busy(self) -> float:
        """Seconds of work."""
        return sum(end - start for *_, start, end in self.spans)


@dataclass(frozen=True)
class Moved:
    """A tensor sent from one lane to another; `sent` and `arrived` in seconds."""

    source: int
    target: int
    sent: float
    arrived: float


@dataclass(frozen=True)
class Titled:
    """A table with a title. The first column is text, the others are right-aligned."""

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Chart:
    """The content of the page. memory_limit: bytes available to a rank, the full height of a lane's memory curve."""

    title: str
    text: Sequence[str]
    lanes: Sequence[Lane]
    moved: Sequence[Moved]
    memory_limit: float
    tables: Sequence[Titled] = ()

    @property
    def duration(self) -> float:
        """Seconds from the first action to the end of the last."""
        return max((span[4] for lane in self.lanes for span in lane.spans), default=0.0)


def write_chart(path: Path, chart: Chart) -> None:
    """Write the page, atomically replacing an existing one."""
    write_whole(path, render_chart(chart))


def render_chart(chart: Chart) -> str:
    """Render the page; all data is escaped."""
    return render_page(
        "gantt.html",
        "gantt.js",
        title=chart.title,
        chart=chart,
        duration=format_seconds(chart.duration),
        summary=summary(chart),
        data=Markup(embedded_json(drawing(chart))),
    )


def drawing(chart: Chart) -> dict[str, Any]:
    """Return the chart as plain lists for the page's script, with rounded times."""
    return {
        "duration": _rounded(chart.duration),
        "limit": chart.memory_limit,
        "lanes": [
            {
                "name": lane.name,
                "spans": [[op, m, s, _rounded(a), _rounded(b)] for op, m, s, a, b in lane.spans],
                "memory": [[_rounded(t), round(held)] for t, held in lane.memory],
            }
            for lane in chart.lanes
        ],
        "moved": [[m.source, m.target, _rounded(m.sent), _rounded(m.arrived)] for m in chart.moved],
    }


def summary(chart: Chart) -> list[tuple[str, str, str, str]]:
    """Return name, busy time, idle share and peak memory of every lane, as a text alternative to the drawing."""
    return [
        (
            lane.name,
            format_seconds(lane.busy),
            f"{1 - lane.busy / chart.duration:.1%}" if chart.duration else "–",
            format_bytes(max((held for _, held in lane.memory), default=0)),
        )
        for lane in chart.lanes
    ]


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.{TIME_DIGITS}g}")
