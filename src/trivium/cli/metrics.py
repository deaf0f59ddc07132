"""`trivium metrics`: what a training wrote of its steps, for people, TensorBoard or Weights & Biases."""

import math
import os
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, NamedTuple

import typer

from trivium.cli.live import Note, note_of, peak_here
from trivium.cli.paths import local_path
from trivium.cli.run_config import Given, resolve
from trivium.cli.settings import App
from trivium.cli.show import progress_of, say, say_aside, table
from trivium.cli.workspace import Workspace, read_result
from trivium.config import leaves, to_tree, written
from trivium.errors import ConfigError, DataError
from trivium.provenance import STAMP, stamp_hash
from trivium.training.metrics import METRICS, records
from trivium.training.record import read_record
from trivium.units import format_count, format_flops

POLL_SECONDS = 1.0
DEFAULT_STEPS = 10
EXPERTS = "experts"  # in a record: the loads of experts, by layer
# Headings and widths: 80 columns of a terminal hold a line.
COLUMNS: Mapping[str, int] = {
    "step": 8,
    "tokens": 8,
    "loss": 9,
    "validation": 11,
    "lr": 10,
    "norm": 10,
    "tokens/s": 10,
    "FLOP/s": 12,
}
# With experts the others are narrower, so that there is room for `load`: the largest load over the mean, in the layer
# where that is largest.
COLUMNS_WITH_LOADS = {**COLUMNS, "step": 7, "tokens": 7, "loss": 8, "lr": 9, "tokens/s": 9, "load": 7}
# Of a record, in the order of the columns after the step.
FORMS: Mapping[str, Callable[[float], str]] = {
    "tokens": format_count,
    "loss": "{:.4f}".format,
    "validation_loss": "{:.4f}".format,
    "lr": "{:.3g}".format,
    "gradient_norm": "{:.4g}".format,
    "tokens_per_second": format_count,
    "model_flops_per_second": format_flops,
}

app = App()


@app.command()
def metrics(
    runs: Annotated[
        list[Path], typer.Argument(parser=local_path, metavar="RUN", help="A run directory, or several to compare.")
    ],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="tensorboard[=FOLDER]|wandb[=PROJECT]",
            help="Write them for this tool. wandb keeps them on disk unless WANDB_MODE=online.",
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option("--last", metavar="N", min=1, help=f"Print this number of steps; default: {DEFAULT_STEPS}."),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Keep printing until training ends: on a terminal one line that is rewritten, otherwise every step.",
        ),
    ] = False,
) -> None:
    """Print the newest steps of a training, or hand all of them to another tool; set several trainings side by side."""
    if len(runs) > 1:
        if to is not None or follow:
            raise ConfigError(
                f"--to and --follow take one RUN, and here are {len(runs)}; give them one after the other"
            )
        _refuse_last(last, "several runs are compared at the same number of tokens")
        for line in comparison(runs):
            say(line)
        return
    (run,) = runs
    if to is not None:
        _refuse_last(last, "--to hands over all steps")
    from trivium.interchange.tracking import NewLines
    from trivium.training.metrics import METRICS, TASKS, record_of

    folder = Workspace(run).folder("training")
    if not (folder / METRICS).is_file():
        remedy = f"`trivium train --out {shlex.quote(str(run))}` writes it"
        if not follow:
            raise DataError(f"{folder / METRICS} is missing; {remedy}")
        say_aside(f"waiting for {folder / METRICS}; {remedy}")
    paths = [folder / METRICS] if to is None else [folder / METRICS, folder / TASKS]
    batches = _batches(NewLines(paths, record_of), folder, follow=follow)
    if to is None:
        _print(batches, last or DEFAULT_STEPS, run if follow and sys.stdout.isatty() else None)
    else:
        _hand_over(batches, to, run)


def _refuse_last(last: int | None, why: str) -> None:
    if last is not None:
        raise ConfigError(f"--last {last}: {why}; leave it out")


def _hand_over(batches: Iterator[Iterable[Mapping[str, Any]]], to: str, run: Path) -> None:
    kind, _, where = to.partition("=")
    if kind == "tensorboard" and where:
        local_path(where)
    from trivium.interchange.tracking import point_of, tracker
    from trivium.training.record import RUN

    at = Workspace(run)
    config = dict(read_result(at.config)) if at.config.is_file() else {}
    trained = at.folder("training") / RUN  # the config is of the last verb
    if trained.is_file():
        written = read_result(trained)
        config |= {name: written[name] for name in ("plan", "training", "seed")}
    online = os.environ.get("WANDB_MODE") == "online"
    if not online:  # wandb would send its own crashes home
        os.environ["WANDB_ERROR_REPORTING"] = "false"
    keeper = tracker(to, run, config, online=online)
    steps = 0
    try:
        for records in batches:
            for record in records:
                keeper.add(point_of(record))
                steps += 1
    finally:
        after = keeper.close()
        say(f"{steps} records written; next: {after}")


