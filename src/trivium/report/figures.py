"""The figures of the report, each from a part of its tree. Colours and fonts follow the page, set by its script."""

import html
from typing import Any

import plotly.graph_objects as go

# Okabe and Ito's palette: told apart with any colour vision, on light and dark.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
CATEGORY_COLOURS = (BLUE, ORANGE, GREEN, PURPLE)
ROW = 34  # pixels of a bar
MOST_OCCUPATIONS = 40  # bars: the most skewed of either side


def funnel(steps: list[dict[str, Any]]) -> go.Figure:
    """Documents left after each step."""
    names = [_label(step["step"]) for step in steps]
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
    return _sized(figure, 120 + ROW * len(steps))


def curves(training: dict[str, Any]) -> go.Figure:
    """Loss, validation loss and learning rate against tokens, with the entropy of token frequencies."""
    steps, validation = training["curves"]["steps"], training["curves"]["validation"]
    x = _tokens(steps)
    figure = go.Figure()
    figure.add_scatter(x=x, y=[s["loss"] for s in steps], name="loss", line={"color": SKY, "width": 1.5})
    figure.add_scatter(
        x=_tokens(validation),
        y=[v["validation_loss"] for v in validation],
        name="validation loss",
        mode="lines+markers",
        line={"color": BLUE},
    )
    figure.add_scatter(
        x=x,
        y=[s["lr"] for s in steps],
        name="learning rate (right)",
        yaxis="y2",
        line={"color": ORANGE, "dash": "dot", "width": 1.5},
    )
    entropy = training["unigram_entropy"]
    if entropy is not None:
        figure.add_hline(
            y=entropy,
            line={"color": RED, "dash": "dash"},
            annotation_text=f"unigram entropy {entropy:.3f}",
            annotation_position="top right",
        )
    figure.update_layout(
        yaxis={"title": "nats per token"},
        yaxis2={"overlaying": "y", "side": "right", "title": "learning rate", "rangemode": "tozero"},
    )
    figure.update_xaxes(title="tokens seen")
    return _sized(figure, 420)


def gantt(spans: list[dict[str, Any]]) -> go.Figure:
    """One bar per action on the row of its pipeline rank; actions are written op, micro-batch, stage."""
    figure = go.Figure()
    ranks = sorted({span["pipeline_rank"] for span in spans})
    kinds = {"F": ("forward", BLUE), "B": ("backward", ORANGE), "I": ("input gradient", GREEN)}
    for op in sorted({span["action"][:1] for span in spans}, key="FBIW".find):
        name, colour = kinds.get(op, ("weight gradient", PURPLE))
        rows = [span for span in spans if span["action"][:1] == op]
        figure.add_bar(
            name=name,
            orientation="h",
            y=[f"rank {row['pipeline_rank']}" for row in rows],
            base=[row["start"] for row in rows],
            x=[row["end"] - row["start"] for row in rows],
            marker={"color": colour, "line": {"color": "rgba(255,255,255,0.6)", "width": 0.5}},
            text=[_label(row["action"][1:]) for row in rows],
            textposition="inside",
            insidetextanchor="middle",
            hovertemplate=f"{name} %{{text}}: %{{base:.4g}} s + %{{x:.4g}} s<extra></extra>",
        )
    figure.update_layout(barmode="overlay", uniformtext={"minsize": 8, "mode": "hide"})
    figure.update_yaxes(
        categoryorder="array", categoryarray=[f"rank {r}" for r in ranks], autorange="reversed"
    )
    figure.update_xaxes(title="seconds from the start of the step", rangemode="tozero")
    return _sized(figure, 130 + ROW * len(ranks))


def memory(rows: list[dict[str, Any]]) -> go.Figure:
    """Bytes per rank by category: a predicted and a counted bar side by side."""
    figure = go.Figure()
    names = list(dict.fromkeys(n for row in rows for n in (*row["predicted"], *row["categories"])))
    for source, pattern in (("predicted", "/"), ("categories", "")):
        for name, colour in zip(names, CATEGORY_COLOURS * len(names), strict=False):
            label = "counted" if source == "categories" else source
            figure.add_bar(
                name=f"{_label(name)}, {label}",
                x=[[f"rank {row['rank']}" for row in rows], [label] * len(rows)],
                y=[row[source].get(name, 0) / 2**20 for row in rows],
                marker={"color": colour, "pattern": {"shape": pattern}},
                hovertemplate="%{x}: %{y:.4g} MiB<extra>%{fullData.name}</extra>",
            )
    figure.update_layout(barmode="stack")
    figure.update_yaxes(title="MiB")
    return _sized(figure, 460)


