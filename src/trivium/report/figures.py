"""Figures of the report, each drawn from a part of its tree. The page's script sets colours and fonts."""

import html
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from trivium.report.ranks import Alike, categories
from trivium.units import shots_text

Tree = dict[str, Any]

# Okabe and Ito's palette can be distinguished with any colour vision, on light and dark backgrounds.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
YELLOW, GREY = "#F0E442", "#808080"
CATEGORY_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, YELLOW, GREY)
HATCHES, DASHES = ("", "/", "x", "."), ("solid", "dash", "dot", "dashdot")  # for series beyond the number of colours
ROW_PIXELS = 34  # height of a horizontal bar
MAX_OCCUPATIONS = 24  # bars, for the most skewed of both sides
MAX_REASONS = 30  # bars, for the most frequent reasons of rejects
MAX_WORDS_PER_GROUP = 6
MAX_MARKERS = 60  # markers of a curve; more would hide its line
BELOW: Any = {"row": 2, "col": 1}  # the place of the lower of two plots


def plain_label(text: Any) -> str:
    """Escape a label, because Plotly interprets a subset of HTML."""
    return html.escape(str(text))


def look(number: int) -> tuple[str, str, str]:
    """Return colour, hatch and dash of series `number`, so that neighbouring and repeated colours can be
    distinguished."""
    turn, colour = divmod(number, len(CATEGORY_COLOURS))
    return CATEGORY_COLOURS[colour], HATCHES[turn % len(HATCHES)], DASHES[turn % len(DASHES)]


def error_bars(values: Sequence[float], bounds: Iterable[Any]) -> Tree:
    """Return plotly's error bars for intervals; a missing interval has length 0."""
    pairs = [(value, *(interval or (value, value))) for value, interval in zip(values, bounds, strict=True)]
    lengths = {"array": [high - v for v, _, high in pairs], "arrayminus": [v - low for v, low, _ in pairs]}
    return {"type": "data", "symmetric": False, "color": GREY, **lengths}


def sized(figure: go.Figure, height: int, x: Any = None, y: Any = None, *, rows: bool = False) -> go.Figure:
    """Apply the page's style and a height in pixels.

    x, y: an axis' title, or its settings. rows: the vertical axis lists names from top to bottom.
    """
    for update, axis in ((figure.update_xaxes, x), (figure.update_yaxes, y)):
        update({"title": axis} if isinstance(axis, str) else axis or {})
    figure.update_yaxes(automargin=True, **({"autorange": "reversed"} if rows else {}))
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 10, "r": 10, "t": 30, "b": 40},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": BLUE},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    return figure


ACCURACY = {"title": "accuracy", "tickformat": ".0%"}
COUNT = {"title": "documents dropped", "rangemode": "tozero"}


def rows_of_bars(names: Iterable[Any], values: Sequence[Any], **settings: Any) -> go.Bar:
    """Return a series of horizontal bars."""
    return go.Bar(y=[plain_label(name) for name in names], x=values, orientation="h", **settings)


def dots(names: Iterable[Any], values: Sequence[float], bounds: Iterable[Any], **marker: Any) -> go.Scatter:
    """Return a series of marks with intervals, one row each."""
    marker = {"color": [BLUE if v >= 0 else ORANGE for v in values], "size": 9, **marker}
    names, error = [plain_label(name) for name in names], error_bars(values, bounds)
    return go.Scatter(y=names, x=values, mode="markers", marker=marker, error_x=error, showlegend=False)


def funnel(steps: list[Tree]) -> go.Figure:
    """Draw the number of documents after each step."""
    bars = rows_of_bars(
        [step["step"] for step in steps],
        [step["documents"] for step in steps],
        marker_color=BLUE,
        text=[f"{step['documents']:,} ({step['bytes'] / 1e6:.2f} MB)" for step in steps],
        customdata=[_reasons(step["dropped"]) for step in steps],
        hovertemplate="%{y}: %{x} documents<br>%{customdata}<extra></extra>",
    )
    height = 120 + ROW_PIXELS * len(steps)
    return sized(go.Figure(bars), height, {"title": "documents", "rangemode": "tozero"}, rows=True)


