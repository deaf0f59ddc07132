"""Trivium against what a user would otherwise compose, in turn, in one process group, on the same weights and data.

    python benchmarks/engine.py --json out.json [--rows 1F1B,replicas] [--rounds 20] [--merge] [--report folder]

A ratio is peer seconds over Trivium seconds: above 1, Trivium is faster. A row is measured in three launches where
there are rounds enough: its ratios are the medians over them. Both sides have MKL's fast kernels.
"""

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from trivium import mkl

mkl.prefer_fast_kernels()  # for both sides of a row, which share a process; before torch
import torch
from contest import Row, read_result, run_row
from external import external_rows
from launches import compared, rounds_of_launches
from page import page
from pieces import Row as PieceRow
from pieces import measure, options, report
from rows import rows

from trivium.comms.launch import run_ranks
from trivium.errors import TriviumError

ROUNDS = 20
FEWEST = 2
ROW_TIMEOUT_SECONDS = 900.0


def main(arguments: list[str]) -> int:
    """Run the rows and write the reports; exit code 1 when a row of ours could not be measured."""
    asked = options(__doc__, ROUNDS, arguments)
    own = [(row.name, row.fewer_rounds, partial(_run, row)) for row in rows()]
    external = [(row.name, row.duel.fewer_rounds, row.run) for row in external_rows()]
    every: list[PieceRow] = [(name, partial(_in_launches, run, fewer)) for name, fewer, run in (*own, *external)]
    record = measure("engine", every, asked, arguments, _line)
    report("engine", record, asked.report, page)
    return int(any(r["status"] == "failed" for r in record["rows"]))


def _in_launches(run: Callable[[int], dict[str, Any]], fewer: int, rounds: int) -> dict[str, Any]:
    return compared([run(n) for n in rounds_of_launches(max(FEWEST, rounds // fewer))])


def _run(row: Row, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        try:
            run_ranks(run_row, row.ranks, row, rounds, str(out), timeout_seconds=ROW_TIMEOUT_SECONDS)
        except TriviumError as error:
            return {
                "name": row.name,
                "status": "failed",
                "reason": str(error).strip().splitlines()[-1],
                "ranks": row.ranks,
                "says": row.says,
                "comparisons": [],
            }
        result = read_result(out)
        assert result is not None, f"rank 0 of row {row.name} ended well without a result"
        return result


def _line(result: dict[str, Any]) -> str:
    if result["status"] != "measured":
        return f"{result['name']}: {result['status']}: {result['reason']}"
    shown = [f"{result['name']}:"]
    for c in result["comparisons"]:
        against = f"{c['trivium']} / {c['peer']}"
        if c["status"] == "measured":
            target = "" if c["target"] is None else f" (target {c['target']})"
            shown.append(f"  {against}: {c['ratio']:.2f}{target}, cpu {c['ratio_of_cpu']:.2f}")
        else:
            shown.append(f"  {against}: {c['status']}: {c['reason']}")
    if "extra" in result:
        extra = result["extra"]
        shown.append(
            f"  saved {extra['share_saved']:.1%}, predicted {extra['share_predicted_by_order']:.1%} by the order, "
            f"{extra['share_predicted']:.1%} with each schedule's own durations"
        )
    return "\n".join(shown)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