def resume(losses: list[dict[str, Any]]) -> go.Figure:
    """The unbroken and the resumed run, and the size of their difference on a scale of its own."""
    steps = [row["step"] for row in losses]
    figure = go.Figure()
    figure.add_scatter(
        x=steps, y=[r["unbroken"] for r in losses], name="unbroken", line={"color": BLUE, "width": 4}
    )
    figure.add_scatter(
        x=steps, y=[r["resumed"] for r in losses], name="resumed", line={"color": ORANGE, "dash": "dot"}
    )
    gaps = [
        None if None in (r["unbroken"], r["resumed"]) else abs(r["unbroken"] - r["resumed"]) or None
        for r in losses
    ]
    figure.add_scatter(
        x=steps,
        y=gaps,
        name="difference (right)",
        yaxis="y2",
        mode="markers",
        marker={"color": RED, "size": 5},
    )
    figure.update_layout(
        yaxis={"title": "loss, nats per token"},
        yaxis2={
            "overlaying": "y",
            "side": "right",
            "title": "difference",
            "type": "log",
            "exponentformat": "power",
        },
    )
    figure.update_xaxes(title="step")
    return _sized(figure, 400)


def accuracies(tasks: dict[str, dict[str, Any]]) -> go.Figure:
    """Accuracy with its interval for each task and number of shots, beside chance and the unigram baseline."""
    scores = [(f"{task}, {shots} shots", s) for task, by in tasks.items() for shots, s in by.items()]
    names = [_label(name) for name, _ in scores]
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
            "arrayminus": [s["accuracy"] - low for (low, _), (_, s) in zip(bounds, scores, strict=True)],
        },
    )
    for key, symbol, colour in (("chance", "line-ns-open", RED), ("unigram", "diamond", ORANGE)):
        figure.add_scatter(
            name=key,
            y=names,
            x=[s[key] for _, s in scores],
            mode="markers",
            marker={"symbol": symbol, "color": colour, "size": 13, "line": {"width": 3, "color": colour}},
        )
    figure.update_xaxes(title="accuracy", tickformat=".0%", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", automargin=True)
    return _sized(figure, 140 + ROW * len(scores))


def occupations(ratios: list[tuple[str, float]]) -> go.Figure:
    """Log ratio of female to male identifiers, by occupation; the most skewed when there are many."""
    order = sorted(ratios, key=lambda row: row[1])
    if len(order) > MOST_OCCUPATIONS:
        half = MOST_OCCUPATIONS // 2
        order = [*order[:half], *order[-half:]]
    figure = go.Figure(
        go.Bar(
            y=[_label(name) for name, _ in order],
            x=[value for _, value in order],
            orientation="h",
            marker_color=[BLUE if value < 0 else ORANGE for _, value in order],
            hovertemplate="%{y}: %{x:.3f}<extra></extra>",
        )
    )
    figure.update_xaxes(title="log(P(female) / P(male)), nats", zeroline=True)
    figure.update_yaxes(automargin=True, dtick=1)
    return _sized(figure, 120 + 18 * len(order))


def _tokens(records: list[dict[str, Any]]) -> list[float]:
    return [r["step"] if r["tokens"] is None else r["tokens"] for r in records]


def _reasons(dropped: dict[str, int]) -> str:
    ordered = sorted(dropped.items(), key=lambda item: -item[1])
    return "<br>".join(f"{_label(reason)}: {number:,}" for reason, number in ordered) or "none dropped"


def _label(text: str) -> str:
    """Plotly reads labels as a little HTML: what comes from data must be plain text."""
    return html.escape(str(text))


def _sized(figure: go.Figure, height: int) -> go.Figure:
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 60, "r": 60, "t": 40, "b": 50},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    return figure
