"""README's performance tables, from the newest reports of step.py and engine.py; never typed.

python benchmarks/readme_table.py [--reports benchmarks/reports]
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from step_page import summary_table

HERE = Path(__file__).resolve().parent


def main(arguments: list[str]) -> int:
    """Print the tables; exit code 1 when there is no report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reports", type=Path, default=HERE / "reports")
    folder = parser.parse_args(arguments).reports
    step, engine = (_newest(folder, name) for name in ("step", "engine"))
    if step is None and engine is None:
        print(f"no step-DATE.json or engine-DATE.json in {folder}", file=sys.stderr)
        return 1
    for record, table in ((step, step_table), (engine, engine_table)):
        if record is not None:
            print("\n".join([*table(record), ""]))
    return 0


def step_table(record: dict[str, Any]) -> list[str]:
    """One training step beside its peers, and the rows without peers."""
    others = [f"- {r['name']}: {r['summary']}" for r in record["rows"] if "summary" in r]
    return [*_head(record), "", *summary_table(record), "", *others]


def engine_table(record: dict[str, Any]) -> list[str]:
    """Layouts beside their peers."""
    lines = ["| row | peer | ratio | target | reached |", "|---|---|---:|---:|---|"]
    for row in record["rows"]:
        for c in row["comparisons"]:
            ratio = f"{c['ratio']:.2f}" if c["status"] == "measured" else f"{c['status']}: {c['reason']}"
            target = "" if c["target"] is None else f"{c['target']:.2f}"
            reached = {None: "", True: "yes", False: "no"}[c.get("reached")]
            lines.append(f"| {row['name']} | {c['peer']} | {ratio} | {target} | {reached} |")
    return [*_head(record), "", *lines]


def _head(record: dict[str, Any]) -> list[str]:
    machine = record["machine"]
    return [
        f"{machine['processor']}, {machine['cores']} cores, torch {record['torch']}, commit {record['commit']}, "
        f"{record['date'][:10]}:"
    ]


def _newest(folder: Path, name: str) -> dict[str, Any] | None:
    found = sorted(folder.glob(f"{name}-[0-9]*.json"))
    return json.loads(found[-1].read_text()) if found else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
