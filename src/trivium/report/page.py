"""One self-contained page: text, tables and figures in a single file that asks the network for nothing."""

import itertools
import json
import shlex
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from trivium.provenance import write_json, write_whole
from trivium.report.collect import collect, results
from trivium.report.embed import embedded_json, environment_of_pages, policy
from trivium.report.sections import facts, sections
from trivium.report.verdicts import Verdict, limits, verdicts

OWN = "mine"  # the run directory proposed for the user's own text, beside this one
STATIONS = (
    "funnel",
    "training",
    "resume_proof",
    "evaluation",
    "bias",
    "samples",
    "plan",
)  # of a finished run
_MARKS = {"proven": "✓", "failed": "✗", "not shown": "–", "not tried": "–"}


def write_report(run: Path, report: dict[str, Any] | None = None) -> tuple[Path, Path]:
    """Write report.html and report.json into the run directory; returns their paths.

    report: what was collected there, if it was. Raises DataError where a station's results are damaged; nothing is
    written then.
    """
    report = collect(run) if report is None else report
    page, data = run / "report.html", run / "report.json"
    text = render(report, next_command(report, run))
    write_json(data, results(report))
    write_whole(page, text)
    return page, data


def next_command(report: dict[str, Any], run: Path, *, program: str = "trivium") -> str:
    """What to do next: finish this run, or what is outdated in it; then the same with the user's own text beside it.
    A training on tokens made elsewhere is gone on with, or asked.

    `program` is how the user calls trivium.
    """
    home = shlex.quote(str(run))
    if (
        report["training"] is not None and report["funnel"] is None
    ):  # the demo would train anew, on tokens of its own
        return f"{program} {'generate' if report['training']['finished'] else 'train --out'} {home}"
    if (
        report["outdated"]
        or any(report[name] is None for name in STATIONS)
        or not report["training"]["finished"]
    ):
        return f"{program} demo --out {home}"
    names = itertools.chain([OWN], (f"{OWN}-{number}" for number in itertools.count(2)))
    out = next(run.parent / name for name in names if not (run.parent / name).exists())
    return f"{program} demo --corpus YOUR_TEXTS --out {shlex.quote(str(out))}"


def render(report: dict[str, Any], command: str) -> str:
    """The page as text, `command` being the next to run.

    Data reaches it only through escaping: as text, or as JSON that cannot end its element.
    """
    environment = environment_of_pages()
    script = str(environment.get_template("page.js").render())
    plotly = get_plotlyjs()
    return environment.get_template("page.html").render(
        sections=sections(report),
        facts=facts(report),
        proven=[(v.state, _MARKS[v.state], v.text) for v in verdicts(report) if v.state == "proven"],
        open=[
            (v.state, _MARKS[v.state], v.text + _state(v)) for v in verdicts(report) if v.state != "proven"
        ],
        limits=limits(report),
        next_command=command,
        figure_json=figure_json,
        plotly=Markup(plotly),
        script=Markup(script),
        # Plotly makes functions from text for some kinds of figure; styles it adds are inline.
        policy=policy(plotly, script, functions_from_text=True),
    )


def closing_lines(report: dict[str, Any], command: str) -> list[str]:
    """The last lines on the terminal: what was proven, what was not, and the next command."""
    found = verdicts(report)
    proven = [f"  {_MARKS[v.state]} {v.text}" for v in found if v.state == "proven"]
    other = [f"  {_MARKS[v.state]} {v.text}{_state(v)}" for v in found if v.state != "proven"]
    return [
        "What this run has shown",
        *(proven or ["  nothing yet"]),
        "What it has not",
        *other,
        *(f"  – {text}" for text in limits(report)),
        f"Next: {command}",
    ]


def _state(verdict: Verdict) -> str:
    """The state of a claim that does not hold, where its text does not say it already."""
    return "" if verdict.state in ("proven", "not shown") else f" ({verdict.state})"


def figure_json(figure: go.Figure) -> Markup:
    """A figure as JSON in which nothing can close a script element."""
    return Markup(embedded_json(json.loads(figure.to_json())))
