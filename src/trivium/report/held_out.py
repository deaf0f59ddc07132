"""The section about questions built from the run's own held-out documents."""

from typing import Any

from trivium.report.figures import accuracies
from trivium.report.parts import Drawn, Section, Table
from trivium.report.words import level_text, number_text, percent_text, range_text

Tree = dict[str, Any]


def evaluation_section(report: Tree) -> Section:
    """Show accuracy and surprise on held-out questions, with the baselines that use no context."""
    tasks = report["evaluation"]["tasks"]
    scores = [(task, shots, s) for task, by_shots in tasks.items() for shots, s in by_shots.items()]
    rows = [
        (
            *(task, shots, str(s["n"] or "unknown")),
            *(percent_text(s["accuracy"]), range_text(s["interval"], percent_text)),
            *(percent_text(s["chance"]), percent_text(s["unigram"]), percent_text(s["truncated_fraction"])),
        )
        for task, shots, s in scores
    ]
    surprise = [
        (
            *(task, shots, number_text(s["nats_per_byte"])),
            *(range_text(s["nats_per_byte_interval"], number_text), number_text(s["unigram_nats_per_byte"])),
        )
        for task, shots, s in scores
        if s["nats_per_byte"] is not None
    ]
    interval = level_text([s for _, _, s in scores])
    headings: tuple[str, ...] = ("task", "shots", "examples", "accuracy", interval)
    headings += ("chance", "token frequencies", "prompts cut")
    tables = [Table(headings, rows)]
    if surprise:
        of_surprise = ("task", "shots", "surprise, nats per byte", interval, "token frequencies")
        tables.append(Table(of_surprise, surprise))
    return Section(
        "evaluation",
        "Evaluation",
        shows="Questions made from documents that training never saw: how often the model is right, and how "
        "surprising it finds the right answer (lower is better).",
        reading="A score above both chance and token frequencies, with its whole interval, would mean that the model "
        "uses the context. Surprise shows the same earlier: it moves long before any answer turns right. A prompt that "
        "is longer than the model's sequence loses its beginning, and with it solved examples.",
        limits="No score here is comparable with a published one.",
        figures=[Drawn("Accuracy, with its interval and baselines", accuracies(tasks))] if rows else [],
        tables=tables,
    )
