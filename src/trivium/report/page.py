"""Render the report as one self-contained page that needs no network."""

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

OWN = "mine"  # the run directory that is proposed for the user's own text, next to this one
FINISHED_STAGES = ("funnel", "training", "resume_proof", "evaluation", "bias", "samples", "plan")  # of a finished run
_MARKS = {"proven": "✓", "failed": "✗", "not shown": "–", "not tried": "–"}


def write_report(run: Path, report: dict[str, Any] | None = None) -> tuple[Path, Path]:
    """Write report.html and report.json into the run directory, and return their paths.

    report: the tree, if it has been collected already. Raises DataError if a stage's results are damaged; then
    nothing is written.
    """
    report = collect(run) if report is None else report
    page, data = run / "report.html", run / "report.json"
    text = render(report, next_command(report, run))
    write_json(data, results(report))
    write_whole(page, text)
    return page, data


def next_command(report: dict[str, Any], run: Path, *, program: str = "trivium") -> str:
    """Return the command to run next.

    The order is: finish this run or update it, then a run on the user's own text. A training on existing tokens
    is resumed, or its model used. `program` is the command for trivium.
    """
    home = shlex.quote(str(run))
    if report["training"] is not None and report["funnel"] is None:  # the demo would train again on its own tokens
        return f"{program} {'generate' if report['training']['finished'] else 'train --out'} {home}"
    if (
        report["outdated"]
        or any(report[name] is None for name in FINISHED_STAGES)
        or not report["training"]["finished"]
    ):
        return f"{program} demo --out {home}"
    names = itertools.chain([OWN], (f"{OWN}-{number}" for number in itertools.count(2)))
    out = next(run.parent / name for name in names if not (run.parent / name).exists())
    return f"{program} demo --corpus YOUR_TEXTS --out {shlex.quote(str(out))}"


def render(report: dict[str, Any], command: str) -> str:
    """Render the page; `command` is the one to run next.

    All data is escaped: as text, or as JSON that cannot close its element.
    """
    environment = environment_of_pages()
    script = str(environment.get_template("page.js").render())
    plotly = get_plotlyjs()
    return environment.get_template("page.html").render(
        sections=sections(report),
        facts=facts(report),
        proven=[(v.state, _MARKS[v.state], v.text) for v in verdicts(report) if v.state == "proven"],
        open=[(v.state, _MARKS[v.state], v.text + _state(v)) for v in verdicts(report) if v.state != "proven"],
        limits=limits(report),
        next_command=command,
        figure_json=figure_json,
        plotly=Markup(plotly),
        script=Markup(script),
        # Plotly compiles functions from strings for some figures, and adds inline styles.
        policy=policy(plotly, script, functions_from_text=True),
    )


def closing_lines(report: dict[str, Any], command: str) -> list[str]:
    """Return the last lines for the terminal: what was shown, what was not, and the next command."""
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
    """Return the state of a claim that does not hold, unless its text says so already."""
    return "" if verdict.state in ("proven", "not shown") else f" ({verdict.state})"


def figure_json(figure: go.Figure) -> Markup:
    """Serialize a figure as JSON that cannot close a script element."""
    return Markup(embedded_json(json.loads(figure.to_json())))
