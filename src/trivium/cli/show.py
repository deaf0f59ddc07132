"""Display of progress and results: a bar on a terminal, plain lines elsewhere."""

import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from json import dumps
from pathlib import Path
from typing import Any, TextIO

from trivium.finite import dumps as finite_dumps
from trivium.progress import Progress
from trivium.provenance import write_json
from trivium.report.words import layout_text as degrees_text
from trivium.units import format_seconds, one_line, plain

STANDARD_OUTPUT = Path("-")  # in the place of a file
PLAIN_SECONDS = 5.0  # between two plain lines
BAR_SECONDS = 0.1  # between two drawings of the bar
COLUMNS_FOR_BOTH = 130  # width of a terminal for a bar and a note of 80 characters


def say(text: str = "") -> None:
    """A line of result, on standard output at once."""
    tell(f"{text}\n")


def tell(text: str) -> None:
    """A piece of a result, on standard output at once, as text: whatever it holds, the terminal obeys none of it."""
    print(plain(text), end="", flush=True)


def say_aside(text: str) -> None:
    """A line on standard error, for people, where programs read standard output; as text, too."""
    print(plain(text), file=sys.stderr, flush=True)


def say_found(lines: Iterable[str], data: Mapping[str, Any], json: Path | None, html: Path | None = None) -> None:
    """A result as lines, and as data in a file; on standard output, for a program that reads nothing else there, as
    data alone. html: the page of it, which is written."""
    if json == STANDARD_OUTPUT:
        say(dumps(data))
        return
    for line in lines:
        say(line)
    if html is not None:
        say(f"page written to {html}")
    if json is not None:
        write_json(json, data)
        say(f"data written to {json}")


def say_either(lines: Iterable[str], data: Any, as_json: bool) -> None:
    """Print a result as lines for people, or as one line of JSON for programs."""
    for line in [finite_dumps(data, ensure_ascii=False)] if as_json else lines:
        say(line)


@contextmanager
def progress_of(name: str, stream: TextIO | None = None, *, long_notes: bool = False) -> Iterator[Progress]:
    """Show how far a stage is, on standard error: a bar on a terminal, now and then a line elsewhere. long_notes: notes
    say how far it is, and a terminal has a bar only if it is wide enough for both."""
    out = stream or sys.stderr
    if out.isatty():
        with _bar(name, out, long_notes=long_notes) as progress:
            yield progress
    else:
        yield PlainProgress(name, out)


@dataclass
class PlainProgress:
    """At most one line every few seconds, so that a log stays readable."""

    name: str
    out: TextIO
    last: float = field(default_factory=time.monotonic)

    def __call__(self, done: int, total: int | None, note: str) -> None:
        now = time.monotonic()
        if now - self.last < PLAIN_SECONDS:
            return
        self.last = now
        share = f" {100 * done // total}%" if total else ""
        print(f"  {self.name}{share}  {one_line(note)}", file=self.out, flush=True)


@contextmanager
def _bar(name: str, out: TextIO, *, long_notes: bool = False) -> Iterator[Progress]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console(file=out)
    has_bar = not long_notes or console.width >= COLUMNS_FOR_BOTH
    with_bar = (TextColumn("{task.description}"), BarColumn(bar_width=24), TaskProgressColumn(), TimeElapsedColumn())
    columns = (TextColumn(" "), *(with_bar if has_bar else ()), TextColumn("[dim]{task.fields[note]}"))
    # No refresh thread: training forks this process, and a fork must not copy a lock that a thread holds.
    with Bar(*columns, console=console, auto_refresh=False, transient=True) as bar:
        task = bar.add_task(name, total=None, note="")
        drawn = time.monotonic()

        def progress(done: int, total: int | None, note: str) -> None:
            nonlocal drawn
            now = time.monotonic()
            if now - drawn >= BAR_SECONDS or done == total:
                drawn = now
                bar.update(task, completed=done, total=total, note=escape(one_line(note)))
                bar.refresh()

        yield progress


def table(rows: Sequence[Sequence[Any]], *, header: Sequence[str] | None = None, indent: int = 2) -> list[str]:
    """Rows as aligned text: numbers to the right, words to the left."""
    texts = [[_cell(value) for value in row] for row in rows]
    every = [list(header), *texts] if header else texts
    if not every:
        return []
    widths = [max(len(row[c]) for row in every) for c in range(len(every[0]))]
    right = [bool(rows) and isinstance(rows[0][c], int | float) for c in range(len(widths))]
    return [
        " " * indent
        + "  ".join(
            cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in every
    ]


def percent(fraction: float | None) -> str:
    """`12.3 %`; `-` of none."""
    return "-" if fraction is None else f"{100 * fraction:.1f} %"


def percent_range(interval: Sequence[float]) -> str:
    """`1.2 - 12.3 %`."""
    low, high = interval
    return f"{100 * low:.1f} - {100 * high:.1f} %"


def seconds_line(stage: str, seconds: float) -> str:
    """`train: done in 1 min 15 s`."""
    return f"{stage}: done in {format_seconds(seconds)}"


def layout_text(layout: Mapping[str, Any]) -> str:
    """`tensor 2 x pipeline 2 (2 chunks) x data 2 (expert 2) = 8 ranks`; expert ranks are among the others."""
    ranks = math.prod(int(layout.get(axis, 1)) for axis in ("tensor", "pipeline", "data", "context"))
    return f"{degrees_text(layout)} = {ranks} rank{'' if ranks == 1 else 's'}"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else one_line(str(value))
