"""Compare the planner's predictions with every run of a table, published ones or your own.

    python benchmarks/backtest.py FILE.csv [--fit OTHER.csv] [--json OUT]

--help describes the columns. --fit learns the constants of the cost model from another table alone.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from trivium.cli.paths import local_path
from trivium.cli.show import STANDARD_OUTPUT, say, say_aside, say_found
from trivium.errors import ConfigError, DataError
from trivium.planner.backtest import Backtest, Errors
from trivium.planner.backtest import backtest as backtested
from trivium.planner.published_rows import read_rows
from trivium.units import counted

COLUMNS = ("rows", "bias", "mape", "median", "p95", "max")


def backtest(
    file: Annotated[Path, typer.Argument(parser=local_path, metavar="FILE.csv", help="A table of published runs.")],
    fit_on: Annotated[
        Path | None,
        typer.Option(
            "--fit", parser=local_path, metavar="OTHER.csv", help="Learn the constants from this table alone."
        ),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(
            "--json", parser=local_path, metavar="OUT", help="Write rows and statistics; -: to standard output."
        ),
    ] = None,
) -> None:
    """Predict every run of a table, and say how far the predictions are from its measurements, in percent.

    The table has these columns:

    \b
    L, h, a, kv, ffn, s, V   layers, hidden, heads, key-value heads, feed-forward
                             width, sequence, vocabulary
    tp, pp, v, dp, cp        degrees (v: chunks)
    mbs, gbs                 sequences per micro-batch and step
    gated, sp, dp_overlap,   1 or 0: Llama's block; sequence parallelism;
    tie_balance              gradients reduced beside the backward; embedding and
                             logits counted as layers
    recompute, attn          none, selective or full; flash or unfused
    dtype, zero              bf16 or fp16; 0 to 3
    gpu or cluster, fw       a machine and a system of planner/published_rows.yaml
    iter_s, mem_gb, n_gpus   seconds per step, GiB of the fullest rank, number of
                             GPUs; the last two may be empty
    src, quality, note       source; C keeps a row out of --fit; anything
    """
    table, constants, aside = read_rows(file), None, json == STANDARD_OUTPUT
    if fit_on is not None:
        from trivium.planner.fit import fit

        learned_from = read_rows(fit_on)
        _say_skipped(fit_on, learned_from.problems, aside=aside)
        learned = fit(learned_from.rows)
        constants = learned.constants
        if not learned.rows:
            raise DataError(f"{fit_on}: none of its rows can be learned from; leave --fit out, or name another table")
        if not aside:
            say(f"constants learned from {learned.rows} of {len(learned_from.rows)} rows of {fit_on}")
    found = backtested(table, constants)
    _say_skipped(file, found.problems, aside=aside)
    if not found.rows:
        raise DataError(f"{file}: none of its rows can be graded; it needs at least one run")
    say_found(backtest_lines(found), found.tree(), json)


def backtest_lines(found: Backtest) -> list[str]:
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


def _say_skipped(path: Path, problems: tuple[str, ...], *, aside: bool) -> None:
    """aside: to standard error, where a program reads what is printed."""
    told = say_aside if aside else say
    for problem in problems:
        told(f"{path}: {problem}")
    if problems:
        told(f"{path}: {counted(len(problems), 'row')} skipped; the others are graded")


def main() -> None:
    """Run the script; an error that a user can fix is one line and an exit code."""
    try:
        typer.run(backtest)
    except (ConfigError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
