"""Trainings side by side: their losses after as many tokens, and the settings in which they differ."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trivium.cli.show import table
from trivium.cli.workspace import Workspace
from trivium.config import leaves, to_tree, written
from trivium.errors import DataError
from trivium.provenance import stamp_hash
from trivium.training.metrics import METRICS, read
from trivium.training.record import read_record
from trivium.units import format_count

WINDOW = 10  # steps whose losses are averaged
MOST_FIELDS = 6  # as columns; the others are named below
LOCAL = ("training.start_from", "training.evaluation.data")  # where something lies
ABSENT = "-"


class Training(NamedTuple):
    """What is compared of a run. records: its log; fields: its settings by path; tokens: digest of its token shards."""

    name: str
    records: list[dict[str, Any]]
    fields: Mapping[str, Any]
    tokens: str

    def loss_after(self, tokens: int) -> float | None:
        """The mean of the last steps up to so many tokens."""
        found = [r["loss"] for r in self.records if "loss" in r and r["tokens"] <= tokens][-WINDOW:]
        return sum(found) / len(found) if found else None

    def validation_after(self, tokens: int) -> float | None:
        """The newest up to so many tokens."""
        found = [
            r["validation_loss"] for r in self.records if "validation_loss" in r and r["tokens"] <= tokens
        ]
        return found[-1] if found else None

    @property
    def trained(self) -> int:
        """Tokens so far."""
        return max(int(r["tokens"]) for r in self.records)


def comparison(runs: Sequence[Path]) -> list[str]:
    """A table, the lowest validation loss first, and what is to be known of it. DataError where a run has no log."""
    trainings = [_training(run) for run in runs]
    common = min(training.trained for training in trainings)
    paths = sorted(set().union(*(t.fields for t in trainings)))
    differing = [p for p in paths if len({str(t.fields.get(p, ABSENT)) for t in trainings}) > 1]
    shown, others = differing[:MOST_FIELDS], differing[MOST_FIELDS:]
    rows = []
    for t in sorted(trainings, key=lambda t: _order(t, common)):
        losses = (t.validation_after(common), t.loss_after(common))
        figures = [ABSENT if x is None else f"{x:.4f}" for x in losses]
        rows.append(
            [t.name, *figures, format_count(t.trained), *(written(t.fields.get(p, ABSENT)) for p in shown)]
        )
    head = ("run", "validation", "loss", "tokens", *(_short(path, differing) for path in shown))
    lines = [*table(rows, header=head, indent=0), ""]
    lines.append(
        f"validation and loss (mean of {WINDOW} steps) after at most {format_count(common)} tokens, which all have seen"
    )
    if others:
        lines.append(f"they differ in {', '.join(others)} too")
    if len({t.tokens for t in trainings}) > 1:
        lines.append("their tokens differ: what one loss says beside another depends on tokenizer and text")
    return lines


def _training(run: Path) -> Training:
    folder = Workspace(run).folder("training")
    records = [r for r in read(folder / METRICS) if "tokens" in r]
    if not records:
        raise DataError(
            f"{folder / METRICS} is missing or empty; `trivium train --out {shlex.quote(str(run))}` writes it"
        )
    record = read_record(folder)
    tree = {"seed": record.seed, "plan": to_tree(record.plan), "training": to_tree(record.training)}
    fields = {path: value for path, value in leaves(tree) if path not in LOCAL}
    return Training(str(run), records, fields, stamp_hash(record.tokens))


def _order(training: Training, tokens: int) -> tuple[float, float]:
    found = (training.validation_after(tokens), training.loss_after(tokens))
    first, second = (float("inf") if x is None else x for x in found)
    return first, second


def _short(path: str, among: Sequence[str]) -> str:
    """The last word of a field's path, where it tells it from the others."""
    last = path.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in among) == 1 else path
