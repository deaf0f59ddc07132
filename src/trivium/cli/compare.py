"""Trainings side by side: their losses after as many tokens, and the settings in which they differ."""

import math
import shlex
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from trivium.cli.show import table
from trivium.cli.workspace import Workspace
from trivium.config import leaves, to_tree, written
from trivium.errors import DataError
from trivium.provenance import stamp_hash
from trivium.training.metrics import METRICS, records
from trivium.training.record import read_record
from trivium.units import format_count

WINDOW = 10  # steps whose losses are averaged
MOST_FIELDS = 6  # as columns; the others are named below
LOCAL = ("training.start_from", "training.evaluation.data")  # where something lies
ABSENT = "-"


class Losses(NamedTuple):
    """A training's newest losses up to a number of tokens, of validation and as the mean of the last WINDOW steps."""

    tokens: int  # of the record with the most, 0 where there is no record
    validation: float | None
    training: float | None


class Training(NamedTuple):
    """What is compared of a run. fields: its settings by path; tokens: digest of its token shards."""

    name: str
    log: Path
    losses: Losses  # at its end
    fields: Mapping[str, Any]
    tokens: str

    def losses_after(self, tokens: int) -> Losses:
        """Return the losses up to a number of tokens."""
        return self.losses if self.losses.tokens <= tokens else _losses(self.log, tokens)


def comparison(runs: Sequence[Path]) -> list[str]:
    """A table, the lowest validation loss first, and what is to be known of it. DataError where a run has no log."""
    trainings = [_training(run) for run in runs]
    common = min(training.losses.tokens for training in trainings)
    paths = sorted(set().union(*(t.fields for t in trainings)))
    differing = [p for p in paths if len({str(t.fields.get(p, ABSENT)) for t in trainings}) > 1]
    shown, others = differing[:MOST_FIELDS], differing[MOST_FIELDS:]
    rows = []
    compared = [(t, t.losses_after(common)) for t in trainings]
    for t, losses in sorted(compared, key=lambda pair: _order(pair[1])):
        figures = [ABSENT if x is None else f"{x:.4f}" for x in (losses.validation, losses.training)]
        settings = [written(t.fields.get(p, ABSENT)) for p in shown]
        rows.append([t.name, *figures, format_count(t.losses.tokens), *settings])
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
    losses = _losses(folder / METRICS)
    if losses.tokens == 0:
        raise DataError(
            f"{folder / METRICS} is missing or empty; `trivium train --out {shlex.quote(str(run))}` writes it"
        )
    record = read_record(folder)
    tree = {"seed": record.seed, "plan": to_tree(record.plan), "training": to_tree(record.training)}
    fields = {path: value for path, value in leaves(tree) if path not in LOCAL}
    return Training(str(run), folder / METRICS, losses, fields, stamp_hash(record.tokens))


def _losses(log: Path, tokens: float = math.inf) -> Losses:
    """Read the losses up to a number of tokens, one record at a time: the log of a long training may not fit in
    memory."""
    last: deque[float] = deque(maxlen=WINDOW)
    most, validation = 0, None
    for record in records(log):
        if "tokens" in record and record["tokens"] <= tokens:
            most = max(most, record["tokens"])
            validation = record.get("validation_loss", validation)
            last.extend([record["loss"]] if "loss" in record else [])
    return Losses(most, validation, fmean(last) if last else None)


def _order(losses: Losses) -> tuple[float, float]:
    first, second = (math.inf if x is None else x for x in (losses.validation, losses.training))
    return first, second


def _short(path: str, among: Sequence[str]) -> str:
    """The last word of a field's path, where it tells it from the others."""
    last = path.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in among) == 1 else path
