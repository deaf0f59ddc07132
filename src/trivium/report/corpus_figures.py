"""Figures about the corpus, in the style of figures.py."""

import plotly.graph_objects as go

from trivium.report.figures import (
    BLUE,
    ORANGE,
    ROW,
    look,
    plain_label,
    sized,
)

MAX_REASONS = 30  # bars, for the most frequent reasons


def lengths(by_source: dict[str, list[int]]) -> go.Figure:
    """Draw documents by length for each source; each bar doubles the number of characters."""
    last = max(len(counts) for counts in by_source.values())
    first = min(n for counts in by_source.values() for n, count in enumerate(counts) if count)
    names = [f"{2**n:,}" for n in range(first, last)]
    figure = go.Figure()
    for number, (source, counts) in enumerate(by_source.items()):
        padded = [*counts, *([0] * (last - len(counts)))]
        colour, hatch, _ = look(number)
        marker = {"color": colour, "pattern": {"shape": hatch}}
        figure.add_bar(name=plain_label(source), x=names, y=padded[first:], marker=marker)
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title="characters, at least", type="category")
    figure.update_yaxes(title="documents", rangemode="tozero")
    return sized(figure, 340)


def rejects(by_step: dict[str, dict[str, int]]) -> go.Figure:
    """Draw the numbers of rejected documents by step and reason, for the most frequent reasons."""
    rows = [(step, reason, count) for step, reasons in by_step.items() for reason, count in reasons.items()]
    rows = sorted(rows, key=lambda row: -row[2])[:MAX_REASONS]
    figure = go.Figure(
        go.Bar(
            y=[plain_label(f"{step}: {reason}"[:80]) for step, reason, _ in rows],
            x=[count for _, _, count in rows],
            orientation="h",
            marker_color=ORANGE,
            text=[f"{count:,}" for _, _, count in rows],
        )
    )
    figure.update_yaxes(autorange="reversed", dtick=1)
    figure.update_xaxes(title="documents dropped", rangemode="tozero")
    return sized(figure, 120 + ROW * len(rows) * 2 // 3)


def similarities(tenths: list[int]) -> go.Figure:
    """Draw near duplicates by Jaccard similarity in steps of a tenth."""
    names = [f"{n / len(tenths):.1f} to {(n + 1) / len(tenths):.1f}" for n in range(len(tenths))]
    figure = go.Figure(go.Bar(x=names, y=tenths, marker_color=BLUE))
    figure.update_xaxes(title="Jaccard similarity to the nearest other document", type="category")
    figure.update_yaxes(title="documents dropped", rangemode="tozero")
    return sized(figure, 300)
