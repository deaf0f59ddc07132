"""Inject faults into a small training: kill, freeze, preempt, corrupt and starve it. Nothing may be lost.

    make chaos KILLS=40 CORRUPT=500 JSON=FILE
    PYTHONPATH=tests python -m chaos.run --kills 40 --corrupt 500 --json FILE

The exit code is 1 if anything was lost. SIGTERM, SIGHUP and Ctrl-C end the trainings and remove their folder.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from chaos.disk import corrupt_often, fill_often
from chaos.hosts import lose_hosts
from chaos.kills import kill_often, resume_often
from chaos.life import end_all
from chaos.poison import poison_often
from chaos.scene import LAYOUTS, SEED
from chaos.signals import freeze_often, orphan_often, preempt_often
from trivium.cli.ending import ended_in_order
from trivium.cli.show import progress_of, say
from trivium.errors import Preempted
from trivium.provenance import code_commit, write_json
from trivium.training.supervision.preemption import EndedAtOnce

MAX_PRINTED_LOSSES = 20
# Option -> the function of (folder, count) that injects the fault, and the option's help.
HARMS: dict[str, tuple[Callable[..., dict[str, Any]], str]] = {
    "kills": (kill_often, "kill a rank or the launcher at random instants"),
    "corrupt": (corrupt_often, "damage a checkpoint"),
    "resume": (resume_often, "compare resumed runs with unbroken ones bit for bit"),
    "diskfull": (fill_often, "fill the disk"),
    "preempt": (preempt_often, "ask the training to end: it saves once and exits with 75"),
    "freeze": (freeze_often, "stop a rank: the job names it and continues"),
    "poison": (poison_often, "poison a document, a sample or a weight: the training stops and names it"),
    "hosts": (lose_hosts, "kill, freeze or cut off hosts of an elastic job, and bring them back; needs root"),
    "orphans": (orphan_often, "kill the launcher: no rank outlives it"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, (_, text) in HARMS.items():
        parser.add_argument(f"--{option}", type=int, default=0, metavar="N", help=text)
    numbers = range(1, len(LAYOUTS) + 1)
    parser.add_argument("--layouts", type=int, choices=numbers, default=4, help="layouts of --kills; default: 4")
    parser.add_argument("--seed", type=int, default=SEED, help="of every random choice")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    counts = {option: getattr(given, option) for option in HARMS}
    if not any(counts.values()):
        parser.error(f"nothing to do: give one or more of {', '.join(f'--{option} N' for option in HARMS)}")
    # Trainings are forked from this process, which computes in between: it must not use an accelerator.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)
    try:
        with ended_in_order():
            harms = {
                option: _inject(option, count, given.layouts, given.seed) for option, count in counts.items() if count
            }
    except (Preempted, EndedAtOnce) as ended:  # a training in this process received the signal
        return ended.exit_code if ended.exit_code > 128 else 128 + signal.SIGTERM
    totals = Counter[str]()  # a count that several faults have is added up
    for harm in harms.values():
        totals.update({k: v for k, v in harm.items() if type(v) is int})
    passed = all(harm["passed"] for harm in harms.values())
    if given.json is not None:
        about = {"commit": code_commit(), "seed": given.seed, "harms": harms}
        write_json(given.json, {**about, **totals, "passed": passed})
    return int(not passed)


def _inject(option: str, count: int, layouts: int, seed: int) -> dict[str, Any]:
    """Inject one kind of fault `count` times, and print and return the counts."""
    inject, began = HARMS[option][0], time.monotonic()
    if option == "kills":
        inject = partial(inject, layouts=layouts)
    with tempfile.TemporaryDirectory(prefix="trivium-chaos-") as folder, progress_of(f"chaos {option}") as progress:
        try:
            found = inject(Path(folder), count, seed=seed, progress=progress)
        finally:
            end_all()  # before the folder is removed
    found |= {"seconds": time.monotonic() - began, "passed": not found["losses"]}
    counts = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in found.items() if isinstance(v, int))
    say(f"{option}: {counts}; {found['seconds']:.0f} s")
    for line in found["losses"][:MAX_PRINTED_LOSSES]:
        say(f"  LOST {line}")
    if len(found["losses"]) > MAX_PRINTED_LOSSES:
        say(f"  … and {len(found['losses']) - MAX_PRINTED_LOSSES} more; --json FILE has all")
    return found


if __name__ == "__main__":
    sys.exit(main())
