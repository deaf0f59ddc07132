"""Models of experts: Trivium beside transformers, and expert ranks beside a dense model, by turns, on one core each.

    python benchmarks/experts.py --json out.json [--rounds 20] [--report folder]

Rows of one process compare forward and backward of two blocks with the same weights. Rows of two processes compare
whole steps of Trivium: two expert ranks, and two data ranks of a dense model with equal active FLOPs. A ratio is the
other side's seconds over those of Trivium's experts: above 1, these are faster.
"""

import os
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import small_experts
from peers.duel import Contest, compete
from peers.environment import fast_mkl
from peers.side import Entry
from pieces import Row, commits, measure, options, report
from setting import HIDDEN_256, HIDDEN_512, Setting
from small_experts import DEEPSEEK, LAYERS, MIXTRAL, VOCABULARY

ROUNDS = 20
PEER_TARGET, DENSE_TARGET = 1.2, 1 / 1.35
OURS, DENSE = "trivium", "trivium dense"
PEERS: dict[str, dict[str, Any]] = {
    "transformers": {},  # its default, grouped products
    "transformers eager": {"experts": "eager"},
    "transformers compiled": {"compiled": True},
}
SEQUENCE = 512
ROTARY = {"norm": "rms_norm", "positions": "rotary", "bias": "none", "head": "untied"}
SAYS = f"{LAYERS} blocks and {VOCABULARY} ids; one core for each process."


def rows() -> list[Row]:
    """Return what is measured."""
    found: list[Row] = []
    for setting in (_small(HIDDEN_256), _small(HIDDEN_512)):
        for each in (setting, setting.in_bf16()):
            found += [(f"{kind}, {each.name}", partial(_beside_peers, kind, each)) for kind in (MIXTRAL, DEEPSEEK)]
        found.append((f"expert 2, {setting.name}", partial(_beside_dense, setting)))
    return found


def _small(setting: Setting) -> Setting:
    return replace(setting, layers=LAYERS, vocabulary=VOCABULARY, sequence=SEQUENCE)


def _beside_peers(kind: str, setting: Setting, rounds: int) -> dict[str, Any]:
    here, variables = Path(sys.executable), dict(os.environ) | fast_mkl()
    with tempfile.TemporaryDirectory() as root:
        folder = str(small_experts.saved(kind, setting, Path(root)))
        entries = (
            Entry(OURS, "trivium_experts", "gradients", {"folder": folder}, here, variables),
            *(
                Entry(name, "peers.experts_engine", "experts", {"folder": folder, **more}, here, variables)
                for name, more in PEERS.items()
            ),
        )
        result = compete(Contest(f"{kind}, {setting.name}", 1, setting, entries, SAYS), rounds)
    result["comparisons"] = [_compared(name, PEER_TARGET, result) for name in PEERS]
    return result


def _beside_dense(setting: Setting, rounds: int) -> dict[str, Any]:
    here, variables = Path(sys.executable), dict(os.environ) | fast_mkl()
    chosen, columns = 2, 7 * setting.hidden // 4
    experts = {"feed_forward": "experts", "experts": {"count": 8, "chosen": chosen, "columns": columns}}
    sides = {
        OURS: {"model": ROTARY | experts, "layout": {"data": 2, "expert": 2}},
        DENSE: {"model": ROTARY | {"feed_forward": "gated", "ffn": chosen * columns}, "layout": {"data": 2}},
    }
    setting = setting.with_batch(setting.sequences, setting.sequences // 2)
    entries = tuple(Entry(name, "trivium_experts", "steps", side, here, variables) for name, side in sides.items())
    result = compete(Contest(f"expert 2, {setting.name}", 2, setting, entries, SAYS), rounds)
    result["comparisons"] = [_compared(DENSE, DENSE_TARGET, result)]
    return result


def _compared(peer: str, target: float, result: dict[str, Any]) -> dict[str, Any]:
    if missing := [name for name in (OURS, peer) if name in result["failed"]]:
        return {"peer": peer, "status": "failed", "reason": result["failed"][missing[0]]}
    first = {name: result["loss"][name][0] for name in (OURS, peer)}
    if peer != DENSE and abs(first[OURS] - first[peer]) > result["loss_tolerance"] * first[peer]:
        return {"peer": peer, "status": "failed", "reason": f"the losses of the first step differ: {first}"}
    seconds, memory = result["seconds"], result["memory"]
    return {
        "peer": peer,
        "status": "measured",
        "target": target,
        "ratio": seconds[peer]["median"] / seconds[OURS]["median"],
        "memory": memory[OURS]["above_imports"] / memory[peer]["above_imports"],
    }


def line(result: dict[str, Any]) -> str:
    """Return the figures as text."""
    lines = [f"{result['name']}: load {result['load_before']:.1f}"]
    for name, seconds in result["seconds"].items():
        memory = result["memory"][name]["above_imports"] / (1 << 20)
        lines.append(f"  {name}: {1e3 * seconds['median']:.0f} ms a step, {memory:,.0f} MiB")
    for one in result["comparisons"]:
        if one["status"] == "measured":
            told = f"{one['ratio']:.2f} times as fast (target {one['target']:.2f}), memory {one['memory']:.2f} of it"
            lines.append(f"  {OURS} against {one['peer']}: {told}")
        else:
            lines.append(f"  {OURS} against {one['peer']}: {one['status']}: {one['reason']}")
    return "\n".join([*lines, *(f"  {name} failed: {why}" for name, why in result["failed"].items())])


def page(record: dict[str, Any]) -> str:
    """Return the report as Markdown."""
    machine, loads = record["machine"], [f"{row['load_before']:.1f}" for row in record["rows"]]
    lines = [
        f"# Models of experts, {record['date'][:10]}",
        "",
        f"`{record['command']}` at {commits(record)}, torch {record['torch']}, {machine['processor']}, "
        f"{machine['cores']} cores; load before each row: {', '.join(loads)}. {SAYS}",
    ]
    if any(row["load_before"] > machine["cores"] for row in record["rows"]):
        lines += ["", "The machine was loaded: seconds of the processor say more than those of the clock."]
    for result in record["rows"]:
        lines += [
            *("", f"## {result['name']}", "", f"{result['rounds']} measured steps of each.", ""),
            "| | seconds per step | of the processor | peak memory above imports (MiB) |",
            "| --- | --- | --- | --- |",
        ]
        lines += [
            f"| {name} | {seconds['median']:.3f} | {seconds['cpu']:.3f} | "
            f"{result['memory'][name]['above_imports'] / (1 << 20):,.0f} |"
            for name, seconds in result["seconds"].items()
        ]
        lines += ["", "```", line(result), "```"]
    return "\n".join([*lines, ""])


def main(arguments: list[str]) -> int:
    """Run the contests and write the reports; exit code 1 when Trivium could not be measured."""
    asked = options(__doc__, ROUNDS, arguments)
    record = measure("experts", rows(), asked, arguments, line)
    report("experts", record, asked.report, page)
    return int(any(OURS in row["failed"] for row in record["rows"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
