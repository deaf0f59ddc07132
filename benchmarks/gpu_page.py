"""The reports of the accelerator's benchmarks: where they go, and that of gpu.py as Markdown."""

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def where_it_goes(says: str | None) -> argparse.ArgumentParser:
    """The options that say so, to which others may be added."""
    parser = argparse.ArgumentParser(description=says, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True, help="where the figures go")
    parser.add_argument("--report", help="folder for a dated Markdown report and the figures beside it")
    return parser


def write(
    name: str,
    record: Mapping[str, Any],
    options: argparse.Namespace,
    page: Callable[[Mapping[str, Any]], str],
) -> None:
    """The figures, and where a folder was named, they and the dated report there."""
    Path(options.json).write_text(json.dumps(record, indent=1))
    if options.report:
        path = Path(options.report) / f"{name}-{record['date'][:10]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".json").write_text(json.dumps(record, indent=1))
        path.with_suffix(".md").write_text(page(record))


def gpu_page(record: Mapping[str, Any]) -> str:
    """Ceilings, steps beside peers, the planner, and texts; failures and what was left out with their reasons."""
    parts: Mapping[str, Any] = record["parts"]
    lines = [
        f"# Accelerator benchmark, {record['date'][:10]}",
        "",
        f"- device: {record['device']}; torch {record['torch']}, CUDA {record['cuda']}, Python {record['python']}",
        f"- commit {record['commit']}{' with uncommitted changes' if record['changed'] else ''}",
        f"- command: `{record['command']}`",
        "",
        *(["**A smoke run: its figures mean nothing.**", ""] if record["smoke"] else []),
        "| part | side | seconds | tokens/s | TFLOP/s | of the ceiling | peak GiB |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for name, part in parts.items():
        lines += [_side_line(name, side, s) for side, s in part.get("sides", {}).items()]
    lines += [
        "",
        *(
            f"- {name}: {part['ratio']:.2f} x the fastest peer ({part['fastest_peer']})"
            for name, part in parts.items()
            if part.get("ratio")
        ),
        *(
            f"- {name}: {part['status']}: {part['reason']}"
            for name, part in parts.items()
            if part.get("status") in ("failed", "skipped")
        ),
        *(f"- {name}: {part['says']}" for name, part in parts.items() if "says" in part),
        "",
        "| planner | seconds | predicted | error | peak bytes | predicted | error |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *(_planner_line(name, row) for name, row in parts.get("planner", {}).get("rows", {}).items()),
        "",
        f"Peak bytes are without cuBLAS's workspaces, which are {record['workspace_bytes']:,.0f} bytes here.",
        "",
        *(
            f"- {name}: {side}: {_text_line(part['kind'], s)}"
            for name, part in parts.items()
            for side, s in part.get("texts", {}).items()
        ),
        "",
    ]
    return "\n".join(lines)


def _side_line(part: str, name: str, side: Mapping[str, Any]) -> str:
    if side["status"] != "measured":
        return f"| {part} | {name} | {side['status']}: {side['reason']} | | | | |"
    share = side.get("share_of_ceiling")
    return (
        f"| {part} | {name} | {side['seconds']:.4f} | {side['tokens_per_second']:,.0f} | "
        f"{side['flops_per_second'] / 1e12:.1f} | {'' if share is None else f'{share:.1%}'} | "
        f"{side.get('peak_bytes', 0) / 2**30:.2f} |"
    )


def _text_line(kind: str, side: Mapping[str, Any]) -> str:
    if side["status"] != "measured":
        return f"{side['status']}: {side['reason']}"
    return f"{side['tokens_per_second']:,.0f} tokens/s {kind}"


def _planner_line(name: str, row: Mapping[str, Any]) -> str:
    error = row["bytes_error"]
    return (
        f"| {name} | {row['seconds']:.4f} | {row['predicted_seconds']:.4f} | {row['seconds_error']:+.1%} | "
        f"{row['peak_bytes']:,.0f} | {row['predicted_bytes']:,.0f} | {'' if error is None else f'{error:+.1%}'} |"
    )
