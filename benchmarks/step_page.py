"""The report of step.py as Markdown; its table is also README's."""

from collections.abc import Mapping
from typing import Any

from pieces import commits

OURS = "trivium"
AS_INSTALLED = ", as installed"  # ends the name of a peer without MKL's fast kernels
MEBI = 1 << 20


def step_page(record: Mapping[str, Any]) -> str:
    """Ratios and memory against every peer, the other rows, and what each row compares."""
    machine, rows = record["machine"], record["rows"]
    loads = [r["load_before"] for r in rows if "load_before" in r]
    contests = [r for r in rows if "comparisons" in r]
    return "\n".join(
        [
            f"# One training step, {record['date'][:10]}",
            "",
            f"- machine: {machine['processor']}, {machine['cores']} cores, {machine['system']}; no accelerator used",
            f"- torch {record['torch']} (gloo), Python {record['python']}, one thread per process",
            f"- commit {commits(record)}",
            f"- command: `{record['command']}`",
            f"- load average (1 minute) before the rows: {min(loads, default=0):.1f} to {max(loads, default=0):.1f}",
            "",
            "Ratio: peer seconds / Trivium seconds per step (medians); above 1, Trivium is faster. Every side runs in "
            "its own environment and processes, from the same weights, on the same batches, with AdamW and clipping to "
            "norm 1; they take their steps in turn. A peer counts only if its losses of two steps agree. Memory: the "
            "most a process held beyond what it held after its imports.",
            "",
            *summary_table(record),
            "",
            "| row | peer | ratio | minima | CPU | seconds | memory, MiB | Trivium, MiB |",
            "|---|---|---:|---:|---:|---:|---:|---:|",
            *(line for row in contests for line in _peer_lines(row)),
            "",
            "## Other rows",
            "",
            *(f"- **{r['name']}**: {r['summary']}. {r['says']}" for r in rows if "summary" in r),
            "",
            "## What each row compares",
            "",
            *(f"- **{row['name']}** ({_shape(row)}): {row['says']}" for row in contests),
            "",
        ]
    )


def summary_table(record: Mapping[str, Any]) -> list[str]:
    """A row of the table for each setting: against the fastest peer, and memory against the leanest."""
    lines = [
        "| step | Trivium, s | fastest peer | ratio | reached | as installed | ratio | memory, MiB | leanest peer, MiB "
        "| least |",
        "|---|---:|---|---:|---|---|---:|---:|---|---|",
    ]
    return [*lines, *(_summary_line(row) for row in record["rows"] if "comparisons" in row)]


def _summary_line(row: Mapping[str, Any]) -> str:
    measured = {c["peer"]: c for c in row["comparisons"] if c["status"] == "measured"}
    if not measured or OURS not in row["seconds"]:
        return f"| {row['name']} | | no comparison | | | | | | | |"
    ratios = {name: one["ratio"] for name, one in measured.items()}
    installed = {name: ratio for name, ratio in ratios.items() if name.endswith(AS_INSTALLED)}
    fastest = min(ratios.keys() - installed.keys() or ratios, key=ratios.__getitem__)
    usual = min(installed, key=installed.__getitem__, default="")
    memory = {n: row["memory"][n]["above_imports"] / MEBI for n in (OURS, *measured)}
    leanest = min(measured, key=memory.__getitem__)
    ratio = measured[fastest]["ratio"]
    return (
        f"| {row['name']} | {row['seconds'][OURS]['median']:.3f} | {fastest} | {ratio:.2f} | "
        f"{'yes' if ratio >= 1 else 'no'} | {usual.removesuffix(AS_INSTALLED)} | "
        f"{f'{installed[usual]:.2f}' if usual else ''} | {memory[OURS]:.0f} | {leanest} {memory[leanest]:.0f} | "
        f"{'yes' if memory[OURS] <= memory[leanest] else 'no'} |"
    )


def _peer_lines(row: Mapping[str, Any]) -> list[str]:
    ours = row["memory"].get(OURS, {}).get("above_imports", 0) / MEBI
    found = []
    for c in row["comparisons"]:
        start = f"| {row['name']} | {c['peer']} |"
        if c["status"] != "measured":
            found.append(f"{start} {c['status']}: {c['reason']} | | | | | |")
            continue
        seconds = row["seconds"][c["peer"]]["median"]
        memory = row["memory"][c["peer"]]["above_imports"] / MEBI
        found.append(
            f"{start} {c['ratio']:.2f} | {c['ratio_of_minima']:.2f} | {c['ratio_of_cpu']:.2f} | {seconds:.4f} | "
            f"{memory:.0f} | {ours:.0f} |"
        )
    return [*found, *(f"| {row['name']} | {n} | not run: {why} | | | | | |" for n, why in row["not_run"].items())]


def _shape(row: Mapping[str, Any]) -> str:
    s = row["setting"]
    return (
        f"{row['ranks']} ranks, {s['layers']} layers, hidden {s['hidden']}, {s['heads']} heads, vocabulary "
        f"{s['vocabulary']}, {s['sequence']} positions, {s['sequences']} sequences per step, {row['rounds']} rounds"
        + (f" in {row['launches']} launches" if row.get("launches", 1) > 1 else "")
    )
