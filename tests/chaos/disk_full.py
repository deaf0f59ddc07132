"""Let the disk refuse writes at random instants for a random time: training must continue and lose nothing."""

import contextlib
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from chaos.life import Life
from chaos.scene import LAYOUTS, SEED, event_steps, job, plan, verifies, write_tokens
from trivium.checkpoint.format import published
from trivium.progress import Progress, silent
from trivium.seeds import generator_for
from trivium.training.loop import CHECKPOINTS
from trivium.training.metrics import EVENTS, METRICS, last_step, read

GOOD_SAVES = 3  # before the disk is full
FAILED_SAVES = 2  # before it has room again


def fill_often(folder: Path, fillings: int, *, seed: int = SEED, progress: Progress = silent) -> dict[str, Any]:
    """Fill the disk of `fillings` trainings: RLIMIT_FSIZE keeps a rank's files below the size of what it saves."""
    tokens, losses = write_tokens(folder), list[str]()
    draw = generator_for(seed, "chaos", "disk full")
    for number in range(fillings):
        name = f"filling {number}, {dict(LAYOUTS[number % len(LAYOUTS)])}"
        losses += [f"{name}: {what}" for what in _fill(folder, tokens, number, draw)]
        progress(number + 1, fillings, f"{len(losses)} wrong")
    return {
        "fillings": fillings,
        "went_on": fillings - len({loss.partition(":")[0] for loss in losses}),
        "losses": losses,
    }


def _fill(folder: Path, tokens: Path, number: int, draw: np.random.Generator) -> list[str]:
    out = folder / f"full-{number}"
    mode = ("background", "waiting")[int(draw.integers(2))]
    given = plan(LAYOUTS[number % len(LAYOUTS)])
    life = Life.begin(job(tokens, out, given, save=mode, save_failures=100_000), folder / f"log-{number}.txt")
    life.wait_for(lambda: len(event_steps(out, "saved")) >= GOOD_SAVES)
    time.sleep(float(draw.uniform(0, 0.1)))
    ranks = life.ranks
    full = [r for r in ranks if draw.random() < 0.5] or ranks[:1]
    saved, limit = _newest(out), int(draw.integers(30_000, 60_000))
    for rank in full:
        _limit(rank, limit)
    life.wait_for(lambda: len(event_steps(out, "save failed")) >= FAILED_SAVES)
    newest = _newest(out)
    step = last_step(out / METRICS)
    # A newer checkpoint may have replaced the newest acknowledged one meanwhile.
    good = any(verifies(p) for p in published(out / CHECKPOINTS) if p.name >= f"step-{newest:08d}")
    wrong = [] if newest >= saved and good else [f"the checkpoint of step {newest} was lost"]
    for rank in full:
        _limit(rank, resource.RLIM_INFINITY)
    continued = life.wait_for(lambda: _newest(out) > max(newest, step))
    life.kill(launcher=True, victim=0)
    if not continued:
        wrong.append(f"training did not continue and save after step {step}")
    causes = [e["cause"] for e in read(out / EVENTS) if e["event"] == "save failed"]
    if not all("needed" in c and "free" in c and str(out) in c for c in causes):
        wrong.append(f"an error lacks the path, the bytes needed or the bytes free: {causes[0]}")
    return wrong + [f"{p.name} is damaged" for p in published(out / CHECKPOINTS) if not verifies(p)]


def _newest(out: Path) -> int:
    return (event_steps(out, "saved") or [0])[-1]


def _limit(rank: int, limit: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        hard = resource.prlimit(rank, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(rank, resource.RLIMIT_FSIZE, (limit, hard))
