"""Let the disk refuse to take more, at random instants and for a random while; training must go on and lose nothing."""

import contextlib
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from trivium.chaos.life import Life
from trivium.chaos.scene import LAYOUTS, SEED, job, plan, write_tokens
from trivium.checkpoint.format import published
from trivium.checkpoint.load import Checkpoint
from trivium.errors import CheckpointError
from trivium.progress import Progress, silent
from trivium.seeds import generator_for
from trivium.training.loop import CHECKPOINTS
from trivium.training.metrics import EVENTS, METRICS, last_step, read

SAVES = 3  # good ones before the disk is full, and after it has room again
FAILURES = 2  # failed ones in between


def fill_often(
    folder: Path, *, fillings: int, seed: int = SEED, progress: Progress = silent
) -> dict[str, Any]:
    """Fill the disk of so many trainings. A rank's files are kept from growing (RLIMIT_FSIZE) below what it saves."""
    began, tokens = time.monotonic(), write_tokens(folder)
    draw, wrong = generator_for(seed, "chaos", "disk full"), list[str]()
    for number in range(fillings):
        layout = LAYOUTS[number % len(LAYOUTS)]
        wrong += [f"filling {number}, {dict(layout)}: {what}" for what in _one(folder, tokens, number, draw)]
        progress(number + 1, fillings, f"{len(wrong)} wrong")
    return {
        "fillings": fillings,
        "went_on": fillings - len({what.partition(":")[0] for what in wrong}),
        "losses": wrong,
        "seconds": time.monotonic() - began,
        "passed": not wrong,
    }


def _one(folder: Path, tokens: Path, number: int, draw: np.random.Generator) -> list[str]:
    out = folder / f"full-{number}"
    mode = ("background", "waiting")[int(draw.integers(2))]
    given = plan(LAYOUTS[number % len(LAYOUTS)])
    life = Life.begin(job(tokens, out, given, save=mode, save_failures=100_000), folder / f"log-{number}.txt")
    life.wait_for(lambda: len(_told(out, "saved")) >= SAVES)
    time.sleep(float(draw.uniform(0, 0.1)))
    ranks = life.ranks
    full = [r for r in ranks if draw.random() < 0.5] or ranks[:1]
    kept, limit = _told(out, "saved")[-1], int(draw.integers(30_000, 60_000))
    for rank in full:
        _limit(rank, limit)
    life.wait_for(lambda: len(_told(out, "save failed")) >= FAILURES)
    newest = _told(out, "saved")[-1]
    step = last_step(out / METRICS)
    found = [] if newest >= kept and _is_good(out, newest) else [f"the checkpoint of step {newest} was lost"]
    for rank in full:
        _limit(rank, resource.RLIM_INFINITY)
    went_on = life.wait_for(lambda: _told(out, "saved")[-1] > max(newest, step))
    life.kill(launcher=True, victim=0)
    if not went_on:
        found.append(f"training did not go on and save after step {step}")
    causes = [e["cause"] for e in read(out / EVENTS) if e["event"] == "save failed"]
    if not all("needed" in c and "free" in c and str(out) in c for c in causes):
        found.append(f"an error does not say path, needed and free bytes: {causes[0]}")
    return found + [f"{p.name} is damaged" for p in published(out / CHECKPOINTS) if not _verifies(p)]


def _told(out: Path, kind: str) -> list[int]:
    return [e["step"] for e in read(out / EVENTS) if e["event"] == kind] or ([0] if kind == "saved" else [])


def _limit(rank: int, limit: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        hard = resource.prlimit(rank, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(rank, resource.RLIMIT_FSIZE, (limit, hard))


def _is_good(out: Path, step: int) -> bool:
    """Whether a step's checkpoint is there; a newer one may have replaced it meanwhile."""
    return any(_verifies(p) for p in published(out / CHECKPOINTS) if p.name >= f"step-{step:08d}")


def _verifies(path: Path) -> bool:
    try:
        Checkpoint.open(path).verify()
    except CheckpointError:
        return not path.exists()  # retention took it while it was read
    return True
