"""A benchmark of rows that can be measured in pieces: its options, and the file and report that grow with each."""

import argparse
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from circumstances import circumstances

ROUNDS_QUICK = 3

Row = tuple[str, Callable[[int], dict[str, Any]]]  # name, and how to measure it in so many rounds


def options(about: str | None, rounds: int, arguments: list[str]) -> argparse.Namespace:
    """What was asked for; `rounds` of the result is never 0."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True, help="where the figures go")
    parser.add_argument("--report", help="folder for a dated Markdown report and the figures beside it")
    parser.add_argument(
        "--rows", default="", help="only rows whose name contains, or after = is, one of these, by commas"
    )
    parser.add_argument("--rounds", type=int, default=0, help=f"measured steps of each (default {rounds})")
    parser.add_argument("--quick", action="store_true", help=f"{ROUNDS_QUICK} rounds: does it run?")
    parser.add_argument("--merge", action="store_true", help="keep the other rows of the file")
    found = parser.parse_args(arguments)
    found.rounds = found.rounds or (ROUNDS_QUICK if found.quick else rounds)
    return found


def measure(
    name: str, rows: Sequence[Row], asked: argparse.Namespace, arguments: list[str], tell: Callable[[Any], str]
) -> dict[str, Any]:
    """Measure the rows that were asked for, one after the other; the file is whole after each."""
    wanted = [part.strip().lower() for part in asked.rows.split(",") if part.strip()]
    out, record = Path(asked.json), {**circumstances(f"benchmarks/{name}.py", arguments), "rows": []}
    if asked.merge and out.exists():
        before = json.loads(out.read_text())
        record["rows"], record["command"] = before["rows"], f"{before['command']}; {record['command']}"
    order = [row for row, _ in rows]
    for row, measured in rows:
        if wanted and not any(part in row.lower() or part == f"={row.lower()}" for part in wanted):
            continue
        result = {
            "commit": record["commit"],
            "changed": record["changed"],
            "load_before": os.getloadavg()[0],
            **measured(asked.rounds),
        }
        kept = [r for r in record["rows"] if r["name"] != row]
        record["rows"] = sorted([*kept, result], key=lambda r: order.index(r["name"]))
        record["load_after"] = os.getloadavg()[0]
        out.write_text(json.dumps(record, indent=1) + "\n")
        print(tell(result), flush=True)
    return record


def commits(record: dict[str, Any]) -> str:
    """Return the commits of the rows in their order, with a + after those with uncommitted changes."""
    found = dict.fromkeys(f"{r['commit']}{'+' if r['changed'] else ''}" for r in record["rows"] if "commit" in r)
    return ", ".join(found) or record["commit"]


def report(name: str, record: dict[str, Any], folder: str | None, page: Callable[[dict[str, Any]], str]) -> None:
    """Write the dated report of this processor and the figures beside it, if a folder was named."""
    if folder is None:
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder) / f"{name}-{record['date'][:10]}-{processor_slug(record['machine']['processor'])}"
    path.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    path.with_suffix(".md").write_text(page(record))


def processor_slug(processor: str) -> str:
    """The processor's first two names, family and model as a file's: "Intel(R) Xeon(R) CPU @ 2.50GHz, family 6 model
    85" is intel-xeon-6-85. Ratios differ by maker and generation: torch's products are a library of one maker's."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"\(r\)|\(tm\)", " ", processor.lower()))
    generation = re.search(r"family (\d+) model (\d+)", processor)
    return "-".join((*words[:2], *(generation.groups() if generation else ()))) or "unknown"
