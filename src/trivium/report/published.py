"""The sections about published tasks and in-context learning, and their figures."""

from itertools import pairwise
from typing import Any

import plotly.graph_objects as go

from trivium.report.figures import BLUE, CATEGORY_COLOURS, ORANGE, ROW, plain_label, sized
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


def tasks_section(report: Tree) -> Section:
    """Accuracy on published tasks, beside what the paper reports of MT-NLG 530B."""
    found = report["tasks"]
    scores = [(task, shots, s) for task, by in found["tasks"].items() for shots, s in by.items()]
    rows = [
        (
            *(task, shots, str(s["n"] or "unknown"), percent_text(s["accuracy"])),
            *(range_text(s["interval"], percent_text), percent_text(s["chance"])),
            *(percent_text(s.get("published")), percent_text(s.get("gpt3"))),
            *(str(s.get("normalisation")), number_text(s.get("truncated")), _seen(s)),
        )
        for task, shots, s in scores
    ]
    headings: tuple[str, ...] = (
        "task",
        "shots",
        "examples",
        "accuracy",
        level_text([s for _, _, s in scores]),
        "chance",
    )
    headings += ("MT-NLG 530B", "GPT-3 175B", "scored by", "prompts cut", "in corpus")
    figures = [Drawn("Accuracy beside the paper's", _beside(scores))] if scores else []
    if len(found["series"]) > 1:
        figures.append(Drawn("Accuracy against tokens", _series(found["series"])))
    return Section(
        "tasks",
        "Published tasks",
        shows="The paper's tasks with its prompts, shots and scoring; and what it reports of its model.",
        reading="An interval that holds chance shows no skill. With more shots a prompt may be longer than the model "
        "reads: then its beginning is cut, and counted here.",
        limits="Subsets of questions, local copies of the data, and prompts partly remembered: see docs/evaluation.md. "
        + "".join(f"Not asked: {name}. " for name in found["skipped"]),
        figures=figures,
        tables=[Table(headings, rows), *_groups(scores)],
    )


def incontext_section(report: Tree) -> Section:
    """How answers depend on the solved examples in front of a question."""
    found = report["incontext"]
    models = found["models"]
    rows = [
        (
            *(str(m["model"]["step"]), VARIED[kind], name, percent_text(v["accuracy"])),
            *(range_text(v["interval"], percent_text), percent_text(v["threshold_accuracy"])),
            *(percent_text(v["contextual_accuracy"]), number_text(v["calibration_error"])),
            *(number_text(v["majority_bias"]), number_text(v["recency_bias"])),
        )
        for m in models
        for kind in VARIED
        for name, v in m[kind].items()
        if v is not None
    ]
    headings: tuple[str, ...] = ("step", "varied", "value", "accuracy", level_text([]), "with a threshold")
    headings += ("content-free corrected", "calibration error", "majority bias", "recency bias")
    last = models[-1]["shots"]
    most = max(last, key=int)
    return Section(
        "incontext",
        f"In-context learning: {found['task']}",
        shows="The same questions after more solved examples, in other orders, of other labels, from other places.",
        reading="Learning from shots separates the margins of the two labels; a shift of both is a preference, which a "
        "threshold mends. Biases are in shares of answers: 0 is none.",
        limits="A small model, few questions, and one draw of shots for all of them in a condition.",
        figures=[
            Drawn("Accuracy against shots", _against_shots(models)),
            Drawn(f"Margins after {most} shots", _margins(last[most])),
        ],
        tables=[Table(headings, rows)],
    )


def _beside(scores: list[tuple[str, str, Tree]]) -> go.Figure:
    names = [plain_label(f"{task}, {shots} shots") for task, shots, _ in scores]
    figure = go.Figure()
    figure.add_bar(
        name="this model",
        y=names,
        x=[s["accuracy"] for _, _, s in scores],
        orientation="h",
        marker_color=BLUE,
    )
    figure.add_scatter(
        name="MT-NLG 530B",
        y=names,
        x=[s.get("published") for _, _, s in scores],
        mode="markers",
        marker={"symbol": "diamond", "color": ORANGE, "size": 10},
    )
    figure.update_xaxes(title="accuracy", tickformat=".0%", range=[0, 1])
    figure.update_yaxes(autorange="reversed")
    return sized(figure, 140 + ROW * len(scores))


def _series(series: list[Tree]) -> go.Figure:
    figure = go.Figure()
    for task, by_shots in series[-1]["tasks"].items():
        for shots in by_shots:
            figure.add_scatter(
                name=plain_label(f"{task}, {shots}"),
                x=[point["tokens"] for point in series],
                y=[point["tasks"][task][shots] for point in series],
                mode="lines+markers",
            )
    figure.update_xaxes(title="tokens")
    figure.update_yaxes(title="accuracy", tickformat=".0%")
    return sized(figure, 420)


def _against_shots(models: list[Tree]) -> go.Figure:
    figure = go.Figure()
    for number, model in enumerate(models):
        name = plain_label(f"step {model['model']['step']}, {model['model']['parameters']:,} parameters")
        colour = CATEGORY_COLOURS[number % len(CATEGORY_COLOURS)]
        for key, dash in (("accuracy", "solid"), ("threshold_accuracy", "dot")):
            figure.add_scatter(
                name=name if key == "accuracy" else f"{name}, with a threshold",
                x=list(model["shots"]),
                y=[m[key] for m in model["shots"].values()],
                mode="lines+markers",
                line={"color": colour, "dash": dash},
            )
    figure.update_xaxes(title="shots", type="category")
    figure.update_yaxes(title="accuracy", tickformat=".0%")
    return sized(figure, 380)


def _margins(measured: Tree) -> go.Figure:
    edges, counts = measured["margins"]["edges"], measured["margins"]["counts"]
    middles = [(a + b) / 2 for a, b in pairwise(edges)]
    labels = [label.strip() for label in counts]
    figure = go.Figure()
    for number, (label, heights) in enumerate(counts.items()):
        colour = CATEGORY_COLOURS[number % len(CATEGORY_COLOURS)]
        figure.add_bar(
            name=plain_label(f"gold:{label}"), x=middles, y=heights, marker_color=colour, opacity=0.7
        )
    two = len(labels) == 2
    title = f"log P({labels[0]}) − log P({labels[1]})" if two else "lead of the right choice, nats"
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(title=plain_label(title))
    figure.update_yaxes(title="questions")
    return sized(figure, 340)


def _groups(scores: list[tuple[str, str, Tree]]) -> list[Table]:
    rows = [
        (
            task,
            shots,
            kind,
            group,
            str(v["n"]),
            percent_text(v["accuracy"]),
            range_text(v["interval"], percent_text),
        )
        for task, shots, s in scores
        for kind, groups in (s.get("by_group") or {}).items()
        if kind != "subcase"
        for group, v in groups.items()
    ]
    headings = ("task", "shots", "by", "group", "examples", "accuracy", "interval")
    return [Table(headings, rows)] if rows else []


def _seen(score: Tree) -> str:
    contamination = score.get("contamination")
    return "unknown" if contamination is None else str(contamination["n"])
