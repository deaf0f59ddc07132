"""One self-contained page: text, tables and figures in a single file that asks the network for nothing."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from trivium.provenance import write_json
from trivium.report.collect import collect
from trivium.report.sections import sections
from trivium.report.verdicts import limits, verdicts

NEXT_COMMAND = "trivium demo --corpus YOUR_TEXTS --out runs/mine"
_MARKS = {"proven": "✓", "failed": "✗", "not tried": "–"}


def write_report(run: Path) -> tuple[Path, Path]:
    """Write report.html and report.json into the run directory; returns their paths.

    Raises DataError where a station's results are damaged; nothing is written then.
    """
    report = collect(run)
    page, data = run / "report.html", run / "report.json"
    text = render(report)
    write_json(data, report)
    partial = page.with_name(f".{page.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(page)
    return page, data


def render(report: dict[str, Any]) -> str:
    """The page as text. Data reaches it only through escaping: as text, or as JSON that cannot end its element."""
    environment = Environment(
        loader=PackageLoader("trivium.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    script = str(environment.get_template("page.js").render())
    plotly = get_plotlyjs()
    return environment.get_template("page.html").render(
        sections=sections(report),
        verdicts=[(v.state, _MARKS[v.state], v.text) for v in verdicts(report)],
        limits=limits(report),
        next_command=NEXT_COMMAND,
        figure_json=figure_json,
        plotly=Markup(plotly),
        script=Markup(script),
        policy=_policy(plotly, script),
    )


def closing_lines(report: dict[str, Any]) -> list[str]:
    """The last lines on the terminal: what was proven, what was not, and the next command."""
    return [
        "What this run proved",
        *(
            f"  {_MARKS[v.state]} {v.text}{'' if v.state == 'proven' else f' ({v.state})'}"
            for v in verdicts(report)
        ),
        "What it did not",
        *(f"  – {text}" for text in limits(report)),
        f"Next: {NEXT_COMMAND}",
    ]


def figure_json(figure: go.Figure) -> Markup:
    """A figure as JSON in which nothing can close a script element."""
    text = json.dumps(json.loads(figure.to_json()), allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _policy(*scripts: str) -> str:
    """A content security policy: these scripts by their hashes, no others, and nothing from anywhere.

    Plotly makes functions from text for some kinds of figure, hence 'unsafe-eval'; styles it adds are inline.
    """
    hashes = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts)
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    return (
        f"default-src 'none'; script-src {allowed} 'unsafe-eval'; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )
