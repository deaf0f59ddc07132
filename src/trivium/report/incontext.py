"""The section about in-context learning, and its figures."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from trivium.report.figures import BLUE, CATEGORY_COLOURS, ORANGE, RED, ROW, plain_label, sized
from trivium.report.parts import Drawn, Section, Table
from trivium.report.words import level_text, number_text, percent_text, range_text

Tree = dict[str, Any]
VARIED = {
    "shots": "number of shots",
    "order": "order of the same shots",
    "balance": "labels of the shots",
    "source": "where shots come from",
    "template": "wording",
}


def incontext_section(report: Tree) -> Section:
    """Show how answers depend on the solved examples before a question."""
    found = report["incontext"]
    models = found["models"]
    rows = [
        (
            *(str(m["model"]["step"]), VARIED[kind], name, percent_text(v["accuracy"])),
            *(range_text(v["interval"], percent_text), percent_text(v["threshold_accuracy"])),
            *(percent_text(v["contextual_accuracy"]), number_text(v["calibration_error"])),
            *(number_text(v["majority_bias"]), number_text(v["recency_bias"])),
            percent_text(v.get("truncated_fraction")),  # missing in results of an older version
        )
        for m in models
        for kind in VARIED
        for name, v in m[kind].items()
        if v is not None
    ]
    config = found.get("config")
    interval = level_text([config] if isinstance(config, dict) else [])
    headings: tuple[str, ...] = ("step", "varied", "value", "accuracy", interval, "with a threshold")
    headings += ("content-free corrected", "calibration error", "majority bias", "recency bias", "prompts cut")
    return Section(
        "incontext",
        f"In-context learning: {found['task']}",
        shows="The same questions after different numbers, orders, labels and sources of solved examples.",
        reading="Learning from shots separates the margins of the two labels; a shift of both is a label bias, which a "
        "decision threshold corrects. Biases are in shares of answers: 0 is none. On the diagonal, accuracy equals "
        "confidence.",
        limits="Few questions with shared shots, averaged over a few draws. The intervals cover the choice of "
        "questions, not the choice of draws." + _all_orders(models[-1]) + _left_out(models[-1]),
        figures=[Drawn("Accuracy against shots", against_shots(models)), *_of_model(models[-1])],
        tables=[Table(headings, rows)],
    )


def _all_orders(model: Tree) -> str:
    """Say that the orders of the last model's shots are complete, if they are."""
    return f" All {len(model['order'])} orders of the shots are included." if model.get("order_complete") else ""


def _left_out(model: Tree) -> str:
    """Name the conditions that were not measured for the last model because there were too few shots."""
    names = [f"{VARIED[kind]}: {name}" for kind, lacking in model.get("left_out", {}).items() for name in lacking]
    return f" Not measured, because there were too few shots: {'; '.join(names)}." if names else ""


def _of_model(model: Tree) -> list[Drawn]:
    """Draw the varied conditions, the calibration, and the margins before and after shots of one model."""
    shots = model["shots"]
    fewest, most = _ordered(shots)[0], _ordered(shots)[-1]
    compared = {kind: found for kind in VARIED if kind != "shots" and (found := _there(model[kind]))}
    several = list(dict.fromkeys((fewest, most)))
    drawn = (
        [Drawn("Accuracy by order, labels, source and wording of as many shots", varied(compared))] if compared else []
    )
    if any(shots[k].get("calibration_bins") for k in several):
        drawn.append(Drawn("How often it is right when it is so sure", calibration({k: shots[k] for k in several})))
    for k in several:
        groups = shots[k].get("margins_by_group") or {"": shots[k]["margins"]}
        drawn.append(Drawn(f"Margins after {k} shots", margins(groups, model.get("labels"))))
    return drawn


def _ordered(shots: Tree) -> list[str]:
    """Sort the numbers of shots numerically; in files they are strings."""
    return sorted(shots, key=int)


def _there(values: Tree) -> Tree:
    return {name: v for name, v in values.items() if v is not None}


