"""How fast the planner is: layouts priced per second of one core, finalists simulated, and the command line.

    python benchmarks/planner_speed.py [--json FILE] [--runs N]

MT-NLG 530B on 280 DGX A100, batch 1,920, every legal plan of the default space. "first" figures are of a process that
has just started, which also reads constants and counts activations in flight; "again" repeats the search. A layout
counts as priced only where both its memory and its seconds were computed; those over the limit have memory alone.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from trivium.cost.hardware import machine_named
from trivium.planner.config import SearchSpace
from trivium.planner.grid import Subject
from trivium.planner.pricing import price, simulated_steps
from trivium.planner.published import mt_nlg_plan
from trivium.planner.search import legal_plans, memory_limit

RANKS, FINALISTS = 2240, 50
COMMAND = ("plan", "search", "--model", "mt-nlg-530b", "--machine", "selene", "--nodes", "280", "--batch", "1920")
TARGETS = {"layouts_per_second": 30_000, "seconds_per_1000": 0.1, "simulated_seconds": 0.5, "wall_seconds": 1.0}


def analytic() -> dict[str, float]:
    """CPU seconds of one search without simulation, and what it priced."""
    plan, machine, space = mt_nlg_plan(), machine_named("selene"), SearchSpace()
    subject = Subject(plan.model, plan.batch.sequences, plan.precision)
    started = time.process_time()
    legal = legal_plans(subject, machine, RANKS, space).candidates
    priced = price(legal, machine, memory_limit(machine, RANKS, space), space)
    order = priced.seconds.argsort()[:FINALISTS]
    searched = time.process_time()
    simulated_steps(priced.candidates.take(priced.fitting[order]), machine)
    ended = time.process_time()
    return {
        "legal": len(legal),
        "priced": len(priced.fitting),
        "cpu_seconds": searched - started,
        "layouts_per_second": len(priced.fitting) / (searched - started),
        "with_memory_only_per_second": len(legal) / (searched - started),
        "seconds_per_1000": 1000 * (searched - started) / len(priced.fitting),
        "simulated_seconds": ended - searched,
    }


def command_line(runs: int) -> dict[str, float]:
    """Wall seconds of `trivium plan search`, start-up included."""
    command = [sys.executable, "-m", "trivium.cli.main", *COMMAND, "--json"]
    seconds = []
    for _ in range(runs):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        seconds.append(time.perf_counter() - started)
    return {"wall_seconds": statistics.median(seconds), "wall_seconds_max": max(seconds), "runs": runs}


def measured(runs: int) -> dict[str, Any]:
    first = analytic()
    repeats = [analytic() for _ in range(runs)]
    again = {name: statistics.median(each[name] for each in repeats) for name in first}
    return {"first": first, "again": again, "command": command_line(runs), "targets": TARGETS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the record there")
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    record = measured(options.runs)
    for name in ("first", "again"):
        figures = record[name]
        print(
            f"{name:6} {figures['legal']:,.0f} legal layouts, {figures['priced']:,.0f} of them fit and were priced, in "
            f"{figures['cpu_seconds']:.3f} s of CPU: {figures['layouts_per_second']:,.0f} layouts/s/core "
            f"({figures['seconds_per_1000']:.4f} s per 1,000); {figures['with_memory_only_per_second']:,.0f}/s "
            f"counting those that only memory was priced of; top {FINALISTS} simulated in "
            f"{figures['simulated_seconds']:.3f} s"
        )
    wall = record["command"]
    print(
        f"command line: median {wall['wall_seconds']:.2f} s, worst {wall['wall_seconds_max']:.2f} s of {wall['runs']}"
    )
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