def _print(batches: Iterator[Iterable[Mapping[str, Any]]], last: int, live: Path | None) -> None:
    """Print the newest steps, then those that come: a line each or, for a run that is followed on a terminal, one line
    that is rewritten until the last step is printed."""
    before = deque(next(batches), last)
    columns = COLUMNS_WITH_LOADS if any(EXPERTS in record for record in before) else COLUMNS
    say(_line(columns, columns))
    for record in before:
        say(_line(_cells(record), columns))
    if live is None:
        for record in chain.from_iterable(batches):
            say(_line(_cells(record), columns))
        return
    newest: deque[Mapping[str, Any]] = deque(maxlen=AVERAGED_STEPS)
    with progress_of("train", sys.stdout, long_notes=True) as progress:
        for batch in batches:
            newest.extend(record for record in batch if "loss" in record)
            if newest:
                steps, note = _live_note(live)
                progress(int(newest[-1]["step"]), steps, note(list(newest)))
    for record in list(newest)[-1:]:
        say(_line(_cells(record), columns))


def _live_note(run: Path) -> tuple[int, Note]:
    """Return the steps of a training and what describes its newest ones."""
    at = Workspace(run)
    record = read_record(at.folder("training"))
    peak = None
    with suppress(ConfigError):  # The config is of the last command, and may name a machine file that is gone.
        peak = peak_here(resolve(Given(str(at.config))).model_copy(update={"plan": record.plan}))
    return record.training.steps, note_of(record.plan, record.training.steps, peak)


def _line(cells: Iterable[str], columns: Mapping[str, int]) -> str:
    return "".join(f" {cell:>{width - 1}}" for cell, width in zip(cells, columns.values(), strict=False))


def _cells(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the cells of COLUMNS_WITH_LOADS; empty where the record has no such number."""
    yield str(record["step"])
    for name, form in FORMS.items():
        yield form(record[name]) if name in record else ""
    loads = record.get(EXPERTS) or {}
    yield f"{max(load['largest'] for load in loads.values()):.2f}" if loads else ""


def _batches(lines: Any, folder: Path, *, follow: bool) -> Iterator[Iterable[Mapping[str, Any]]]:
    """Records as they are read, none of them held: all there are, then those of every second until training ends."""
    while True:
        ended = (folder / STAMP).is_file()  # looked at first: what was written before it is then read
        yield lines
        if not follow or ended:
            return
        time.sleep(POLL_SECONDS)


AVERAGED_STEPS = 10  # in a comparison of losses
MAX_FIELD_COLUMNS = 6  # as columns; the others are named below
LOCAL = ("training.start_from", "training.evaluation.data")  # fields with local paths
ABSENT = "-"


class Losses(NamedTuple):
    """A training's newest losses up to a number of tokens, of validation and as the mean of the last AVERAGED_STEPS
    steps."""

    tokens: int  # tokens of the record with the most, or 0 without records
    validation: float | None
    training: float | None


class Training(NamedTuple):
    """The compared properties of a run. fields: its settings by path; tokens: digest of its token shards."""

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
    shown, others = differing[:MAX_FIELD_COLUMNS], differing[MAX_FIELD_COLUMNS:]
    rows = []
    compared = [(t, t.losses_after(common)) for t in trainings]
    for t, losses in sorted(compared, key=lambda pair: _order(pair[1])):
        figures = [ABSENT if x is None else f"{x:.4f}" for x in (losses.validation, losses.training)]
        settings = [written(t.fields.get(p, ABSENT)) for p in shown]
        rows.append([t.name, *figures, format_count(t.losses.tokens), *settings])
    head = ("run", "validation", "loss", "tokens", *(_short(path, differing) for path in shown))
    lines = [*table(rows, header=head, indent=0), ""]
    lines.append(
        f"validation and loss (mean of {AVERAGED_STEPS} steps) of the first {format_count(common)} tokens, the most "
        "that every run has reached"
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
    last: deque[float] = deque(maxlen=AVERAGED_STEPS)
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
