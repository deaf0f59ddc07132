"""Kill the launcher of a training at a random instant; no rank may outlive it for long."""

import signal
import time
from pathlib import Path
from typing import Any

from trivium.chaos.life import POLL_SECONDS, Life, states
from trivium.chaos.scene import LAYOUTS, SEED, job, plan, write_tokens
from trivium.checkpoint.lease import holder_of
from trivium.progress import Progress, silent
from trivium.seeds import generator_for
from trivium.training.metrics import METRICS, last_step

LIMIT_SECONDS = 5.0


def orphan_often(
    folder: Path, *, orphans: int, seed: int = SEED, progress: Progress = silent
) -> dict[str, Any]:
    """Kill the launcher of so many lives of one training, now and then with a stopped rank; count what stays."""
    began, tokens, out = time.monotonic(), write_tokens(folder), folder / "run"
    draw, left, seconds = generator_for(seed, "chaos", "orphans"), list[str](), []
    for number in range(orphans):
        layout = LAYOUTS[number % len(LAYOUTS)]
        step = last_step(out / METRICS)
        life = Life.begin(job(tokens, out, plan(layout)), folder / "log.txt")
        life.wait_for(lambda life=life: bool(life.ranks))  # type: ignore[misc]
        begun = draw.random() < 0.7
        if begun:
            life.wait_for(lambda step=step: last_step(out / METRICS) > step)  # type: ignore[misc]
        time.sleep(float(draw.uniform(0, 0.2)))
        if life.own_end:
            left.append(f"launcher {number}, {dict(layout)}: {life.own_end}")
            continue
        ranks = life.ranks
        # A rank that is stopped in its first millisecond has not yet asked the kernel to end with its launcher.
        if begun and draw.random() < 0.3:
            life.signal(signal.SIGSTOP, ranks[int(draw.integers(len(ranks)))])
        life.signal(signal.SIGKILL, life.pid)
        took = _freed_within(LIMIT_SECONDS, out)
        seconds.append(LIMIT_SECONDS if took is None else took)
        if took is None:
            what = f"held by {states([life.pid, *ranks])} {LIMIT_SECONDS:.0f} s after its launcher was killed"
            left.append(f"launcher {number}, {dict(layout)}: {what}")
            life.signal(signal.SIGKILL, *ranks)
            life.gone_within(LIMIT_SECONDS, ranks)
        life.join()
        progress(number + 1, orphans, f"{len(left)} left")
    return {
        "launchers_killed": orphans,
        "orphans": len(left),
        "longest_seconds": max(seconds, default=0.0),
        "losses": left,
        "seconds": time.monotonic() - began,
        "passed": not left,
    }


def _freed_within(seconds: float, out: Path) -> float | None:
    """Seconds until no process of the job is left: each holds the lock of the run directory as long as it lives."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        if holder_of(out) is None:
            return time.monotonic() - begin
        time.sleep(POLL_SECONDS)
    return None
