"""Every figure in the order of the paper, as text and as the tables of docs/reproduction.md."""

from collections.abc import Sequence

from trivium.evaluation.tasks.definition import definition, names
from trivium.reproduction.figure import Figure
from trivium.reproduction.system import system_figures
from trivium.reproduction.training import blend_figures, recipe_figures, rule_figures

HEADER = ("section", "what", "paper", "ours", "")
KINDS = ("counted", "predicted", "setting")
SHOTS = ("0", "1", "few")


def every_figure() -> list[Figure]:
    """All that can be computed without the trained model."""
    return [*system_figures(), *blend_figures(), *rule_figures(), *recipe_figures()]


def rows(figures: Sequence[Figure]) -> list[tuple[str, ...]]:
    """A row of text each: section, what, paper, ours, whether they agree."""
    return [(f.section, f.what, *f.printed, f.verdict) for f in figures]


def summary(figures: Sequence[Figure]) -> str:
    """How many agree, by kind, and how far the predicted are off."""
    told = []
    for kind in KINDS:
        of_kind = [f for f in figures if f.kind == kind]
        told.append(f"{sum(f.agrees for f in of_kind)} of {len(of_kind)} {kind}")
    seconds = [abs(f.deviation) for f in figures if f.kind == "predicted" and f.unit == "s"]
    return f"equal as printed: {', '.join(told)}; seconds predicted within {max(seconds, default=0.0):.1%}"


def markdown(figures: Sequence[Figure]) -> str:
    """A table for each section, then the accuracies that a trained model would be compared with."""
    parts = [f"{summary(figures).capitalize()}."]
    for section in dict.fromkeys(f.section for f in figures):
        lines = [_row(f) for f in figures if f.section == section]
        head = ["| what | paper | ours | | kind | shown by |", "|---|---:|---:|---|---|---|"]
        parts.append("\n".join([f"### Section {section}", "", *head, *lines]))
    return "\n\n".join([*parts, published_accuracies()]) + "\n"


def published_accuracies() -> str:
    """Section 4, and HANS of section 5: accuracy in percent, as `evaluate` and the report show it beside a model's."""
    lines = []
    for task in map(definition, names()):
        if task.published:
            printed = (f"{task.published[shots]:.2f}" if shots in task.published else "" for shots in SHOTS)
            lines.append(f"| {task.name} | {' | '.join(printed)} | {task.few} |")
    head = ["| task | 0 shots | 1 shot | few | shots of few |", "|---|---:|---:|---:|---:|"]
    return "\n".join(["### Sections 4 and 5: accuracy of MT-NLG, percent", "", *head, *lines])


def _row(figure: Figure) -> str:
    note = f"; {figure.note}" if figure.note else ""
    cells = (figure.what, *figure.printed, figure.verdict, figure.kind, f"`{figure.command}`{note}")
    return f"| {' | '.join(cells)} |"
