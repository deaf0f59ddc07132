"""Figures of the report, each drawn from a part of its tree. The page's script sets colours and fonts."""

import html
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from trivium.report.ranks import Alike, categories
from trivium.report.words import shots_text

# Okabe and Ito's palette can be distinguished with any colour vision, on light and dark backgrounds.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
YELLOW, GREY = "#F0E442", "#808080"
CATEGORY_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, YELLOW, GREY)
HATCHES, DASHES = (
    ("", "/", "x", "."),
    ("solid", "dash", "dot", "dashdot"),
)  # used if there are more series than colours
ROW = 34  # pixels per bar
MAX_OCCUPATIONS = 24  # bars, for the most skewed of either side


def funnel(steps: list[dict[str, Any]]) -> go.Figure:
    """Draw the number of documents after each step."""
    names = [plain_label(step["step"]) for step in steps]
    figure = go.Figure(
        go.Bar(
            y=names,
            x=[step["documents"] for step in steps],
            orientation="h",
            marker_color=BLUE,
            text=[f"{step['documents']:,} ({step['bytes'] / 1e6:.2f} MB)" for step in steps],
            customdata=[_reasons(step["dropped"]) for step in steps],
            hovertemplate="%{y}: %{x} documents<br>%{customdata}<extra></extra>",
        )
    )
    figure.update_yaxes(autorange="reversed", automargin=True)
    figure.update_xaxes(title="documents", rangemode="tozero")
    return sized(figure, 120 + ROW * len(steps))


def curves(training: dict[str, Any]) -> go.Figure:
    """Draw loss and validation loss against tokens, with the unigram entropy, and the learning rate below."""
    steps, validation = training["curves"]["steps"], training["curves"]["validation"]
    x = _tokens(steps)
    figure = make_subplots(rows=2, shared_xaxes=True, row_heights=(0.74, 0.26), vertical_spacing=0.07)
    figure.add_scatter(x=x, y=[s["loss"] for s in steps], name="training batches", line={"color": SKY, "width": 1.5})
    figure.add_scatter(
        x=_tokens(validation),
        y=[v["validation_loss"] for v in validation],
        name="validation text",
        mode="lines+markers",
        line={"color": BLUE},
    )
    figure.add_scatter(
        x=x,
        y=[s["lr"] for s in steps],
        name="learning rate",
        line={"color": ORANGE, "width": 1.5},
        showlegend=False,
        row=2,
        col=1,
    )
    entropy = training["unigram_entropy"]
    if entropy is not None:
        figure.add_hline(
            y=entropy,
            line={"color": RED, "dash": "dash"},
            annotation_text=f"unigram entropy {entropy:.2f}",
            annotation_position="top right",
            row=1,
            col=1,
        )
    figure.update_yaxes(title="loss, nats per token", row=1, col=1)
    figure.update_yaxes(title="learning rate", rangemode="tozero", nticks=4, row=2, col=1)
    figure.update_xaxes(title="tokens seen", row=2, col=1)
    return sized(figure, 520)


def gantt(spans: list[dict[str, Any]]) -> go.Figure:
    """Draw one bar per action in the row of its pipeline rank. Actions are written as op, micro-batch, stage."""
    figure = go.Figure()
    ranks = sorted({span["pipeline_rank"] for span in spans})
    kinds = {"F": ("forward", BLUE), "B": ("backward", ORANGE), "I": ("input gradient", GREEN)}
    for op in sorted({span["action"][:1] for span in spans}, key="FBIW".find):
        name, colour = kinds.get(op, ("weight gradient", PURPLE))
        rows = [span for span in spans if span["action"][:1] == op]
        figure.add_bar(
            name=name,
            orientation="h",
            y=[f"pipeline {row['pipeline_rank']}" for row in rows],
            base=[row["start"] for row in rows],
            x=[row["end"] - row["start"] for row in rows],
            marker={"color": colour, "line": {"color": "rgba(255,255,255,0.6)", "width": 0.5}},
            text=[plain_label(row["action"][1:]) for row in rows],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            hovertemplate=f"{name} %{{text}}: %{{base:.4g}} s + %{{x:.4g}} s<extra></extra>",
        )
    figure.update_layout(barmode="overlay", uniformtext={"minsize": 8, "mode": "hide"})
    figure.update_yaxes(categoryorder="array", categoryarray=[f"pipeline {r}" for r in ranks], autorange="reversed")
    figure.update_xaxes(title="seconds from the start of the step", rangemode="tozero")
    return sized(figure, 130 + ROW * len(ranks))


def memory(groups: list[Alike]) -> go.Figure:
    """Draw bytes per rank by category, predicted above measured."""
    figure = go.Figure()
    for name, colour in zip(categories(groups), CATEGORY_COLOURS * len(categories(groups)), strict=False):
        values = [held.get(name, 0) / 2**20 for g in groups for held in (g.predicted, g.counted)]
        figure.add_bar(
            name=plain_label(name),
            y=[f"{plain_label(g.name)}<br>{source}" for g in groups for source in ("predicted", "counted")],
            x=values,
            orientation="h",
            marker={"color": colour, "pattern": {"shape": ["/", ""] * len(groups)}},
            hovertemplate="%{x:.4g} MiB<extra>%{fullData.name}</extra>",
        )
    figure.update_layout(barmode="stack", legend_traceorder="normal")
    figure.update_xaxes(title="MiB per rank", rangemode="tozero")
    figure.update_yaxes(autorange="reversed")
    return sized(figure, 130 + 44 * 2 * len(groups))


