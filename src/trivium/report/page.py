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
from trivium.report.cards import cards
from trivium.report.collect import STAGES, collect, results
from trivium.report.embed import embedded_json, render_page
from trivium.report.sections import facts, sections
from trivium.report.verdicts import Verdict, limits, verdicts

OWN = "mine"  # the run directory that is proposed for the user's own text, next to the demo's
DEMO_RESULTS = ("funnel", "training", "resume_proof", "evaluation", "bias", "samples", "plan")  # of a finished demo
_MARKS = {"proven": "✓", "failed": "✗", "not shown": "–", "not tried": "–"}


def write_report(run: Path, report: dict[str, Any] | None = None) -> tuple[Path, Path]:
    """Write report.html and report.json into the run directory, and return their paths.

    report: the tree, if it has been collected already. Raises DataError if a stage's results are damaged; then
    nothing is written.
    """
    report = collect(run) if report is None else report
    page, data = run / "report.html", run / "report.json"
    text = render(report, next_command(report, run), run.resolve().name)
    write_json(data, results(report))
    write_whole(page, text)
    return page, data


def is_demo(report: dict[str, Any]) -> bool:
    """Whether this is the run of `trivium demo` on its own corpus, which is the only one with planted junk."""
    return report["planted"] is not None


def is_tuned(report: dict[str, Any]) -> bool:
    """Whether this is a run of `trivium tune`, which writes conversations as tokens."""
    stamps: dict[str, Any] = report["provenance"] or {}
    return bool(stamps.get("tokens", {}).get("verb") == "tune")


def next_command(report: dict[str, Any], run: Path, *, program: str = "trivium") -> str:
    """Return the command to run next: finish or update this run, and then use it. `program` is the command for
    trivium."""
    home, training = shlex.quote(str(run)), report["training"]
    if not is_demo(report):
        if training is None or not training["finished"]:
            return f"{program} train --out {home}"
        verbs = [verb for stage, verb in STAGES if stage in report["outdated"]]
        if not verbs and is_tuned(report):
            return f"{program} chat {home}"
        verbs += [verb for name, verb in (("samples", "generate"), ("evaluation", "evaluate")) if report[name] is None]
        return f"{program} {verbs[0]} --out {home}" if verbs else f"{program} serve {home}"
    if report["outdated"] or any(report[name] is None for name in DEMO_RESULTS) or not training["finished"]:
        return f"{program} demo --out {home}"
    names = itertools.chain([OWN], (f"{OWN}-{number}" for number in itertools.count(2)))
    out = next(run.parent / name for name in names if not (run.parent / name).exists())
    return f"{program} demo --data YOUR_TEXTS --out {shlex.quote(str(out))}"


def render(report: dict[str, Any], command: str, name: str = "") -> str:
    """Render the page. command: the one to run next. name: that of the run.

    The demo and other runs have a template each. All data is escaped: as text, or as JSON that cannot close its
    element.
    """
    demo = is_demo(report)
    shown = sections(report)
    claims = [v for v in verdicts(report) if demo or v.state != "not tried"]
    tiers = ("picture", "demo picture") if demo else ("picture",)
    pictures = [drawn for tier in tiers for section in shown for drawn in section.figures if drawn.tier == tier]
    for drawn in pictures:
        drawn.figure.layout.height = min(max(drawn.figure.layout.height, 300), 420)  # pixels, as neighbours share a row
    return render_with_figures(
        "demo.html" if demo else "run.html",
        title="Trivium demo" if demo else name or "Run",
        facts=facts(report),
        status=_status(report["training"]),
        cards=cards(report),
        sample=report["samples"][0] if report["samples"] else None,
        pictures=pictures,
        tiers=tiers,
        sections=[section for section in shown if not section.missing],
        missing=[section for section in shown if section.missing],
        claims=[(v.state, _MARKS[v.state], v.text + _state(v)) for v in claims],
        proven=sum(v.state == "proven" for v in claims),
        failed=any(v.state == "failed" for v in claims),
        limits=limits(report),
        next_command=command,
    )


def _status(training: dict[str, Any] | None) -> str:
    if training is None:
        return "not trained"
    if training["finished"]:
        return "finished"
    return f"step {training['steps']:,} of {training['steps_planned'] or 'unknown'}"


def closing_lines(report: dict[str, Any], command: str) -> list[str]:
    """Return the last lines for the terminal: the demo's claims or another run's figures, and the next command."""
    if not is_demo(report):
        width = max((len(card.label) for card in cards(report)), default=0)
        return [f"  {c.label:{width}}  {c.value:>12}  {c.note}".rstrip() for c in cards(report)] + [f"Next: {command}"]
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


def render_with_figures(template: str, **values: Any) -> str:
    """Render a page that draws figures with Plotly, which it contains."""
    return render_page(template, "page.js", get_plotlyjs(), figure_json=figure_json, **values)


def figure_json(figure: go.Figure) -> Markup:
    """Serialize a figure as JSON that cannot close a script element."""
    return Markup(embedded_json(json.loads(figure.to_json())))
