"""The report as Markdown."""

from typing import Any

from pieces import commits


def page(record: dict[str, Any]) -> str:
    """One table of ratios, one of seconds, and what each row synchronises."""
    machine = record["machine"]
    loads = [r["load_before"] for r in record["rows"] if "load_before" in r]
    lines = [
        f"# Engine benchmark, {record['date'][:10]}",
        "",
        f"- machine: {machine['processor']}, {machine['cores']} cores, {machine['system']}; no accelerator used",
        f"- torch {record['torch']} (gloo), Python {record['python']}, one thread per rank",
        f"- commit {commits(record)}",
        f"- command: `{record['command']}`",
        f"- load average (1 minute) before the rows: {min(loads, default=0):.1f} to {max(loads, default=0):.1f}",
        "",
        "Ratio: peer seconds / Trivium seconds per step (medians); above 1, Trivium is faster. CPU: the same of "
        "processor seconds summed over ranks. Steps of all contestants of a row alternate in one process group, on "
        "the same weights and data; those of an external peer and of Trivium in process groups of their own, one "
        "waiting while the other computes. Where a row says launches, all of it was started so often, and its ratios "
        "are the medians. A row counts only if the losses of two steps agree. fp32, where a row does "
        "not name bf16.",
        "",
        "| row | Trivium | peer | ratio | minima | CPU | target | reached |",
        "|---|---|---|---:|---:|---:|---:|---|",
        *(line for row in record["rows"] for line in _ratio_lines(row)),
        "",
        "## Zero bubble against 1F1B, both ours",
        "",
        "| row | saved | predicted by the order | with each schedule's own durations | reached |",
        "|---|---:|---:|---:|---|",
        *(_saved_line(row) for row in record["rows"] if "extra" in row),
        "",
        "## Seconds per step",
        "",
        "| row | contestant | median | min | CPU, all ranks |",
        "|---|---|---:|---:|---:|",
        *(line for row in record["rows"] for line in _second_lines(row)),
        "",
        "## What each row compares",
        "",
        *(f"- **{row['name']}** ({_shape(row)}): {row['says']}" for row in record["rows"] if "says" in row),
        "",
    ]
    return "\n".join(lines)


def _ratio_lines(row: dict[str, Any]) -> list[str]:
    if row["status"] != "measured":
        return [f"| {row['name']} | | | {row['status']}: {row['reason']} | | | | |"]
    return [_ratio_line(row["name"], c) for c in row["comparisons"]]


def _ratio_line(name: str, c: dict[str, Any]) -> str:
    start = f"| {name} | {c['trivium']} | {c['peer']} |"
    target = "" if c["target"] is None else f"{c['target']:.2f}"
    if c["status"] != "measured":
        return f"{start} {c['status']}: {c['reason']} | | | {target} | |"
    reached = {None: "", True: "yes", False: "no"}[c["reached"]]
    return f"{start} {c['ratio']:.2f} | {c['ratio_of_minima']:.2f} | {c['ratio_of_cpu']:.2f} | {target} | {reached} |"


def _saved_line(row: dict[str, Any]) -> str:
    extra = row["extra"]
    return (
        f"| {row['name']} | {extra['share_saved']:.1%} | {extra['share_predicted_by_order']:.1%} | "
        f"{extra['share_predicted']:.1%} | {'yes' if extra['reached'] else 'no'} |"
    )


def _second_lines(row: dict[str, Any]) -> list[str]:
    return [
        f"| {row['name']} | {name} | {s['median']:.4f} | {s['min']:.4f} | {s['cpu']:.4f} |"
        for name, s in row.get("seconds", {}).items()
    ]


def _shape(row: dict[str, Any]) -> str:
    s = row.get("setting")
    launches = f" in {row['launches']} launches" if row.get("launches", 1) > 1 else ""
    if s is None:
        return f"{row['ranks']} ranks"
    return (
        f"{row['ranks']} ranks, {s['layers']} layers, hidden {s['hidden']}, {s['heads']} heads, vocabulary "
        f"{s['vocabulary']}, {s['sequence']} positions, {s['sequences']} sequences per step in micro-batches of "
        f"{s['micro']}, {row.get('rounds', 0)} rounds{launches}"
    )