def resume(proof: dict[str, Any]) -> go.Figure:
    """Draw the losses of the unbroken and the resumed run, and their difference below."""
    losses, moved = proof["losses"], proof["resumed_from"]
    steps = [row["step"] for row in losses]
    figure = make_subplots(rows=2, shared_xaxes=True, row_heights=(0.66, 0.34), vertical_spacing=0.08)
    figure.add_scatter(x=steps, y=[r["unbroken"] for r in losses], name="unbroken", line={"color": SKY, "width": 5})
    figure.add_scatter(
        x=steps,
        y=[r["resumed"] for r in losses],
        name="killed and resumed",
        line={"color": RED, "dash": "dot", "width": 2},
    )
    gaps = [None if None in (r["unbroken"], r["resumed"]) else abs(r["unbroken"] - r["resumed"]) for r in losses]
    figure.add_bar(x=steps, y=gaps, name="difference", marker_color=RED, showlegend=False, row=2, col=1)
    if moved is not None:
        for row in (1, 2):
            figure.add_vline(x=moved + 0.5, line={"color": GREEN, "dash": "dash"}, row=row, col=1)
        figure.add_annotation(
            x=moved + 0.5,
            y=1,
            yref="y domain",
            text="other layout from here",
            showarrow=False,
            xanchor="left",
            yanchor="top",
            row=1,
            col=1,
        )
    figure.update_yaxes(title="loss, nats per token", row=1, col=1)
    figure.update_yaxes(title="difference, nats", exponentformat="e", rangemode="tozero", nticks=4, row=2, col=1)
    figure.update_xaxes(title="step", row=2, col=1)
    return sized(figure, 480)


def accuracies(tasks: dict[str, dict[str, Any]]) -> go.Figure:
    """Draw accuracy and interval of each task and number of shots, with chance and the unigram baseline."""
    scores = [(f"{task}, {shots_text(shots)}", s) for task, by in tasks.items() for shots, s in by.items()]
    names = [plain_label(name) for name, _ in scores]
    bounds = [s["interval"] or (s["accuracy"], s["accuracy"]) for _, s in scores]
    figure = go.Figure()
    figure.add_bar(
        name="model",
        y=names,
        x=[s["accuracy"] for _, s in scores],
        orientation="h",
        marker_color=BLUE,
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [high - s["accuracy"] for (_, high), (_, s) in zip(bounds, scores, strict=True)],
            "color": "#808080",
            "arrayminus": [s["accuracy"] - low for (low, _), (_, s) in zip(bounds, scores, strict=True)],
        },
    )
    marks = (("chance", "line-ns-open", RED, 24), ("unigram", "diamond", ORANGE, 10))
    for key, symbol, colour, size in marks:
        figure.add_scatter(
            name="token frequencies" if key == "unigram" else key,
            y=names,
            x=[s[key] for _, s in scores],
            mode="markers",
            marker={"symbol": symbol, "color": colour, "size": size, "line": {"width": 2, "color": colour}},
        )
    figure.update_xaxes(title="accuracy", tickformat=".0%", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", automargin=True)
    return sized(figure, 140 + ROW * len(scores))


def occupations(ratios: list[tuple[str, float]], *, against: str) -> go.Figure:
    """Draw the log ratio of female to male identifiers for the most skewed occupations.

    against: label of the axis, which says what zero means.
    """
    order = sorted(ratios, key=lambda row: row[1])
    if len(order) > MAX_OCCUPATIONS:
        half = MAX_OCCUPATIONS // 2
        order = [*order[:half], *order[-half:]]
    figure = go.Figure(
        go.Bar(
            y=[plain_label(name) for name, _ in order],
            x=[value for _, value in order],
            orientation="h",
            marker_color=[BLUE if value < 0 else ORANGE for _, value in order],
            hovertemplate="%{y}: %{x:.2f} nats<extra></extra>",
        )
    )
    figure.update_xaxes(title=plain_label(against), zeroline=True)
    figure.update_yaxes(dtick=1)
    return sized(figure, 110 + 19 * len(order))


def _tokens(records: list[dict[str, Any]]) -> list[float]:
    return [r["step"] if r["tokens"] is None else r["tokens"] for r in records]


def _reasons(dropped: dict[str, int]) -> str:
    ordered = sorted(dropped.items(), key=lambda item: -item[1])
    return "<br>".join(f"{plain_label(reason)}: {number:,}" for reason, number in ordered) or "none dropped"


def look(number: int) -> tuple[str, str, str]:
    """Return colour, hatch and dash of series `number`, so that neighbouring and repeated colours can be
    distinguished."""
    turn, colour = divmod(number, len(CATEGORY_COLOURS))
    return CATEGORY_COLOURS[colour], HATCHES[turn % len(HATCHES)], DASHES[turn % len(DASHES)]


def plain_label(text: str) -> str:
    """Escape a label, because Plotly interprets a subset of HTML."""
    return html.escape(str(text))


def sized(figure: go.Figure, height: int) -> go.Figure:
    """Apply the page's style and a height in pixels."""
    figure.update_yaxes(automargin=True)
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 20, "r": 20, "t": 40, "b": 50},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": BLUE},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    return figure