def against_shots(models: list[Tree]) -> go.Figure:
    """Draw accuracy by number of shots for each model; for the last model also with a threshold and with
    content-free correction."""
    figure = go.Figure()
    ways = (
        ("accuracy", "", "solid"),
        ("threshold_accuracy", ", with a threshold", "dot"),
        ("contextual_accuracy", ", content-free corrected", "dash"),
    )
    for number, model in enumerate(models):
        name = plain_label(_name_of(model))
        for key, suffix, dash in ways if number + 1 == len(models) else ways[:1]:
            order = _ordered(model["shots"])
            values = [model["shots"][k][key] for k in order]
            if any(v is not None for v in values):
                figure.add_scatter(
                    name=f"{name}{suffix}",
                    x=order,
                    y=values,
                    mode="lines+markers",
                    line={"color": CATEGORY_COLOURS[number % len(CATEGORY_COLOURS)], "dash": dash},
                )
    figure.update_xaxes(title="shots", type="category")
    figure.update_yaxes(title="accuracy", tickformat=".0%")
    return sized(figure, 380)


def _name_of(model: Tree) -> str:
    """Name one of several models; results of older versions do not record the target."""
    target = model.get("target")
    step = f"step {model['model']['step']}, {model['model']['parameters']:,} parameters"
    return f"{Path(target).name or target}: {step}" if target else step


def varied(kinds: Tree) -> go.Figure:
    """Draw accuracies with intervals from {condition: {value: measures}}, one row per value."""
    figure = go.Figure()
    for number, (kind, values) in enumerate(kinds.items()):
        accuracies = [v["accuracy"] for v in values.values()]
        bounds = [v["interval"] for v in values.values()]
        figure.add_scatter(
            name=VARIED[kind],
            x=accuracies,
            y=[plain_label(f"{VARIED[kind]}: {name.strip()}") for name in values],
            mode="markers",
            marker={"color": CATEGORY_COLOURS[number % len(CATEGORY_COLOURS)], "size": 9},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [high - a for (_, high), a in zip(bounds, accuracies, strict=True)],
                "arrayminus": [a - low for (low, _), a in zip(bounds, accuracies, strict=True)],
                "color": "#808080",
            },
            showlegend=False,
        )
    figure.update_xaxes(title="accuracy", tickformat=".0%")
    figure.update_yaxes(autorange="reversed")
    return sized(figure, 120 + ROW * sum(map(len, kinds.values())))


def calibration(by_shots: Tree) -> go.Figure:
    """Draw accuracy against the predicted probability of the answer, in bins."""
    figure = go.Figure()
    figure.add_scatter(name="as right as sure", x=[0, 1], y=[0, 1], mode="lines", line={"color": RED, "dash": "dash"})
    for (shots, measured), colour in zip(by_shots.items(), (BLUE, ORANGE), strict=False):
        bins = measured.get("calibration_bins") or []
        figure.add_scatter(
            name=plain_label(f"{shots} shots"),
            x=[b["sureness"] for b in bins],
            y=[b["accuracy"] for b in bins],
            mode="lines+markers",
            marker={"size": [6 + min(18, b["n"] ** 0.5) for b in bins], "color": colour},
            text=[f"{b['n']} questions" for b in bins],
        )
    figure.update_xaxes(title="probability of the answer among the choices", range=[0, 1])
    figure.update_yaxes(title="accuracy", tickformat=".0%", range=[0, 1])
    return sized(figure, 380)


def margins(groups: Tree, labels: list[str] | None) -> go.Figure:
    """Draw a histogram per group of the margin of the first of two labels over the second, by gold label.

    labels: the choices in the task's order, if all questions share them.
    """
    figure = make_subplots(
        rows=len(groups),
        shared_xaxes=True,
        subplot_titles=[plain_label(g) for g in groups],
        vertical_spacing=0.24 / (len(groups) + 1),
    )
    for row, histogram in enumerate(groups.values(), start=1):
        middles = [(a + b) / 2 for a, b in pairwise(histogram["edges"])]
        counts = histogram["counts"]
        for number, label in enumerate(k for k in labels or counts if k in counts):
            figure.add_bar(
                name=plain_label(f"gold: {label.strip()}"),
                x=middles,
                y=counts[label],
                marker_color=CATEGORY_COLOURS[number % len(CATEGORY_COLOURS)],
                opacity=0.7,
                showlegend=row == 1,
                row=row,
                col=1,
            )
        figure.update_yaxes(title="questions", row=row, col=1)
    title = "lead of the right choice, nats"
    if labels and len(labels) == 2:
        title = f"log P({labels[0].strip()}) − log P({labels[1].strip()})"
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(title=plain_label(title), row=len(groups), col=1)
    return sized(figure, 160 + 180 * len(groups))
