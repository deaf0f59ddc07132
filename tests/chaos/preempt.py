"""Ask a training to end at random instants, in every way that a scheduler or a user does. It must save once, and exit
with 75, or with 130 if it was interrupted."""

import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from chaos.life import Life
from chaos.scene import LAYOUTS, SEED, event_steps, job, plan, write_tokens
from trivium.checkpoint.format import published, step_of
from trivium.checkpoint.load import Checkpoint
from trivium.errors import CheckpointError, Interrupted, Preempted
from trivium.progress import Progress, silent
from trivium.seeds import generator_for
from trivium.training.loop import CHECKPOINTS
from trivium.training.metrics import EVENTS, METRICS, last_step, read
from trivium.training.supervision.preemption import ONE_REQUEST_SECONDS, SIGNALS

TARGETS = ("launcher", "a rank", "every process", "twice")
PATIENCE_SECONDS = 60.0  # enough for a step and a save on a busy machine
AT_ONCE_SECONDS = 5.0
# The current step, the step that carries the request to all ranks, and one that was done but not yet logged.
STEPS_MORE = 3
# Time for the launcher to forward a request: it competes for a core with ranks whose steps take milliseconds.
PASSED_ON_SECONDS = 0.2


def preempt_often(folder: Path, preemptions: int, *, seed: int = SEED, progress: Progress = silent) -> dict[str, Any]:
    """Preempt one training `preemptions` times, resuming it on another layout each time; count what went wrong."""
    tokens, out = write_tokens(folder), folder / "run"
    draw, losses, used, seconds = generator_for(seed, "chaos", "preempt"), list[str](), Counter[str](), [0.0]
    for number in range(preemptions):
        layout, target = LAYOUTS[int(draw.integers(len(LAYOUTS)))], TARGETS[int(draw.integers(len(TARGETS)))]
        name = f"preemption {number}, {target}, {dict(layout)}"
        mode, every = ("background", "waiting")[int(draw.integers(2))], (3, 1000)[int(draw.integers(2))]
        given = job(tokens, out, plan(layout), save=mode, checkpoint_every=every)
        events, since, step = len(read(out / EVENTS)), time.time(), _newest(out)
        life = Life.begin(given, folder / "log.txt")
        life.wait_for(lambda life=life: bool(life.ranks))
        if draw.random() < 0.8:
            life.wait_for(lambda step=step: last_step(out / METRICS) > step)
        time.sleep(float(draw.uniform(0, 0.2)))
        if life.own_end:
            losses.append(f"{name}: {life.own_end}")
            continue
        took, wrong = _twice(life, draw) if target == "twice" else _once(life, out, target, draw)
        seconds += [took]
        new = read(out / EVENTS)[events:]
        # A user's request ends the training at once if no step was done.
        if life.exit_code == Interrupted.exit_code and not _did_a_step(out, since):
            wrong = [f"no step was done, and it {e['event']}" for e in new if e["event"] in ("saved", "preempted")]
        elif target != "twice":
            wrong += _saved_once(out, new, every)
        losses += [f"{name}: {what}" for what in [*wrong, *_continued(new, step)]]
        used[target] += 1
        progress(number + 1, preemptions, f"{len(losses)} wrong, step {_newest(out)}")
    return {
        "preemptions": preemptions,
        "saved_and_ended": preemptions - len({loss.partition(": ")[0] for loss in losses}),
        "by_target": dict(used),
        "longest_seconds": max(seconds),
        "losses": losses,
    }


def _once(life: Life, out: Path, target: str, draw: np.random.Generator) -> tuple[float, list[str]]:
    """Send one request to the launcher, a rank or all of them. Return the seconds that it took, and what went wrong."""
    ranks, done = life.ranks, last_step(out / METRICS)
    number = SIGNALS[int(draw.integers(len(SIGNALS)))]
    victims = {
        "launcher": [life.pid],
        "a rank": [ranks[int(draw.integers(len(ranks)))]],
        "every process": [*ranks, life.pid],
    }[target]
    forwarded = time.time() + (PASSED_ON_SECONDS if target == "launcher" else 0)
    life.signal(number, *victims)
    took = life.gone_within(PATIENCE_SECONDS, ranks)
    if took is None:
        life.kill(launcher=True, victim=0)
        return PATIENCE_SECONDS, [f"not gone {PATIENCE_SECONDS:.0f} s after {number.name}"]
    wrong = []
    by_user = number == signal.SIGINT and target != "a rank"
    right = (Interrupted if by_user else Preempted).exit_code
    if life.exit_code != right:
        wrong.append(f"exit code {life.exit_code} after {number.name}, not {right}")
    logged = (int(r.get("step", 0)) for r in read(out / METRICS) if r.get("time", forwarded) < forwarded)
    done = max([done, *event_steps(out, "resumed"), *logged])
    if last_step(out / METRICS) > done + STEPS_MORE:
        wrong.append(f"step {done} was done at {number.name}, and {last_step(out / METRICS)} at the end")
    return took, wrong


def _twice(life: Life, draw: np.random.Generator) -> tuple[float, list[str]]:
    """Send two signals to a training that cannot save, because a rank is stopped: it must end at the second."""
    ranks = life.ranks
    number = SIGNALS[int(draw.integers(len(SIGNALS)))]
    life.signal(signal.SIGSTOP, ranks[int(draw.integers(len(ranks)))])
    life.signal(number, life.pid)
    time.sleep(ONE_REQUEST_SECONDS + 0.1)
    ended_early = not life.lives
    life.signal(number, life.pid)
    took = life.gone_within(AT_ONCE_SECONDS, ranks)
    if took is None:
        life.kill(launcher=True, victim=0)
        return AT_ONCE_SECONDS, [f"not gone {AT_ONCE_SECONDS:.0f} s after the second {number.name}"]
    if ended_early:
        return took, [f"ended at the first {number.name} though a rank was stopped"]
    right = life.exit_code == 128 + number
    return took, [] if right else [f"exit code {life.exit_code} after two {number.name}, not {128 + number}"]


def _saved_once(out: Path, events: list[dict[str, Any]], every: int) -> list[str]:
    """Check that the last step is saved and good, and that only this and the steps that were due were saved."""
    done, newest = last_step(out / METRICS), _newest(out)
    wrong = [] if done == newest else [f"the last step done is {done}, the newest checkpoint {newest}"]
    more = [e["step"] for e in events if e["event"] == "saved" and e["step"] % every]
    if more != [done] * (done % every > 0):
        wrong.append(f"steps {more} were saved besides those that were due; the last step is {done}")
    for path in published(out / CHECKPOINTS)[-1:]:
        try:
            Checkpoint.open(path).verify()
        except CheckpointError as error:
            wrong.append(str(error))
    return wrong


def _continued(events: list[dict[str, Any]], step: int) -> list[str]:
    """Check that this life, if it got as far as saving, began where the previous one ended."""
    resumed = [e["step"] for e in events if e["event"] == "resumed"]
    if not resumed and step and any(e["event"] == "saved" for e in events):
        return [f"started from scratch, though step {step} was saved"]
    return [f"resumed from step {resumed[0]}, though step {step} was saved"] if resumed and resumed[0] != step else []


def _did_a_step(out: Path, since: float) -> bool:
    return any("tokens_per_second" in m and m["time"] > since for m in read(out / METRICS))


def _newest(out: Path) -> int:
    return max((step_of(p.name) or 0 for p in published(out / CHECKPOINTS)), default=0)
