"""Stop a rank of a training (SIGSTOP) at a random instant: the job must name it with its stack, and restart."""

import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from chaos.life import Life
from chaos.scene import LAYOUTS, SEED, event_steps, job, plan, write_tokens
from trivium.progress import Progress, silent
from trivium.seeds import generator_for
from trivium.training.metrics import EVENTS, METRICS, last_step, read
from trivium.training.supervision.preemption import SIGNALS

HANG_SECONDS = 2.0  # the trainings' minimum (default 30), so that many freezes take minutes
SLACK_SECONDS = 3.0  # for collecting the stacks, and for a busy machine
PATIENCE_SECONDS = 60.0


def freeze_often(folder: Path, freezes: int, *, seed: int = SEED, progress: Progress = silent) -> dict[str, Any]:
    """Freeze one rank in each life of one training. Count ranks that were not detected, not named or not replaced."""
    tokens, out = write_tokens(folder), folder / "run"
    draw, losses, seconds = generator_for(seed, "chaos", "freeze"), list[str](), [0.0]
    layouts = [layout for layout in LAYOUTS if layout]  # of several ranks, which wait for the frozen one
    for number in range(freezes):
        layout = layouts[number % len(layouts)]
        supervision = {"hang_seconds": HANG_SECONDS, "restart_seconds": 0.0}
        step = last_step(out / METRICS)
        life = Life.begin(job(tokens, out, plan(layout), restarts=1, supervision=supervision), folder / "log.txt")
        life.wait_for(lambda step=step: last_step(out / METRICS) > step + 3)
        time.sleep(float(draw.uniform(0, 0.2)))
        took, wrong = (0.0, [life.own_end]) if life.own_end else _freeze(life, out, draw)
        seconds += [took]
        losses += [f"freeze {number}, {dict(layout)}: {what}" for what in wrong]
        progress(number + 1, freezes, f"{len(losses)} wrong")
    return {
        "freezes": freezes,
        "found_and_restarted": freezes - len({loss.partition(": ")[0] for loss in losses}),
        "hang_seconds": HANG_SECONDS,
        "longest_seconds": max(seconds),
        "losses": losses,
    }


def _freeze(life: Life, out: Path, draw: np.random.Generator) -> tuple[float, list[str]]:
    """Return the seconds until the frozen rank was reported, and what went wrong."""
    ranks, events = life.ranks, len(read(out / EVENTS))
    victim, step = int(draw.integers(len(ranks))), last_step(out / METRICS)
    slowest = max(m["seconds"] for m in read(out / METRICS) if "seconds" in m)
    begin = time.monotonic()
    life.signal(signal.SIGSTOP, sorted(ranks)[victim])
    life.wait_for(lambda: bool(event_steps(out, "rank failed", after=events)))
    took = time.monotonic() - begin
    continued = life.wait_for(lambda: last_step(out / METRICS) > step + 3)
    life.signal(SIGNALS[0], life.pid)
    if life.gone_within(PATIENCE_SECONDS, life.ranks) is None:
        life.kill(launcher=True, victim=0)
    failed = [e for e in read(out / EVENTS)[events:] if e["event"] == "rank failed"]
    wrong = [] if continued else [f"training did not continue after step {step}"]
    if took > max(3 * slowest, HANG_SECONDS) + SLACK_SECONDS:
        wrong.append(f"reported after {took:.1f} s")
    if [e["rank"] for e in failed] != [victim]:
        wrong.append(f"rank {victim} was stopped, and {[e['rank'] for e in failed]} were named")
    if not all("SIGSTOP" in e["cause"] and "  File" in e["cause"] for e in failed):
        wrong.append(f"the cause or the stack is missing: {failed[0]['cause']}")
    return took, wrong
