"""A page of scaling curves that needs no network: tokens per second and utilisation against devices."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plotly.subplots import make_subplots

COLOURS = {"strong": "#0072B2", "weak": "#E69F00"}


def write_curves(path: Path, title: str, curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write the page. curves: {kind: points}, with devices, tokens_per_second, utilisation and efficiency."""
    figure = make_subplots(rows=1, cols=2, subplot_titles=("tokens per second", "utilisation (model FLOP/s over peak)"))
    for kind, points in curves.items():
        devices = [p["devices"] for p in points]
        texts = [f"data {p['data']}, {p['seconds']:.1f} s, efficiency {p['efficiency']:.1%}" for p in points]
        for column, field in ((1, "tokens_per_second"), (2, "utilisation")):
            figure.add_scatter(
                x=devices,
                y=[p[field] for p in points],
                name=f"{kind}, predicted",
                legendgroup=kind,
                showlegend=column == 1,
                mode="lines+markers",
                line={"color": COLOURS.get(kind)},
                text=texts,
                row=1,
                col=column,
            )
    figure.update_xaxes(type="log", title="devices")
    figure.update_yaxes(type="log", row=1, col=1)
    figure.update_yaxes(rangemode="tozero", tickformat=".0%", row=1, col=2)
    figure.update_layout(title=title, height=560)
    path.write_text(figure.to_html(full_html=True, include_plotlyjs=True), encoding="utf-8")
