"""The record of the corpus benchmark, gathered over several calls, and the report as Markdown."""

import json
import os
import platform
import statistics
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from trivium.provenance import code_commit

LIBRARIES = (
    "trivium",
    "numba",
    "numpy",
    "pyarrow",
    "daft",
    "ray",
    "tiktoken",
    "tokenizers",
    "gigatoken",
    "resiliparse",
)


def gathered(before: dict[str, Any], rows: dict[str, Any], command: str) -> dict[str, Any]:
    """The record with these rows added.

    Runs of a contestant that was measured before count together; Trivium's own (those without a target) only at the
    same commit.
    """
    kept = {name: {"commit": before["commit"]} | row for name, row in before.get("rows", {}).items()}
    for name, row in rows.items():
        kept[name] = _joined(kept.get(name), row) | {"commit": code_commit()}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": code_commit(),
        "machine": machine(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in LIBRARIES},
        "commands": [*before.get("commands", []), command],
        "rows": kept,
    }


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
    }


def _joined(before: dict[str, Any] | None, row: dict[str, Any]) -> dict[str, Any]:
    if before is None or "rows" not in row:
        return row
    contestants = dict(before["rows"])
    for name, found in row["rows"].items():
        old = contestants.get(name, {})
        if "not run" in found and old:
            continue
        counts = "target" in found or before["commit"] == code_commit()
        if counts and "every_cpu_seconds" in found and "every_cpu_seconds" in old:
            every = old["every_cpu_seconds"] + found["every_cpu_seconds"]
            cpu = statistics.median(every)
            speed = found["megabytes_per_cpu_second"] * found["cpu_seconds"] / cpu
            found = {**found, "every_cpu_seconds": every, "cpu_seconds": cpu, "megabytes_per_cpu_second": speed}
            found["peak_bytes"] = max(old.get("peak_bytes", 0), found.get("peak_bytes", 0))
        contestants[name] = found
    ours = row["ours"]
    for name, found in contestants.items():
        if name != ours and "cpu_seconds" in found:
            found["times_as_fast"] = found["cpu_seconds"] / contestants[ours]["cpu_seconds"]
    return {**row, "rows": contestants}


def page(record: dict[str, Any], every_row: Iterable[str]) -> str:
    """Every row as a table, with its target; rows that the record lacks are named."""
    machine_ = record["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    lines = [
        f"# Corpus benchmark, {record['date'][:10]}",
        "",
        f"- machine: {machine_['processor']}, {machine_['cores']} cores, {machine_['memory_bytes'] / 2**30:.0f} GiB, "
        f"{machine_['system']}",
        f"- last commit {record['commit']}, each row has its own; Python {record['python']}; {versions}",
        "- commands, one after the other:",
        *(f"  - `{command}`" for command in record["commands"]),
        "",
        "Seconds are processor seconds on one core, reading and writing included, imports and loading of kernels "
        "not; medians of interleaved rounds. Ratio: a contestant's seconds over those of "
        "Trivium's row that has no ratio. Where a row gives a load (of one "
        "minute, before it began) above 1, other work shared the machine.",
        "",
    ]
    lacking = [name for name in every_row if name not in record["rows"]]
    if lacking:
        lines += [f"Not measured in this record: {', '.join(lacking)}.", ""]
    for name, row in record["rows"].items():
        lines += [f"## {name.capitalize()}", "", *_section(row), ""]
    return "\n".join(lines)


def _section(row: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    rows = row.get("rows", {})
    if rows:
        lines += [
            "| contestant | CPU s | MB per CPU s | runs | ratio | target | recall | precision | peak MiB |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
            *(_line(name, one) for name, one in rows.items()),
        ]
    rest = {k: v for k, v in row.items() if k not in ("rows", "ours")}
    nested = {k: v for k, v in rest.items() if isinstance(v, dict)}
    if nested:
        lines += ["", *(f"- {name}: {_figures(value)}" for name, value in nested.items())]
    plain = {k: v for k, v in rest.items() if not isinstance(v, dict)}
    return [*lines, "", *(f"- {name.replace('_', ' ')}: {_shown(value)}" for name, value in plain.items())]


def _line(name: str, one: dict[str, Any]) -> str:
    if "cpu_seconds" not in one:
        why = one.get("failed") or one.get("not run") or "no figure"
        return f"| {name} | {'failed' if 'failed' in one else 'not run'}: {why} | | | | | | | |"
    cells = [
        f"{one['cpu_seconds']:.2f}",
        f"{one['megabytes_per_cpu_second']:.2f}",
        str(len(one["every_cpu_seconds"])),
        f"{one['times_as_fast']:.1f}" if "times_as_fast" in one else "",
        f"{one['target']:.1f}" if "target" in one else "",
        f"{one['recall']:.4f}" if "recall" in one else "",
        f"{one['precision']:.4f}" if "precision" in one else "",
        f"{one['peak_bytes'] / 2**20:.0f}" if one.get("peak_bytes") else "",
    ]
    return f"| {name} | " + " | ".join(cells) + " |"


def _figures(value: dict[str, Any]) -> str:
    flat = {k: v for k, v in value.items() if not isinstance(v, list)}
    inner = [
        f"{k} ({_figures(v)})" if isinstance(v, dict) else f"{k.replace('_', ' ')} {_shown(v)}" for k, v in flat.items()
    ]
    return ", ".join(inner)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if value < 1e6 else f"{value:,.0f}"
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"


def read_record(path: Path | None) -> dict[str, Any]:
    """The record of earlier calls; an empty one when there is none."""
    found: dict[str, Any] = json.loads(path.read_text()) if path and path.is_file() else {}
    return found
