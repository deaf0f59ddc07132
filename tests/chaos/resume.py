"""Kill a training at a random step after its first save: it must resume from a checkpoint and end like an unbroken
run, bit for bit."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos.scene import LAYOUTS, SEED, event_steps, job, plan, write_tokens
from trivium.checkpoint.format import published, step_of
from trivium.checkpoint.load import Checkpoint
from trivium.comms.launch import Ranks
from trivium.progress import Progress, silent
from trivium.seeds import generator_for
from trivium.training.loop import CHECKPOINTS
from trivium.training.metrics import METRICS, read
from trivium.training.supervision.job import start

STEPS, SAVE_EVERY = 14, 3


def resume_often(folder: Path, resumes: int, *, seed: int = SEED, progress: Progress = silent) -> dict[str, Any]:
    """Break and resume `resumes` trainings with dropout and background saves; count those that end differently."""
    tokens, losses = write_tokens(folder), list[str]()
    draw = generator_for(seed, "chaos", "resume")
    for number in range(resumes):
        layout = LAYOUTS[number % len(LAYOUTS)]
        weights = ("fp32", "bf16")[int(draw.integers(2))]
        at, victim = int(draw.integers(SAVE_EVERY, STEPS - SAVE_EVERY)), int(draw.integers(2))
        given = plan(layout, weights=weights, dropout=0.1)
        unbroken, broken = folder / f"{number}-unbroken", folder / f"{number}-broken"
        for out, watch in ((unbroken, None), (broken, _killing(broken, at, victim))):
            start(job(tokens, out, given, steps=STEPS, checkpoint_every=SAVE_EVERY, restarts=1), watch=watch)
        wrong = _differences(unbroken, broken)
        # Without a kill, or with one before the first checkpoint, nothing was proved.
        wrong += [] if any(event_steps(broken, "resumed")) else ["it was not resumed from a checkpoint"]
        losses += [f"{number}, {dict(layout)}, {weights}, killed at {at}: {what}" for what in wrong]
        progress(number + 1, resumes, f"{len(losses)} unequal")
    return {
        "resumes": resumes,
        "bitwise_equal": resumes - len({loss.partition(": ")[0] for loss in losses}),
        "losses": losses,
    }


def _killing(out: Path, at: int, victim: int) -> Callable[[Ranks, int], None]:
    killed: list[int] = []

    def watch(ranks: Ranks, step: int) -> None:
        if not killed and step >= at and event_steps(out, "saved"):
            killed.append(step)
            os.kill(ranks.pids[victim % len(ranks.pids)], signal.SIGKILL)

    return watch


def _differences(unbroken: Path, broken: Path) -> list[str]:
    """List what differs: the loss or norm of any step, or any byte of weights, masters and moments at the end."""
    one, two = (
        {m["step"]: (m["loss"], m["gradient_norm"]) for m in read(out / METRICS) if "loss" in m}
        for out in (unbroken, broken)
    )
    wrong = [f"loss of step {s}" for s in one.keys() | two.keys() if one.get(s) != two.get(s)]
    return wrong + ([] if _files(unbroken) == _files(broken) else ["weights or moments"])


def _files(out: Path) -> dict[str, Any]:
    """The step of the last checkpoint, and size and hash of each of its files."""
    last = published(out / CHECKPOINTS)[-1]
    checkpoint = Checkpoint.open(last)
    checkpoint.verify()
    return {"step": step_of(last.name), **checkpoint.manifest["files"]}
