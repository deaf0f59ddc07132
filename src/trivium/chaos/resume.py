"""Kill a training at a random step after its first save, on a random layout; it must go on from a checkpoint, and end
as the unbroken one, bit for bit."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trivium.chaos.scene import LAYOUTS, SEED, job, plan, write_tokens
from trivium.checkpoint.format import published, step_of
from trivium.checkpoint.load import Checkpoint
from trivium.comms.launch import Ranks
from trivium.progress import Progress, silent
from trivium.seeds import generator_for
from trivium.training.loop import CHECKPOINTS
from trivium.training.metrics import EVENTS, METRICS, read
from trivium.training.supervision.job import start

STEPS, EVERY = 14, 3  # of each training; between its saves


def resume_often(
    folder: Path, *, resumes: int, seed: int = SEED, progress: Progress = silent
) -> dict[str, Any]:
    """Break and resume so many trainings, with dropout and saves beside the training; count the unequal ones."""
    began, tokens = time.monotonic(), write_tokens(folder)
    draw, unequal = generator_for(seed, "chaos", "resume"), []
    for number in range(resumes):
        layout = LAYOUTS[number % len(LAYOUTS)]
        weights = ("fp32", "bf16")[int(draw.integers(2))]
        at, victim = int(draw.integers(EVERY, STEPS - EVERY)), int(draw.integers(2))
        given = plan(layout, weights=weights, dropout=0.1)
        runs = folder / f"{number}-unbroken", folder / f"{number}-broken"
        for out, watch in zip(runs, (None, _killing(runs[1], at, victim)), strict=True):
            start(job(tokens, out, given, steps=STEPS, checkpoint_every=EVERY, restarts=1), watch=watch)
        wrong = [*_differences(*runs), *_unbroken(runs[1])]
        unequal += [f"{number}, {dict(layout)}, {weights}, killed at {at}: {what}" for what in wrong]
        progress(number + 1, resumes, f"{len(unequal)} unequal")
    return {
        "resumes": resumes,
        "bitwise_equal": resumes - len({what.partition(": ")[0] for what in unequal}),
        "losses": unequal,
        "seconds": time.monotonic() - began,
        "passed": not unequal,
    }


def _killing(out: Path, at: int, victim: int) -> Callable[[Ranks, int], None]:
    done: list[int] = []

    def watch(ranks: Ranks, step: int) -> None:
        if not done and step >= at and _told(out, "saved"):
            done.append(step)
            os.kill(ranks.pids[victim % len(ranks.pids)], signal.SIGKILL)

    return watch


def _unbroken(out: Path) -> list[str]:
    """That nothing was resumed, and so nothing proved: no kill, or one before the first checkpoint."""
    return [] if any(_told(out, "resumed")) else ["it was not resumed from a checkpoint"]


def _told(out: Path, kind: str) -> list[int]:
    """The steps of the events of a kind."""
    return [e["step"] for e in read(out / EVENTS) if e["event"] == kind]


def _differences(unbroken: Path, broken: Path) -> list[str]:
    """What differs: losses of any step, or any byte of weights, masters and moments at the end."""
    one, two = (
        {m["step"]: (m["loss"], m["gradient_norm"]) for m in read(out / METRICS) if "loss" in m}
        for out in (unbroken, broken)
    )
    found = [f"loss of step {s}" for s in one.keys() | two.keys() if one.get(s) != two.get(s)]
    files = [_files(out) for out in (unbroken, broken)]
    return found + ([] if files[0] == files[1] else ["weights or moments"])


def _files(out: Path) -> dict[str, Any]:
    last = published(out / CHECKPOINTS)[-1]
    checkpoint = Checkpoint.open(last)
    checkpoint.verify()
    files: dict[str, Any] = checkpoint.manifest["files"]
    return {"step": step_of(last.name), **files}
