"""Stop a rank of a training (SIGSTOP) at a random instant; it must be found, named with its stack, and restarted."""

import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from trivium.chaos.life import Life
from trivium.chaos.scene import LAYOUTS, SEED, job, plan, write_tokens
from trivium.progress import Progress, silent
from trivium.seeds import generator_for
from trivium.training.metrics import EVENTS, METRICS, last_step, read
from trivium.training.supervision.preemption import SIGNALS

HANG_SECONDS = 2.0  # the trainings' floor, so that many freezes take minutes; 30 by default
SLACK_SECONDS = 3.0  # for the stacks, and for a busy machine
PATIENCE_SECONDS = 60.0


def freeze_often(
    folder: Path, *, freezes: int, seed: int = SEED, progress: Progress = silent
) -> dict[str, Any]:
    """Freeze a rank of so many lives of one training; count those not found, not named, or not gone on from."""
    began, tokens, out = time.monotonic(), write_tokens(folder), folder / "run"
    draw, wrong, seconds = generator_for(seed, "chaos", "freeze"), list[str](), []
    several = [layout for layout in LAYOUTS if layout]  # a rank that others wait for
    for number in range(freezes):
        layout = several[number % len(several)]
        supervision = {"hang_seconds": HANG_SECONDS, "restart_seconds": 0.0}
        given = job(tokens, out, plan(layout), restarts=1, supervision=supervision)
        step = last_step(out / METRICS)
        life = Life.begin(given, folder / "log.txt")
        life.wait_for(lambda step=step: last_step(out / METRICS) > step + 3)  # type: ignore[misc]
        time.sleep(float(draw.uniform(0, 0.2)))
        took, found = (0.0, [life.own_end]) if life.own_end else _one(life, out, draw)
        seconds += [took]
        wrong += [f"freeze {number}, {dict(layout)}: {what}" for what in found]
        progress(number + 1, freezes, f"{len(wrong)} wrong")
    return {
        "freezes": freezes,
        "found_and_restarted": freezes - len({what.partition(": ")[0] for what in wrong}),
        "hang_seconds": HANG_SECONDS,
        "longest_seconds": max(seconds, default=0.0),
        "losses": wrong,
        "seconds": time.monotonic() - began,
        "passed": not wrong,
    }


def _one(life: Life, out: Path, draw: np.random.Generator) -> tuple[float, list[str]]:
    ranks, told = life.ranks, len(read(out / EVENTS))
    victim, step = int(draw.integers(len(ranks))), last_step(out / METRICS)
    slowest = max(m["seconds"] for m in read(out / METRICS) if "seconds" in m)
    begin = time.monotonic()
    life.signal(signal.SIGSTOP, sorted(ranks)[victim])
    life.wait_for(lambda: any(e["event"] == "rank failed" for e in read(out / EVENTS)[told:]))
    took = time.monotonic() - begin
    went_on = life.wait_for(lambda: last_step(out / METRICS) > step + 3)
    life.signal(SIGNALS[0], life.pid)
    if life.gone_within(PATIENCE_SECONDS, life.ranks) is None:
        life.kill(launcher=True, victim=0)
    failed = [e for e in read(out / EVENTS)[told:] if e["event"] == "rank failed"]
    found = [] if went_on else [f"training did not go on after step {step}"]
    if took > max(3 * slowest, HANG_SECONDS) + SLACK_SECONDS:
        found.append(f"found after {took:.1f} s")
    if [e["rank"] for e in failed] != [victim]:
        found.append(f"rank {victim} was stopped, and {[e['rank'] for e in failed]} named")
    if not all("SIGSTOP" in e["cause"] and "  File" in e["cause"] for e in failed):
        found.append(f"the cause or the stack is missing: {failed[0]['cause']}")
    return took, found
