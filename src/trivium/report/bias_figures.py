"""Figures of the bias section except occupations: one-sided adjectives, sentiment, and effects along training."""

from typing import Any

import plotly.graph_objects as go

from trivium.report.figures import BLUE, ORANGE, ROW, look, plain_label, sized
from trivium.report.parts import Drawn, Section

Tree = dict[str, Any]
MAX_WORDS_PER_GROUP = 6


def bias_figures(bias: Tree) -> list[Drawn]:
    """Draw the one-sided adjectives and the sentiment of each axis that was measured."""
    drawn = [
        Drawn(f"Adjectives most a group's own: {axis}", one_sided(groups))
        for axis, groups in bias["adjectives"].items()
        if any(g["one_sided"] for g in groups.values())
    ]
    for axis, groups in ((bias["sentiment"] or {}).get("axes") or {}).items():
        if any(g["mean"] is not None for g in groups.values()):
            drawn.append(Drawn(f"Sentiment of the adjectives: {axis}", sentiment(groups)))
    return drawn


def series_section(report: Tree) -> Section:
    """Show every effect at every checkpoint of a training run."""
    checkpoints = report["bias_series"]["checkpoints"]
    measures = list(dict.fromkeys(e["measure"] for c in checkpoints for e in c["effects"]))
    return Section(
        "bias_series",
        "Bias along the training",
        shows="Each effect of the bias analyses at each checkpoint.",
        reading="An effect that appears early and stays is likelier a habit of the corpus than of one checkpoint.",
        limits="Each checkpoint is measured with the same draws, so its intervals do not say how far two differ.",
        figures=[
            Drawn(f"{measure} against tokens", against_tokens(checkpoints, measure)) for measure in measures
        ],
    )


def one_sided(groups: Tree) -> go.Figure:
    """Draw log-odds ratios with their intervals from {group: words}; filled marks are significant after correction."""
    rows = [
        (group, word) for group, found in groups.items() for word in found["one_sided"][:MAX_WORDS_PER_GROUP]
    ]
    names = [plain_label(f"{group}: {word['word']}") for group, word in rows]
    values = [word["log_odds"] for _, word in rows]
    return _dots(names, values, [word["interval"] for _, word in rows], "log-odds ratio, nats",
                 [word["p_holm"] < 0.05 for _, word in rows])  # fmt: skip


def sentiment(groups: Tree) -> go.Figure:
    """Draw the mean sentiment of each group, from -100 to 100, with its interval."""
    found = {name: g for name, g in groups.items() if g["mean"] is not None}
    names = [plain_label(name) for name in found]
    values, bounds = [g["mean"] for g in found.values()], [g["interval"] for g in found.values()]
    figure = _dots(names, values, bounds, "mean score of the adjectives", [True] * len(found))
    figure.add_vline(x=0, line={"color": "#808080", "width": 1})
    return figure


def against_tokens(checkpoints: list[Tree], measure: str) -> go.Figure:
    """Draw the effects of one measure at each checkpoint, with their intervals."""
    figure = go.Figure()
    kinds = dict.fromkeys(e["of"] for c in checkpoints for e in c["effects"] if e["measure"] == measure)
    unit = ""
    for number, of in enumerate(kinds):
        colour, _, dash = look(number)
        points = [
            (c["tokens"], e) for c in checkpoints for e in c["effects"] if (e["measure"], e["of"]) == (measure, of)
        ]  # fmt: skip
        unit = points[0][1]["unit"]
        figure.add_scatter(
            name=plain_label(of),
            x=[tokens for tokens, _ in points],
            y=[e["estimate"] for _, e in points],
            mode="lines+markers",
            line={"color": colour, "dash": dash},
            error_y=_error([e["estimate"] for _, e in points], [e["interval"] for _, e in points]),
        )
    figure.add_hline(y=0, line={"color": "#808080", "width": 1})
    figure.update_xaxes(title="tokens seen")
    figure.update_yaxes(title=plain_label(unit))
    return sized(figure, 380)


def _dots(
    names: list[str], values: list[float], bounds: list[Any], title: str, filled: list[bool]
) -> go.Figure:
    symbols = ["circle" if f else "circle-open" for f in filled]
    figure = go.Figure(
        go.Scatter(
            x=values,
            y=names,
            mode="markers",
            marker={"color": [BLUE if v >= 0 else ORANGE for v in values], "size": 9, "symbol": symbols},
            error_x=_error(values, bounds),
        )
    )
    figure.update_xaxes(title=title)
    figure.update_yaxes(autorange="reversed")
    return sized(figure, 110 + ROW * len(names))


def _error(values: list[float], bounds: list[Any]) -> Tree:
    """Return plotly's error bars for intervals; a missing interval has length 0."""
    pairs = list(zip(values, bounds, strict=True))
    return {
        "type": "data",
        "symmetric": False,
        "array": [b[1] - v if b else 0 for v, b in pairs],
        "arrayminus": [v - b[0] if b else 0 for v, b in pairs],
        "color": "#808080",
    }
