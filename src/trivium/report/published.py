"""The section about published tasks, and its figures."""

from typing import Any

import plotly.graph_objects as go

from trivium.report.figures import BLUE, ORANGE, ROW, plain_label, sized
from trivium.report.parts import Drawn, Section, Table
from trivium.report.words import level_text, number_text, percent_text, range_text, shots_text

Tree = dict[str, Any]


def tasks_section(report: Tree) -> Section:
    """Show accuracy on published tasks, next to that of MT-NLG 530B."""
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
        figures.append(Drawn("Accuracy against tokens", against_tokens(found["series"])))
    return Section(
        "tasks",
        "Published tasks",
        shows="The paper's tasks with its prompts, shots and scoring; and what it reports of its model."
        + _asked_of(found.get("model")),
        reading="An interval that holds chance shows no skill. With more shots a prompt may be longer than the model "
        "reads: then its beginning is cut, and counted here.",
        limits="Subsets of questions, local copies of the data, and prompts partly remembered: see docs/evaluation.md. "
        + "".join(f"Not asked: {name}. " for name in found["skipped"]),
        figures=figures,
        tables=[Table(headings, rows), *_groups(scores)],
    )


def _asked_of(model: Tree | None) -> str:
    """Name the checkpoint that was evaluated, because a run may have several."""
    if not isinstance(model, dict) or not isinstance(model.get("step"), int):
        return ""
    seen = model.get("tokens")
    after = f", after {seen:,} tokens" if isinstance(seen, int) else ""
    return f" Asked of the checkpoint of step {model['step']:,}{after}."


def _beside(scores: list[tuple[str, str, Tree]]) -> go.Figure:
    names = [plain_label(f"{task}, {shots_text(shots)}") for task, shots, _ in scores]
    figure = go.Figure()
    figure.add_bar(
        name="this model", y=names, x=[s["accuracy"] for _, _, s in scores], orientation="h", marker_color=BLUE
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


def against_tokens(series: list[Tree]) -> go.Figure:
    """Draw accuracy against tokens.

    series: points {tokens, tasks: {task: {shots: accuracy}}}. A point may lack tasks.
    """
    lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for point in series:
        for task, by_shots in point["tasks"].items():
            for shots, accuracy in by_shots.items():
                lines.setdefault((task, shots), []).append((point["tokens"], accuracy))
    figure = go.Figure()
    for (task, shots), points in lines.items():
        x, y = zip(*points, strict=True)
        figure.add_scatter(name=plain_label(f"{task}, {shots_text(shots)}"), x=x, y=y, mode="lines+markers")
    figure.update_xaxes(title="tokens")
    figure.update_yaxes(title="accuracy", tickformat=".0%")
    return sized(figure, 420)


def _groups(scores: list[tuple[str, str, Tree]]) -> list[Table]:
    rows = [
        (task, shots, kind, group, str(v["n"]), percent_text(v["accuracy"]), range_text(v["interval"], percent_text))
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
