"""Trivium against what a user would otherwise compose, in turn, in one process group, on the same weights and data.

    python benchmarks/engine.py --json out.json [--rows 1F1B,replicas] [--rounds 20] [--quick] [--report folder]

A ratio is peer seconds over Trivium seconds: above 1, Trivium is faster.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from circumstances import circumstances
from contest import Row, read_result, run_row
from external import external_rows
from page import page
from rows import rows

from trivium.errors import TriviumError
from trivium.parallel.launch import run_ranks

ROUNDS, QUICK_ROUNDS = 20, 3
ROW_TIMEOUT_SECONDS = 900.0


def main(arguments: list[str]) -> int:
    """Run the rows and write the reports; exit code 1 when a row of ours could not be measured."""
    options = _options(arguments)
    wanted = [part.strip().lower() for part in options.rows.split(",") if part.strip()]
    chosen = [row for row in rows() if _is_wanted(row.name, wanted)]
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    record: dict[str, Any] = {**circumstances("benchmarks/engine.py", arguments), "rows": []}
    for row in chosen:
        result = {"load_before": os.getloadavg()[0], **_run(row, max(2, rounds // row.fewer_rounds))}
        record["rows"].append(result)
        print(_line(result), flush=True)
    for row in external_rows():
        if _is_wanted(row.name, wanted):
            result = {"load_before": os.getloadavg()[0], **row.run(rounds)}
            record["rows"].append(result)
            print(_line(result), flush=True)
    record["load_after"] = os.getloadavg()[0]
    Path(options.json).write_text(json.dumps(record, indent=1))
    if options.report:
        folder = Path(options.report)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"engine-{record['date'][:10]}"
        (folder / f"{name}.json").write_text(json.dumps(record, indent=1))
        (folder / f"{name}.md").write_text(page(record))
    return int(any(r["status"] == "failed" for r in record["rows"]))


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", required=True, help="where the figures go")
    parser.add_argument("--report", help="folder for a dated Markdown report and the figures beside it")
    parser.add_argument("--rows", default="", help="only rows whose name contains one of these, by commas")
    parser.add_argument("--rounds", type=int, default=0, help=f"measured steps of each (default {ROUNDS})")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds: does it run?")
    return parser.parse_args(arguments)


def _is_wanted(name: str, wanted: list[str]) -> bool:
    return not wanted or any(part in name.lower() for part in wanted)


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
