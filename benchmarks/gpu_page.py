"""The reports of the accelerator's benchmarks: where they go, and that of gpu.py as Markdown."""

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# Dense bf16 FLOP/s of data sheets, by a part of the device's name.
DATA_SHEET = {"H100 PCIe": 756e12, "H100": 989e12, "H200": 989e12, "A100": 312e12, "B200": 2250e12}
REPLAYED = "replayed"  # in the names of sides that replay CUDA graphs
CAVEATS = (
    "The share of the data sheet is of the dense bf16 FLOP/s that NVIDIA states; the ceiling is the fastest product "
    "of bf16 matrices that was measured here.",
    "A training step is one micro-batch: Trivium's gradients stay in bf16, as each is written once, and the peers' are "
    "in fp32. The row 1.3B therefore says nothing of a step that accumulates gradients.",
    "Only Trivium replays CUDA graphs; the column without replay compares its blocks compiled, not replayed.",
    "These are steps of the engine on tokens in memory; no end-to-end `trivium train` was timed.",
)


def share_of_data_sheet(device: str, flops_per_second: float) -> float | None:
    """Return the share of the data sheet's dense bf16 FLOP/s; None for a device that is not in the table."""
    peak = next((peak for name, peak in DATA_SHEET.items() if name in device), None)
    return None if peak is None else flops_per_second / peak


def relative_seconds(sides: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the seconds of each measured side. Sides of different rounds are divided by the seconds of the step that
    all rounds measured; a side of a round without that step is left out."""
    measured = {name: side for name, side in sides.items() if side["status"] == "measured"}
    if any(side["beside"] for side in measured.values()):
        return {name: side["seconds"] / side["beside"] for name, side in measured.items() if side["beside"]}
    return {name: side["seconds"] for name, side in measured.items()}


def ratio_without_replay(part: Mapping[str, Any]) -> float | None:
    """Return the fastest peer's seconds over those of Trivium's fastest side that replays nothing; None if the part
    has no such side, or if its names do not tell which sides are replayed."""
    if not any(REPLAYED in name for name in part["sides"]):
        return None
    seconds = relative_seconds(part["sides"])
    ours = [s for name, s in seconds.items() if name.startswith("trivium") and REPLAYED not in name]
    return seconds[part["fastest_peer"]] / min(ours) if ours else None


def percent(share: float | None) -> str:
    """Return 0.55 as "55.0%", and nothing for None."""
    return "" if share is None else f"{share:.1%}"


def where_it_goes(says: str | None) -> argparse.ArgumentParser:
    """The options that say so, to which others may be added."""
    parser = argparse.ArgumentParser(description=says, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True, help="where the figures go")
    parser.add_argument("--report", help="folder for a dated Markdown report and the figures beside it")
    return parser


def write(
    name: str, record: Mapping[str, Any], options: argparse.Namespace, page: Callable[[Mapping[str, Any]], str]
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
        *(f"- {caveat}" for caveat in CAVEATS),
        "",
        "| part | side | of the data sheet | seconds | tokens/s | TFLOP/s | of the ceiling | peak GiB |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, part in parts.items():
        lines += [_side_line(record["device"], name, side, s) for side, s in part.get("sides", {}).items()]
    lines += [
        "",
        *(
            f"- {name}: {part['ratio']:.2f} x the fastest peer ({part['fastest_peer']}){_without_replay(part)}"
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


def _without_replay(part: Mapping[str, Any]) -> str:
    ratio = ratio_without_replay(part)
    return "" if ratio is None else f", {ratio:.2f} x without replay"


def _side_line(device: str, part: str, name: str, side: Mapping[str, Any]) -> str:
    if side["status"] != "measured":
        return f"| {part} | {name} | {side['status']}: {side['reason']} | | | | | |"
    share = side.get("share_of_ceiling")
    return (
        f"| {part} | {name} | {percent(share_of_data_sheet(device, side['flops_per_second']))} | "
        f"{side['seconds']:.4f} | {side['tokens_per_second']:,.0f} | "
        f"{side['flops_per_second'] / 1e12:.1f} | {percent(share)} | "
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
