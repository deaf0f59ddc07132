"""README's performance tables, from each processor's newest reports of step.py and engine.py; never typed.

python benchmarks/readme_table.py [--reports benchmarks/reports] [--write README.md]
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pieces import commits, processor_slug
from step_page import summary_table

HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- performance: begin -->", "<!-- performance: end -->"


def main(arguments: list[str]) -> int:
    """Print the tables, or write them between their marks; exit code 1 when there is no report or no mark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reports", type=Path, default=HERE / "reports")
    parser.add_argument("--write", type=Path, help="a file whose marked part the tables replace")
    asked = parser.parse_args(arguments)
    folder = asked.reports
    parts = [
        (record, table)
        for name, table in (("step", step_table), ("engine", engine_table))
        for record in _newest_of_each(folder, name)
    ]
    if not parts:
        print(f"no step-DATE.json or engine-DATE.json in {folder}", file=sys.stderr)
        return 1
    text = "\n\n".join("\n".join(table(record)) for record, table in parts)
    if asked.write is None:
        print(text)
        return 0
    before, begin, rest = asked.write.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        print(f"{asked.write}: the marks {BEGIN} and {END} are missing", file=sys.stderr)
        return 1
    asked.write.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
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
        f"{machine['processor']}, {machine['cores']} cores, torch {record['torch']}, commits {commits(record)}, "
        f"{record['date'][:10]}:"
    ]


def _newest_of_each(folder: Path, name: str) -> list[dict[str, Any]]:
    """A report per processor."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob(f"{name}-[0-9]*.json")):
        record = json.loads(path.read_text())
        found[processor_slug(record["machine"]["processor"])] = record
    return list(found.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
