"""`trivium plan backtest`: predictions beside published measurements, and how far off they are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from trivium.cli.show import say
from trivium.planner.backtest import Backtest, Errors
from trivium.planner.backtest import backtest as backtested
from trivium.planner.published_rows import read_rows
from trivium.provenance import write_json

COLUMNS = ("rows", "bias", "mape", "median", "p95", "max")


def backtest(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="A table of published runs.")],
    fit_on: Annotated[
        Path | None,
        typer.Option("--fit", metavar="OTHER.csv", help="Learn the constants from this table alone."),
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", help="Write rows and statistics to this file.")
    ] = None,
) -> None:
    """Predict every run of a table, and say how far the predictions are from its measurements, in percent."""
    table, constants = read_rows(file), None
    if fit_on is not None:
        from trivium.planner.fit import fit  # scipy, which other verbs of plan never need

        learned_from = read_rows(fit_on)
        _say_skipped(fit_on, learned_from.problems)
        learned = fit(learned_from.rows)
        constants = learned.constants
        say(f"constants learned from {learned.rows} of {len(learned_from.rows)} rows of {fit_on}")
    found = backtested(table, constants)
    for line in lines(found):
        say(line)
    _say_skipped(file, table.problems)
    if json is not None:
        write_json(json, found.tree())


def lines(found: Backtest) -> list[str]:
    """A table of errors, of each source and of all."""
    head = f"{'':24}{'seconds, percent':>44}"
    rows = [head, f"{'source':24}" + "".join(f"{name:>8}" for name in COLUMNS)]
    for name, errors in [*((src, found.errors(src)) for src in found.sources), ("all", found.errors())]:
        rows.append(f"{name:24}{_figures(errors['seconds'])}{_memory(errors)}")
    return rows


def _figures(errors: Errors) -> str:
    return f"{errors.n:8,}" + "".join(f"{value:8.2f}" for value in errors[1:])


def _memory(errors: Mapping[str, Errors]) -> str:
    if "memory" not in errors:
        return ""
    held = errors["memory"]
    return f"   memory of {held.n}: mape {held.mape:.2f}, max {held.max:.2f}"


def _say_skipped(path: Path, problems: tuple[str, ...]) -> None:
    for problem in problems:
        say(f"{path}: {problem}")
    if problems:
        say(f"{path}: {len(problems)} rows skipped; the others are graded")