def _reasons(dropped: dict[str, int]) -> str:
    ordered = sorted(dropped.items(), key=lambda item: -item[1])
    return "<br>".join(f"{plain_label(reason)}: {number:,}" for reason, number in ordered) or "none dropped"


def lengths(by_source: dict[str, list[int]]) -> go.Figure:
    """Draw documents by length for each source; each bar doubles the number of characters."""
    last = max(map(len, by_source.values()))
    first = min(n for counts in by_source.values() for n, count in enumerate(counts) if count)
    figure = go.Figure()
    for number, (source, counts) in enumerate(by_source.items()):
        colour, hatch, _ = look(number)
        figure.add_bar(
            name=plain_label(source),
            x=[f"{2**n:,}" for n in range(first, last)],
            y=[*counts, *([0] * (last - len(counts)))][first:],
            marker={"color": colour, "pattern": {"shape": hatch}},
        )
    figure.update_layout(barmode="stack")
    x = {"title": "characters, at least", "type": "category"}
    return sized(figure, 340, x, {"title": "documents", "rangemode": "tozero"})


def rejects(by_step: dict[str, dict[str, int]]) -> go.Figure:
    """Draw the numbers of rejected documents by step and reason, for the most frequent reasons."""
    rows = [(f"{step}: {reason}"[:80], n) for step, reasons in by_step.items() for reason, n in reasons.items()]
    names, counts = zip(*sorted(rows, key=lambda row: -row[1])[:MAX_REASONS], strict=True)
    bars = rows_of_bars(names, counts, marker_color=ORANGE, text=[f"{count:,}" for count in counts])
    return sized(go.Figure(bars), 120 + ROW_PIXELS * len(names) * 2 // 3, COUNT, {"dtick": 1}, rows=True)


def similarities(tenths: list[int]) -> go.Figure:
    """Draw near duplicates by Jaccard similarity in steps of a tenth."""
    names = [f"{n / len(tenths):.1f} to {(n + 1) / len(tenths):.1f}" for n in range(len(tenths))]
    x = {"title": "Jaccard similarity to the nearest other document", "type": "category"}
    return sized(go.Figure(go.Bar(x=names, y=tenths, marker_color=BLUE)), 300, x, COUNT)


def curves(training: Tree) -> go.Figure:
    """Draw loss and validation loss against tokens, with the unigram entropy, and the learning rate below.

    A thinned curve is drawn as the mean of its steps within the band of their extremes; another one as it is, with
    its moving average.
    """
    steps, validation = training["curves"]["steps"], training["curves"]["validation"]
    x, entropy = _tokens(steps), training["unigram_entropy"]
    figure = make_subplots(rows=2, shared_xaxes=True, row_heights=(0.78, 0.22), vertical_spacing=0.06)
    losses = [s["loss"] for s in steps]
    if any("loss_mean" in s for s in steps):
        low, high, mean = ([s.get(f"loss_{of}", s["loss"]) for s in steps] for of in ("least", "greatest", "mean"))
        edge = {"line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        figure.add_scatter(x=x, y=low, mode="lines", **edge)
        figure.add_scatter(x=x, y=high, mode="lines", fill="tonexty", fillcolor="rgba(86,180,233,0.3)", **edge)
    else:
        mean = _smooth(losses)
        line = {"color": SKY, "width": 1}
        figure.add_scatter(x=x, y=losses, mode="lines", line=line, opacity=0.5, showlegend=False, name="one step")
    figure.add_scatter(x=x, y=mean, name="training", mode="lines", line={"color": SKY, "width": 2})
    losses = [v["validation_loss"] for v in validation]
    line = {"color": ORANGE, "width": 2.5}
    mode = "lines+markers" if len(losses) <= MAX_MARKERS else "lines"
    figure.add_scatter(x=_tokens(validation), y=losses, name="validation", mode=mode, line=line)
    rates = {"name": "learning rate", "line": {"color": PURPLE, "width": 1.5}, "showlegend": False}
    figure.add_scatter(x=x, y=[s["lr"] for s in steps], mode="lines", **rates, **BELOW)
    if entropy is not None:
        text = {"annotation_text": f"unigram entropy {entropy:.2f}", "annotation_position": "top right"}
        figure.add_hline(y=entropy, line={"color": RED, "dash": "dash"}, **text, row=1, col=1)
    sized(figure, 400)
    figure.update_layout(hovermode="x unified")
    figure.update_yaxes(title="nats per token", row=1, col=1)
    figure.update_yaxes(title="rate", rangemode="tozero", nticks=3, exponentformat="e", **BELOW)
    return figure.update_xaxes(title="tokens", **BELOW)


def _smooth(values: list[float]) -> list[float]:
    """Return the centred moving average over a fortieth of the series."""
    half = len(values) // 80
    windows = [values[max(0, n - half) : n + half + 1] for n in range(len(values))]
    return [sum(window) / len(window) for window in windows]


def throughput(steps: list[Tree]) -> go.Figure:
    """Draw tokens per second against tokens. steps: those in which it was measured."""
    values = [s["tokens_per_second"] for s in steps]
    figure = go.Figure()
    figure.add_scatter(x=_tokens(steps), y=values, mode="lines", line={"color": GREEN, "width": 1}, opacity=0.5)
    figure.add_scatter(x=_tokens(steps), y=_smooth(values), mode="lines", line={"color": GREEN, "width": 2})
    figure.update_layout(showlegend=False, hovermode="x unified")
    return sized(figure, 300, "tokens", {"title": "tokens per second", "rangemode": "tozero"})


def loads(steps: Sequence[Tree]) -> go.Figure:
    """Draw how much more than the mean the busiest expert of each layer has, against tokens."""
    names = list(steps[-1]["layers"])
    busiest = [[step["layers"].get(name, {}).get("largest") for step in steps] for name in names]
    bar = {"title": "busiest / mean"}
    figure = go.Figure()
    figure.add_heatmap(
        x=_tokens(list(steps)), y=[plain_label(name) for name in names], z=busiest, zmin=1, colorscale="Viridis"
    )
    figure.update_traces(colorbar=bar)
    return sized(figure, 120 + 14 * max(8, len(names)), "tokens", {"title": "layer", "type": "category"})


def _tokens(records: list[Tree]) -> list[float]:
    return [r["step"] if r["tokens"] is None else r["tokens"] for r in records]


def gantt(spans: list[Tree]) -> go.Figure:
    """Draw one bar per action in the row of its pipeline rank. Actions are written as op, micro-batch, stage."""
    figure = go.Figure()
    ranks = sorted({span["pipeline_rank"] for span in spans})
    kinds = {"F": ("forward", BLUE), "B": ("backward", ORANGE), "I": ("input gradient", GREEN)}
    for op in sorted({span["action"][:1] for span in spans}, key="FBIW".find):
        name, colour = kinds.get(op, ("weight gradient", PURPLE))
        rows = [span for span in spans if span["action"][:1] == op]
        bars = rows_of_bars(
            [f"pipeline {row['pipeline_rank']}" for row in rows],
            [row["end"] - row["start"] for row in rows],
            name=name,
            base=[row["start"] for row in rows],
            marker={"color": colour, "line": {"color": "rgba(255,255,255,0.6)", "width": 0.5}},
            text=[plain_label(row["action"][1:]) for row in rows],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            hovertemplate=f"{name} %{{text}}: %{{base:.4g}} s + %{{x:.4g}} s<extra></extra>",
        )
        figure.add_trace(bars)
    figure.update_layout(barmode="overlay", uniformtext={"minsize": 8, "mode": "hide"})
    x = {"title": "seconds from the start of the step", "rangemode": "tozero"}
    y = {"categoryorder": "array", "categoryarray": [f"pipeline {r}" for r in ranks]}
    return sized(figure, 130 + ROW_PIXELS * len(ranks), x, y, rows=True)


def memory(groups: list[Alike]) -> go.Figure:
    """Draw bytes per rank by category, predicted above measured."""
    figure = go.Figure()
    for name, colour in zip(categories(groups), CATEGORY_COLOURS * len(categories(groups)), strict=False):
        figure.add_bar(
            name=plain_label(name),
            y=[f"{plain_label(g.name)}<br>{source}" for g in groups for source in ("predicted", "counted")],
            x=[held.get(name, 0) / 2**20 for g in groups for held in (g.predicted, g.counted)],
            orientation="h",
            marker={"color": colour, "pattern": {"shape": ["/", ""] * len(groups)}},
            hovertemplate="%{x:.4g} MiB<extra>%{fullData.name}</extra>",
        )
    figure.update_layout(barmode="stack", legend_traceorder="normal")
    return sized(figure, 130 + 88 * len(groups), {"title": "MiB per rank", "rangemode": "tozero"}, rows=True)


def resume(proof: Tree) -> go.Figure:
    """Draw the losses of the unbroken and the resumed run, and their difference below."""
    losses, moved = proof["losses"], proof["resumed_from"]
    steps = [row["step"] for row in losses]
    figure = make_subplots(rows=2, shared_xaxes=True, row_heights=(0.66, 0.34), vertical_spacing=0.08)
    figure.add_scatter(x=steps, y=[r["unbroken"] for r in losses], name="unbroken", line={"color": SKY, "width": 5})
    line = {"color": RED, "dash": "dot", "width": 2}
    figure.add_scatter(x=steps, y=[r["resumed"] for r in losses], name="killed and resumed", line=line)
    gaps = [None if None in (r["unbroken"], r["resumed"]) else abs(r["unbroken"] - r["resumed"]) for r in losses]
    figure.add_bar(x=steps, y=gaps, name="difference", marker_color=RED, showlegend=False, **BELOW)
    if moved is not None:
        for row in (1, 2):
            figure.add_vline(x=moved + 0.5, line={"color": GREEN, "dash": "dash"}, row=row, col=1)
        text = {"text": "other layout from here", "showarrow": False, "xanchor": "left", "yanchor": "top"}
        figure.add_annotation(x=moved + 0.5, y=1, yref="y domain", **text, row=1, col=1)
    sized(figure, 400)
    figure.update_yaxes(title="loss, nats per token", row=1, col=1)
    figure.update_yaxes(title="difference, nats", exponentformat="e", rangemode="tozero", nticks=4, **BELOW)
    return figure.update_xaxes(title="step", **BELOW)


def accuracies(scores: list[tuple[str, str, Tree]]) -> go.Figure:
    """Draw accuracy and interval of each score, with chance and the unigram baseline. scores: (task, shots, score)."""
    names, values = [f"{task}, {shots_text(shots)}" for task, shots, _ in scores], [s["accuracy"] for *_, s in scores]
    error = error_bars(values, [s["interval"] for *_, s in scores])
    figure = go.Figure(rows_of_bars(names, values, name="model", marker_color=BLUE, error_x=error))
    marks = (("chance", "chance", "line-ns-open", RED, 24), ("unigram", "token frequencies", "diamond", ORANGE, 10))
    for key, name, symbol, colour, size in marks:
        marker = {"symbol": symbol, "color": colour, "size": size, "line": {"width": 2, "color": colour}}
        values = [s[key] for *_, s in scores]
        figure.add_scatter(name=name, y=[plain_label(n) for n in names], x=values, mode="markers", marker=marker)
    return sized(figure, 140 + ROW_PIXELS * len(scores), {**ACCURACY, "rangemode": "tozero"}, rows=True)


def beside_published(scores: list[tuple[str, str, Tree]]) -> go.Figure:
    """Draw accuracies on published tasks beside those of MT-NLG 530B. scores: (task, shots, score)."""
    names = [f"{task}, {shots_text(shots)}" for task, shots, _ in scores]
    figure = go.Figure(rows_of_bars(names, [s["accuracy"] for *_, s in scores], name="this model", marker_color=BLUE))
    theirs, marker = [s.get("published") for *_, s in scores], {"symbol": "diamond", "color": ORANGE, "size": 10}
    figure.add_scatter(name="MT-NLG 530B", y=[plain_label(n) for n in names], x=theirs, mode="markers", marker=marker)
    return sized(figure, 140 + ROW_PIXELS * len(scores), {**ACCURACY, "range": [0, 1]}, rows=True)


def accuracy_against_tokens(series: list[Tree]) -> go.Figure:
    """Draw accuracy against tokens. Accuracies on different questions are different lines.

    series: points {tokens, tasks: {task: {shots: score}}}. A point may lack tasks.
    """
    lines: dict[tuple[str, str, Any], list[tuple[int, float]]] = {}
    for point in series:
        for task, by_shots in point["tasks"].items():
            for shots, score in by_shots.items():
                line = lines.setdefault((task, shots, score.get("prompt_hash")), [])
                line.append((point["tokens"], score["accuracy"]))
    figure = go.Figure()
    for (task, shots, _), points in lines.items():
        x, y = zip(*points, strict=True)
        figure.add_scatter(name=plain_label(f"{task}, {shots_text(shots)}"), x=x, y=y, mode="lines+markers")
    return sized(figure, 420, "tokens", ACCURACY)


def against_shots(models: list[Tree], names: Sequence[str]) -> go.Figure:
    """Draw accuracy by number of shots for each model; for the last model also with a threshold and with
    content-free correction."""
    figure = go.Figure()
    kinds = (
        ("accuracy", "", "solid"),
        ("threshold_accuracy", ", with a threshold", "dot"),
        ("contextual_accuracy", ", content-free corrected", "dash"),
    )
    for number, model in enumerate(models):
        order = sorted(model["shots"], key=int)
        for key, suffix, dash in kinds if number + 1 == len(models) else kinds[:1]:
            values, line = [model["shots"][k][key] for k in order], {"color": look(number)[0], "dash": dash}
            if any(v is not None for v in values):
                name = f"{plain_label(names[number])}{suffix}"
                figure.add_scatter(name=name, x=order, y=values, mode="lines+markers", line=line)
    return sized(figure, 380, {"title": "shots", "type": "category"}, ACCURACY)


def varied(kinds: dict[str, Tree]) -> go.Figure:
    """Draw accuracies with intervals from {what was varied: {value: measures}}, one row per value."""
    figure = go.Figure()
    for number, (kind, values) in enumerate(kinds.items()):
        names, measures = [f"{kind}: {name.strip()}" for name in values], list(values.values())
        accuracy, bounds = [v["accuracy"] for v in measures], [v["interval"] for v in measures]
        figure.add_trace(dots(names, accuracy, bounds, color=look(number)[0]))
    return sized(figure, 120 + ROW_PIXELS * sum(map(len, kinds.values())), ACCURACY, rows=True)


def calibration(by_shots: Tree) -> go.Figure:
    """Draw the accuracy of the likeliest choice against its probability, in bins."""
    figure = go.Figure()
    figure.add_scatter(name="as right as sure", x=[0, 1], y=[0, 1], mode="lines", line={"color": RED, "dash": "dash"})
    for (shots, measured), colour in zip(by_shots.items(), (BLUE, ORANGE), strict=False):
        bins = measured.get("calibration_bins") or []
        figure.add_scatter(
            name=plain_label(shots_text(shots)),
            x=[b["sureness"] for b in bins],
            y=[b["accuracy"] for b in bins],
            mode="lines+markers",
            marker={"size": [6 + min(18, b["n"] ** 0.5) for b in bins], "color": colour},
            text=[f"{b['n']} answers" for b in bins],
        )
    x = {"title": "probability of the likeliest choice", "range": [0, 1]}
    return sized(figure, 380, x, {**ACCURACY, "range": [0, 1]})


def margins(groups: Tree, labels: list[str] | None) -> go.Figure:
    """Draw a histogram per group of the margin of the first of two labels over the second, by gold label; without
    two labels, of the lead of the right choice.

    labels: the choices in the task's order, if all questions share them.
    """
    two = labels if labels and len(labels) == 2 else None
    titles, spacing = [plain_label(g) for g in groups], 0.24 / (len(groups) + 1)
    figure = make_subplots(rows=len(groups), shared_xaxes=True, subplot_titles=titles, vertical_spacing=spacing)
    for row, histogram in enumerate(groups.values(), start=1):
        counts = histogram["counts"]
        for number, label in enumerate(k for k in two or counts if k in counts):
            figure.add_bar(
                name=plain_label(f"gold: {label.strip()}"),
                x=[(a + b) / 2 for a, b in pairwise(histogram["edges"])],
                y=counts[label],
                marker_color=look(number)[0],
                opacity=0.7,
                showlegend=row == 1 and len(counts) > 1,
                row=row,
                col=1,
            )
    title = f"log P({two[0].strip()}) − log P({two[1].strip()})" if two else "lead of the right choice, nats"
    figure.update_layout(barmode="overlay")
    sized(figure, 160 + 180 * len(groups), y="answers")
    return figure.update_xaxes(title=plain_label(title), row=len(groups), col=1)


def occupations(ratios: list[tuple[str, float]], *, against: str) -> go.Figure:
    """Draw the log ratio of female to male identifiers for the occupations whose ratio is farthest from 0.

    against: label of the axis, which says what zero means.
    """
    most = sorted(ratios, key=lambda row: -abs(row[1]))[:MAX_OCCUPATIONS]
    order = sorted(most, key=lambda row: row[1])
    names, values = zip(*order, strict=True)
    colours = [BLUE if value < 0 else ORANGE for value in values]
    bars = rows_of_bars(names, values, marker_color=colours, hovertemplate="%{y}: %{x:.2f} nats<extra></extra>")
    x = {"title": plain_label(against), "zeroline": True}
    return sized(go.Figure(bars), 110 + 19 * len(order), x, {"dtick": 1})


def one_sided(rows: list[tuple[str, Tree]]) -> go.Figure:
    """Draw log-odds ratios with their intervals, for the first words of each group. rows: (group, word)."""
    first = [row for n, row in enumerate(rows) if sum(other[0] == row[0] for other in rows[:n]) < MAX_WORDS_PER_GROUP]
    words = [word for _, word in first]
    names, bounds = [f"{group}: {word['word']}" for group, word in first], [w["interval"] for w in words]
    figure = go.Figure(dots(names, [w["log_odds"] for w in words], bounds))
    return sized(figure, 110 + ROW_PIXELS * len(first), "log-odds ratio, nats", rows=True)


def sentiment(groups: Tree) -> go.Figure:
    """Draw the mean sentiment of each group, from -100 to 100, with its interval."""
    found = {name: g for name, g in groups.items() if g["mean"] is not None}
    values, bounds = [g["mean"] for g in found.values()], [g["interval"] for g in found.values()]
    figure = go.Figure(dots(found, values, bounds))
    figure.add_vline(x=0, line={"color": GREY, "width": 1})
    return sized(figure, 110 + ROW_PIXELS * len(found), "mean score of the adjectives", rows=True)


def effects_against_tokens(checkpoints: list[Tree], measure: str) -> go.Figure:
    """Draw the effects of one measure at each checkpoint, with their intervals."""
    points: dict[str, list[tuple[int, Tree]]] = {}
    for checkpoint in checkpoints:
        for effect in checkpoint["effects"]:
            if effect["measure"] == measure:
                points.setdefault(effect["of"], []).append((checkpoint["tokens"], effect))
    figure, unit = go.Figure(), ""
    for number, (of, found) in enumerate(points.items()):
        colour, _, dash = look(number)
        values, unit = [e["estimate"] for _, e in found], found[0][1]["unit"]
        figure.add_scatter(
            name=plain_label(of),
            x=[tokens for tokens, _ in found],
            y=values,
            mode="lines+markers",
            line={"color": colour, "dash": dash},
            error_y=error_bars(values, [e["interval"] for _, e in found]),
        )
    figure.add_hline(y=0, line={"color": GREY, "width": 1})
    return sized(figure, 380, "tokens seen", plain_label(unit))
