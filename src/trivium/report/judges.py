"""The page of judges: their agreement with people against the tokens that an answer takes."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from trivium.report.figures import error_bars, look, plain_label, sized
from trivium.report.page import render_with_figures
from trivium.report.parts import Drawn, Table

Tree = Mapping[str, Any]
DRAWN = {
    "soft_accuracy": "Soft pairwise accuracy of systems",
    "segment_accuracy": "Accuracy with calibrated ties, by segment",
    "spearman": "Spearman's correlation over all items",
}


def render(found: Tree) -> str:
    """Render a `trivium-judge-meta-1` as a page that needs no network."""
    return render_with_figures(
        "judges.html",
        title=f"Judges of {found['human']['name']}",
        human=found["human"],
        figures=figures(found),
        agreement=agreement_table(found),
        without=[judge["name"] for judge in found["judges"] if judge["tokens_per_answer"] is None],
    )


def figures(found: Tree) -> list[Drawn]:
    """Draw each measure against the mean tokens of an answer, a point with its interval for each judge. Judges whose
    tokens are unknown have no place on the axis."""
    drawn = []
    for name, caption in DRAWN.items():
        figure = go.Figure()
        for number, judge in enumerate(found["judges"]):
            measure, tokens = judge["policies"]["drop"][name], judge["tokens_per_answer"]
            if tokens is None or measure["value"] is None:
                continue
            figure.add_scatter(
                name=plain_label(judge["name"]),
                x=[tokens],
                y=[measure["value"]],
                error_y=error_bars([measure["value"]], [measure["interval"]]),
                mode="markers",
                marker={"color": look(number)[0], "size": 10},
            )
        if figure.data:
            axis = {"title": "tokens for each answer, reasoning included", "type": "log"}
            drawn.append(Drawn(caption, sized(figure, 420, axis, "agreement")))
    return drawn


def agreement_table(found: Tree) -> Table:
    """List the judges with tokens, unparsable answers and agreement under each treatment of them."""
    rows = []
    for judge in found["judges"]:
        tokens = judge["tokens_per_answer"]
        for treatment, measures in judge["policies"].items():
            values = (measures[name]["value"] for name in DRAWN)
            rows.append(
                (
                    *(judge["name"], treatment, "unknown" if tokens is None else f"{tokens:,.0f}"),
                    *(f"{judge['unparsable']:,}", *("–" if v is None else f"{v:.3f}" for v in values)),
                )
            )
    return Table(("judge", "unparsable answers", "tokens", "unparsable", *DRAWN.values()), rows)
