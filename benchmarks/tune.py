"""LoRA of a small Llama: Trivium beside peft and transformers in the loop of trl's trainer, by turns, on one core each.

    python benchmarks/tune.py --json out.json [--rounds 20] [--report folder]

All sides tune the same weights on the same conversations, of which the answers count. A side that packs puts several
conversations into a row, where they do not see each other; one that pads gives each a row. A ratio is peer seconds over
Trivium seconds: above 1, Trivium is faster. Memory is the peak of a process above what its imports take.
"""

import os
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import tuned_llama
from contest import CHECKED_STEPS
from peers.duel import Contest, compete
from peers.environment import fast_mkl
from peers.side import Entry
from pieces import commits, measure, options, report
from setting import TINY

ROUNDS = 20
SPEED_TARGET, MEMORY_TARGET = 1.2, 0.9
OURS, OURS_PADDED = "trivium packed", "trivium padded"
# By row; the first has what its defaults do, and the best that a user would switch on without a compiler.
PEERS: dict[str, dict[str, dict[str, Any]]] = {
    "lora": {"peft padded": {"packed": False}, "peft packed": {"packed": True}},
    "lora beside a compiled peer": {"peft packed, compiled": {"packed": True, "compiled": True}},
}
SAYS = (
    "One process and one core each, fp32. Rank 16 on all linear layers, AdamW, gradients clipped. A step reads "
    f"{tuned_llama.BINS} packed rows of {tuned_llama.SEQUENCE} tokens, or the same conversations padded to the longest."
)


def main(arguments: list[str]) -> int:
    """Run the contest and write the reports; exit code 1 when Trivium could not be measured."""
    asked = options(__doc__, ROUNDS, arguments)
    record = measure("tune", [(row, partial(_run, row)) for row in PEERS], asked, arguments, line)
    report("tune", record, asked.report, page)
    return int(any(OURS in row["failed"] for row in record["rows"]))


def _run(row: str, rounds: int) -> dict[str, Any]:
    here, variables = Path(sys.executable), dict(os.environ) | fast_mkl()
    with tempfile.TemporaryDirectory() as root:
        folder = str(tuned_llama.saved(Path(root)))
        ours = {OURS: {"folder": folder, "packed": True}, OURS_PADDED: {"folder": folder, "packed": False}}
        entries = (
            *(Entry(name, "trivium_tune", "tuned", more, here, variables) for name, more in ours.items()),
            *(Entry(name, "peers.peft_engine", "tuned", more, here, variables) for name, more in PEERS[row].items()),
        )
        result = compete(Contest(row, 1, TINY, entries, SAYS), rounds)
    tokens = statistics.mean(tuned_llama.tokens_of(CHECKED_STEPS + n) for n in range(rounds))
    result["setting"] = {k: v for k, v in vars(tuned_llama).items() if k.isupper()}
    result["tokens_per_second"] = {name: tokens / s["median"] for name, s in result["seconds"].items()}
    result["comparisons"] = [_compared(name, result) for name in PEERS[row]]
    return result


def _compared(peer: str, result: dict[str, Any]) -> dict[str, Any]:
    if missing := [name for name in (OURS, peer) if name in result["failed"]]:
        return {"peer": peer, "status": "failed", "reason": result["failed"][missing[0]]}
    first = {name: result["loss"][name][0] for name in (OURS, peer)}
    if abs(first[OURS] - first[peer]) > result["loss_tolerance"] * first[peer]:
        return {"peer": peer, "status": "failed", "reason": f"the losses of the first step differ: {first}"}
    return {
        "peer": peer,
        "status": "measured",
        "ratio": result["seconds"][peer]["median"] / result["seconds"][OURS]["median"],
        "memory": result["memory"][OURS]["above_imports"] / result["memory"][peer]["above_imports"],
    }


def line(result: dict[str, Any]) -> str:
    """Return the figures as text."""
    lines = [f"{result['name']}: load {result['load_before']:.1f}"]
    for name, seconds in result["seconds"].items():
        memory = result["memory"][name]["above_imports"] / (1 << 20)
        rate = result["tokens_per_second"][name]
        lines.append(f"  {name}: {seconds['median']:.2f} s a step, {rate:,.0f} tokens/s, {memory:,.0f} MiB")
    for one in result["comparisons"]:
        if one["status"] == "measured":
            told = f"{one['ratio']:.2f} times as fast (target {SPEED_TARGET}), memory {one['memory']:.2f} of it"
            lines.append(f"  {OURS} against {one['peer']}: {told} (target {MEMORY_TARGET})")
        else:
            lines.append(f"  {OURS} against {one['peer']}: {one['status']}: {one['reason']}")
    return "\n".join([*lines, *(f"  {name} failed: {why}" for name, why in result["failed"].items())])


def page(record: dict[str, Any]) -> str:
    """Return the report as Markdown."""
    machine, loads = record["machine"], [f"{row['load_before']:.1f}" for row in record["rows"]]
    lines = [
        f"# Tuning by LoRA, {record['date'][:10]}",
        "",
        f"`{record['command']}` at {commits(record)}, torch {record['torch']}, {machine['processor']}, "
        f"{machine['cores']} cores; load before each row: {', '.join(loads)}. {SAYS}",
    ]
    if any(row["load_before"] > machine["cores"] for row in record["rows"]):
        lines += ["", "The machine was loaded: seconds of the processor say more than those of the clock."]
    for result in record["rows"]:
        lines += [
            *("", f"## {result['name']}", "", f"{result['rounds']} measured steps of each.", ""),
            "| | seconds per step | of the processor | tokens per second | peak memory above imports (MiB) |",
            "| --- | --- | --- | --- | --- |",
        ]
        lines += [
            f"| {name} | {seconds['median']:.3f} | {seconds['cpu']:.3f} | {result['tokens_per_second'][name]:,.0f} | "
            f"{result['memory'][name]['above_imports'] / (1 << 20):,.0f} |"
            for name, seconds in result["seconds"].items()
        ]
        lines += ["", "```", line(result), "```"]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
