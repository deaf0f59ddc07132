"""Ask a training to end, at random instants and in every way a scheduler or a user does; it must save once, and say 75
or, interrupted, 130."""

import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from trivium.chaos.life import Life
from trivium.chaos.scene import LAYOUTS, SEED, job, plan, write_tokens
from trivium.checkpoint.format import published, step_of
from trivium.checkpoint.load import Checkpoint
from trivium.errors import CheckpointError, Interrupted, Preempted
from trivium.progress import Progress, silent
from trivium.seeds import generator_for
from trivium.training.loop import CHECKPOINTS
from trivium.training.metrics import EVENTS, METRICS, last_step, read
from trivium.training.supervision.preemption import ONE_REQUEST_SECONDS, SIGNALS

TARGETS = ("launcher", "a rank", "every process", "twice")
PATIENCE_SECONDS = 60.0  # in which the ranks of a busy machine certainly do a step and save
AT_ONCE_SECONDS = 5.0
# The step under way when the signal comes, the one that carries the news, and one that was done but not yet told.
STEPS_MORE = 3
# In which a launcher passes a request on: it has to get a core first, of ranks that do a step in milliseconds.
PASSED_ON_SECONDS = 0.2


def preempt_often(
    folder: Path, *, preemptions: int, seed: int = SEED, progress: Progress = silent
) -> dict[str, Any]:
    """Let one training be preempted so often, on changing layouts, going on each time; count what went wrong."""
    began, tokens, out = time.monotonic(), write_tokens(folder), folder / "run"
    draw, wrong, used, seconds = generator_for(seed, "chaos", "preempt"), list[str](), Counter[str](), []
    for number in range(preemptions):
        layout, target = LAYOUTS[int(draw.integers(len(LAYOUTS)))], TARGETS[int(draw.integers(len(TARGETS)))]
        name = f"preemption {number}, {target}, {dict(layout)}"
        mode, every = ("background", "waiting")[int(draw.integers(2))], (3, 1000)[int(draw.integers(2))]
        given = job(tokens, out, plan(layout), save=mode, checkpoint_every=every)
        events, since, step = len(read(out / EVENTS)), time.time(), _newest(out)
        life = Life.begin(given, folder / "log.txt")
        life.wait_for(lambda life=life: bool(life.ranks))  # type: ignore[misc]
        if draw.random() < 0.8:
            life.wait_for(lambda step=step: last_step(out / METRICS) > step)  # type: ignore[misc]
        time.sleep(float(draw.uniform(0, 0.2)))
        if life.own_end:
            wrong.append(f"{name}: {life.own_end}")
            continue
        took, found = _twice(life, draw) if target == "twice" else _once(life, out, target, draw)
        seconds += [took]
        told = read(out / EVENTS)[events:]
        # A user's request is obeyed at once where no step was done.
        if life.exit_code == Interrupted.exit_code and not _did_a_step(out, since):
            found = [
                f"no step was done, and it {e['event']}" for e in told if e["event"] in ("saved", "preempted")
            ]
        elif target != "twice":
            found += _saved_once(out, told, every)
        wrong += [f"{name}: {what}" for what in [*found, *_went_on(told, step)]]
        used[target] += 1
        progress(number + 1, preemptions, f"{len(wrong)} wrong, step {_newest(out)}")
    return {
        "preemptions": preemptions,
        "saved_and_ended": preemptions - len({what.partition(": ")[0] for what in wrong}),
        "by_target": dict(used),
        "longest_seconds": max(seconds, default=0.0),
        "losses": wrong,
        "seconds": time.monotonic() - began,
        "passed": not wrong,
    }


def _once(life: Life, out: Path, target: str, draw: np.random.Generator) -> tuple[float, list[str]]:
    """One request, to the launcher, a rank or all of them."""
    ranks, done = life.ranks, last_step(out / METRICS)
    number = SIGNALS[int(draw.integers(len(SIGNALS)))]
    victims = {
        "launcher": [life.pid],
        "a rank": [ranks[int(draw.integers(len(ranks)))]],
        "every process": [*ranks, life.pid],
    }[target]
    told = time.time() + (PASSED_ON_SECONDS if target == "launcher" else 0)
    life.signal(number, *victims)
    took = life.gone_within(PATIENCE_SECONDS, ranks)
    if took is None:
        life.kill(launcher=True, victim=0)
        return PATIENCE_SECONDS, [f"not gone {PATIENCE_SECONDS:.0f} s after {number.name}"]
    found = []
    by_user = number == signal.SIGINT and target != "a rank"
    right = (Interrupted if by_user else Preempted).exit_code
    if life.exit_code != right:
        found.append(f"exit code {life.exit_code} after {number.name}, not {right}")
    done = max(
        done,
        _resumed(out),
        *(int(r.get("step", 0)) for r in read(out / METRICS) if r.get("time", told) < told),
    )
    if last_step(out / METRICS) > done + STEPS_MORE:
        found.append(f"step {done} was done at {number.name}, and {last_step(out / METRICS)} at the end")
    return took, found


def _twice(life: Life, draw: np.random.Generator) -> tuple[float, list[str]]:
    """A training that cannot save, as a rank is stopped, ends at the second signal."""
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
    """The last step done is saved and good, and nothing was saved but it and what was due."""
    done, newest = last_step(out / METRICS), _newest(out)
    found = [] if done == newest else [f"the last step done is {done}, the newest checkpoint {newest}"]
    more = [e["step"] for e in events if e["event"] == "saved" and e["step"] % every]
    if more != [done] * (done % every > 0):
        found.append(f"steps {more} were saved besides those that were due, where {done} was the last")
    for path in published(out / CHECKPOINTS)[-1:]:
        try:
            Checkpoint.open(path).verify()
        except CheckpointError as error:
            found.append(str(error))
    return found


def _went_on(events: list[dict[str, Any]], step: int) -> list[str]:
    """This life, if it came so far as to save, began where the last one ended."""
    resumed = [e["step"] for e in events if e["event"] == "resumed"]
    if not resumed and step and any(e["event"] == "saved" for e in events):
        return [f"began anew, and {step} was there"]
    return [f"went on from {resumed[0]}, and {step} was there"] if resumed and resumed[0] != step else []


def _resumed(out: Path) -> int:
    return max((e["step"] for e in read(out / EVENTS) if e["event"] == "resumed"), default=0)


def _did_a_step(out: Path, since: float) -> bool:
    return any("tokens_per_second" in m and m["time"] > since for m in read(out / METRICS))


def _newest(out: Path) -> int:
    return max((step_of(p.name) or 0 for p in published(out / CHECKPOINTS)), default=0)
