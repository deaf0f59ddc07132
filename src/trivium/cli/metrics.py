"""`trivium metrics`: what a training wrote of its steps, for people, TensorBoard or Weights & Biases."""

import os
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli.compare import comparison
from trivium.cli.local_path import local_path
from trivium.cli.show import say, say_aside
from trivium.cli.workspace import Workspace, read_result
from trivium.errors import ConfigError, DataError
from trivium.provenance import STAMP
from trivium.units import format_count, format_flops

POLL_SECONDS = 1.0
SHOWN = 10  # steps, where nothing else is said
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

app = typer.Typer(rich_markup_mode=None, add_completion=False)


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
        int | None, typer.Option("--last", metavar="N", min=1, help=f"Print so many steps; default: {SHOWN}.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with the training, until it has ended.")] = False,
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
        _print(batches, last or SHOWN)
    else:
        _hand_over(batches, to, run)


def _refuse_last(last: int | None, why: str) -> None:
    if last is not None:
        raise ConfigError(f"--last {last}: {why}; leave it out")


def _hand_over(batches: Iterator[Iterable[Mapping[str, Any]]], to: str, run: Path) -> None:
    kind, _, where = to.partition("=")
    if kind == "tensorboard":
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


def _print(batches: Iterator[Iterable[Mapping[str, Any]]], last: int) -> None:
    """The newest steps, then a line for each that comes."""
    say(_line(COLUMNS))
    for number, records in enumerate(batches):
        for record in deque(records, last) if number == 0 else records:
            say(_line(_cells(record)))


def _line(cells: Iterable[str]) -> str:
    return "".join(f" {cell:>{width - 1}}" for cell, width in zip(cells, COLUMNS.values(), strict=True))


def _cells(record: Mapping[str, Any]) -> Iterator[str]:
    """Of COLUMNS; empty where the record has no such number."""
    yield str(record["step"])
    for name, form in FORMS.items():
        yield form(record[name]) if name in record else ""


def _batches(lines: Any, folder: Path, *, follow: bool) -> Iterator[Iterable[Mapping[str, Any]]]:
    """Records as they are read, none of them held: all there are, then those of every second until training ends."""
    while True:
        ended = (folder / STAMP).is_file()  # looked at first: what was written before it is then read
        yield lines
        if not follow or ended:
            return
        time.sleep(POLL_SECONDS)
