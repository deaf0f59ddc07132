"""Kill the launcher of a training at a random instant: no rank may outlive it for long."""

import signal
import time
from pathlib import Path
from typing import Any

from chaos.life import POLL_SECONDS, Life, states
from chaos.scene import LAYOUTS, SEED, job, plan, write_tokens
from trivium.checkpoint.lease import holder_of
from trivium.progress import Progress, silent
from trivium.seeds import generator_for
from trivium.training.metrics import METRICS, last_step

LIMIT_SECONDS = 5.0


def orphan_often(folder: Path, orphans: int, *, seed: int = SEED, progress: Progress = silent) -> dict[str, Any]:
    """Kill the launcher in each life of one training, sometimes while a rank is stopped; count what stays."""
    tokens, out = write_tokens(folder), folder / "run"
    draw, losses, seconds = generator_for(seed, "chaos", "orphans"), list[str](), [0.0]
    for number in range(orphans):
        layout = LAYOUTS[number % len(LAYOUTS)]
        name, step = f"launcher {number}, {dict(layout)}", last_step(out / METRICS)
        life = Life.begin(job(tokens, out, plan(layout)), folder / "log.txt")
        life.wait_for(lambda life=life: bool(life.ranks))
        begun = draw.random() < 0.7
        if begun:
            life.wait_for(lambda step=step: last_step(out / METRICS) > step)
        time.sleep(float(draw.uniform(0, 0.2)))
        if life.own_end:
            losses.append(f"{name}: {life.own_end}")
            continue
        ranks = life.ranks
        # A rank that is stopped in its first millisecond has not yet asked the kernel to end with its launcher.
        if begun and draw.random() < 0.3:
            life.signal(signal.SIGSTOP, ranks[int(draw.integers(len(ranks)))])
        life.signal(signal.SIGKILL, life.pid)
        took = _seconds_until_free(out)
        seconds.append(LIMIT_SECONDS if took is None else took)
        if took is None:
            left = states([life.pid, *ranks])
            losses.append(f"{name}: held by {left} {LIMIT_SECONDS:.0f} s after its launcher was killed")
            life.signal(signal.SIGKILL, *ranks)
            life.gone_within(LIMIT_SECONDS, ranks)
        life.join()
        progress(number + 1, orphans, f"{len(losses)} left")
    return {"launchers_killed": orphans, "orphans": len(losses), "longest_seconds": max(seconds), "losses": losses}


def _seconds_until_free(out: Path) -> float | None:
    """Return the seconds until no process of the job is left, or None after LIMIT_SECONDS. Each process holds the lock
    of the run directory as long as it lives."""
    begin = time.monotonic()
    while time.monotonic() - begin < LIMIT_SECONDS:
        if holder_of(out) is None:
            return time.monotonic() - begin
        time.sleep(POLL_SECONDS)
    return None
