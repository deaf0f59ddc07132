"""Figures and tables of the bias section; figures of occupations are in figures.py."""

from typing import Any

import plotly.graph_objects as go

from trivium.report.figures import BLUE, ORANGE, ROW, look, plain_label, sized
from trivium.report.parts import Drawn, Section, Table
from trivium.report.words import chance_text, number_text, range_text

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
        figures=[Drawn(f"{measure} against tokens", against_tokens(checkpoints, measure)) for measure in measures],
    )


def one_sided(groups: Tree) -> go.Figure:
    """Draw log-odds ratios with their intervals from {group: words}; filled marks are significant after correction."""
    rows = [(group, word) for group, found in groups.items() for word in found["one_sided"][:MAX_WORDS_PER_GROUP]]
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


def _dots(names: list[str], values: list[float], bounds: list[Any], title: str, filled: list[bool]) -> go.Figure:
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


WORD_HEADINGS = ("most frequent adjectives (texts)", "most one-sided (log-odds, nats)")


def bias_tables(bias: Tree) -> list[Table]:
    """Return the table of effects, and for each axis the table of its adjectives, omitting empty tables."""
    tables: list[Table] = []
    rows = [_effect(row) for row in bias["effects"]] + [_unmeasured(row) for row in bias["not_measured"]]
    if rows:
        headings = ("measure", "of", "estimate", "unit", "interval", "Cohen's d", "p, corrected", "n")
        tables.append(Table(headings, rows))
    for axis, groups in bias["adjectives"].items():
        words = [(group, _words(g["frequent"], "count"), _sided(g["one_sided"])) for group, g in groups.items()]
        tables.append(Table((axis, *WORD_HEADINGS), words))
    return tables


def _effect(row: Tree) -> tuple[str, ...]:
    size = row["effect_size"]
    return (
        *(row["measure"], row["of"], number_text(row["estimate"]), row["unit"]),
        range_text(row["interval"], number_text) if row["interval"] else "–",
        "–" if size is None else number_text(size),
        *(chance_text(row["p_holm"]), number_text(row["n"])),
    )


def _unmeasured(row: Tree) -> tuple[str, ...]:
    """List an effect that could not be measured, because a group has no counted words, so that it does not seem
    forgotten."""
    return (row["measure"], row["of"], "not measured", *("–",) * 4, number_text(row["n"]))


def _words(rows: list[Tree], key: str) -> str:
    return ", ".join(f"{row['word']} ({row[key]})" for row in rows) or "none"


def _sided(rows: list[Tree]) -> str:
    """Mark words that are significant after correction with a star."""
    told = [f"{r['word']} ({r['log_odds']:+.2f}{'*' if r['p_holm'] < 0.05 else ''})" for r in rows]
    return ", ".join(told) or "none"
