"""Is a step faster if activations go round a ring of tensor ranks beside the products (`plan.overlap_tensor`)?

    python benchmarks/tensor_ring.py [--rounds 12] [--report benchmarks/reports]

Two ranks of this machine train the same model on the same batches, with and without the ring, in turn in the same
processes: a ratio above 1 means that the ring is faster. Messages go by memory, and by gloo as between hosts. The
schedule 1f1b-split puts weight gradients off, so that the ring also sums the gradients of inputs.
"""

import argparse
import json
import os
from datetime import date
from pathlib import Path
from typing import Any

from trivium import mkl

mkl.prefer_fast_kernels()  # before torch
import torch
from circumstances import circumstances
from contest import Pair, Row
from engine import _run
from setting import HIDDEN_256, HIDDEN_512, Setting
from trivium_engine import trivium

SETTINGS = (HIDDEN_256, HIDDEN_512, HIDDEN_512.in_bf16())
SCHEDULES = ("1f1b", "1f1b-split")
TRANSPORTS = {"memory": None, "gloo": "network"}  # values of TRIVIUM_MESSAGES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--report", type=Path, help="folder for tensor-ring-DATE.md and .json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    before, found = os.getloadavg()[0], []
    for name, value in TRANSPORTS.items():
        os.environ.pop("TRIVIUM_MESSAGES", None)
        if value is not None:
            os.environ["TRIVIUM_MESSAGES"] = value
        for setting in SETTINGS:
            found.append({"transport": name, **_run(_row(setting), given.rounds)})
            print("\n".join(_lines(found[-1:])), flush=True)
    head = circumstances("benchmarks/tensor_ring.py", [f"--rounds {given.rounds}"])
    record = {**head, "load_before": before, "load_after": os.getloadavg()[0], "rows": found}
    if given.report is not None:
        path = given.report / f"tensor-ring-{date.today()}.md"
        path.write_text(_page(record))
        path.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")


def _row(setting: Setting) -> Row:
    shared: dict[str, Any] = {"layout": {"tensor": 2}, "sequence_parallel": True, "zero": 0}
    every = {
        f"{schedule}{words}": trivium(**shared, schedule=schedule, overlap_tensor=ring)
        for schedule in SCHEDULES
        for ring, words in ((False, ""), (True, " in a ring"))
    }
    pairs = tuple(Pair(f"{schedule} in a ring", schedule) for schedule in SCHEDULES)
    return Row(f"tensor ring {setting.name}", 2, setting, every, pairs, "Both Trivium, tensor and sequence parallel.")


def _lines(rows: list[dict[str, Any]]) -> list[str]:
    told = []
    for row in rows:
        for c in row["comparisons"]:
            start = f"| {row['transport']} | {row['name'].removeprefix('tensor ring ')} | {c['peer']} |"
            if c["status"] != "measured":
                told.append(f"{start} failed: {c['reason']} | | | |")
                continue
            seconds = row["seconds"][c["peer"]]["median"]
            told.append(
                f"{start} {seconds:.3f} s | {c['ratio']:.2f} | {c['ratio_of_minima']:.2f} | {c['ratio_of_cpu']:.2f} |"
            )
    return told


def _page(record: dict[str, Any]) -> str:
    head = [
        f"# Activations in a ring of tensor ranks, {record['date'][:10]}",
        "",
        f"`{record['command']}` at commit {record['commit']} on {record['machine']['processor']}, "
        f"{record['machine']['cores']} cores, torch {record['torch']}. The machine was shared: its load "
        f"was {record['load_before']:.0f} before and {record['load_after']:.0f} after.",
        "",
        "Ratios are the seconds of a step without the ring over those with it: above 1, the ring is faster. Two ranks, "
        "one thread each; steps in turn in the same processes, with equal losses. While others take the cores, "
        "wall seconds are noise, and the CPU seconds of both ranks tell more.",
        "",
        "| messages | model | schedule | step without | ratio of medians | of fastest steps | of CPU seconds |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    return "\n".join([*head, *_lines(record["rows"])]) + "\n"


if __name__ == "__main__":
    main()
