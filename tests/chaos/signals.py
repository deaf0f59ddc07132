"""Send signals to a training at random instants: stop a rank, kill its launcher, or request it to end.

A stopped rank must be named with its stack and replaced; no rank may outlive its launcher; a training that is asked to
end must save once, and exit with 75, or with 130 if it was interrupted.
"""

import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from chaos.life import POLL_SECONDS, Life, states
from chaos.scene import LAYOUTS, SEED, Tally, event_steps, job, newest_step, plan, write_tokens
from trivium.checkpoint.format import published
from trivium.checkpoint.lease import holder_of
from trivium.checkpoint.load import Checkpoint
from trivium.errors import CheckpointError, Interrupted, Preempted
from trivium.progress import Progress, silent
from trivium.seeds import generator_for
from trivium.training.metrics import EVENTS, METRICS, last_step, read
from trivium.training.record import CHECKPOINTS
from trivium.training.supervision.preemption import ONE_REQUEST_SECONDS, SIGNALS

HANG_SECONDS = 2.0  # the trainings' minimum (default 30), so that many freezes take minutes
SLACK_SECONDS = 3.0  # for collecting the stacks, and for a busy machine
PATIENCE_SECONDS = 60.0  # enough for a step and a save on a busy machine
ORPHAN_SECONDS = 5.0  # that a rank may outlive its launcher
AT_ONCE_SECONDS = 5.0
TARGETS = ("launcher", "a rank", "every process", "twice")
# The current step, the step that carries the request to all ranks, and one that was done but not yet logged.
STEPS_MORE = 3
# Time for the launcher to forward a request: it competes for a core with ranks whose steps take milliseconds.
FORWARDING_SECONDS = 0.2


def freeze_often(folder: Path, freezes: int, *, seed: int = SEED, progress: Progress = silent) -> dict[str, Any]:
    """Stop one rank in each life of one training. Count ranks that were not detected, not named or not replaced."""
    tokens, out = write_tokens(folder), folder / "run"
    draw, tally = generator_for(seed, "chaos", "freeze"), Tally(freezes, progress)
    layouts = [layout for layout in LAYOUTS if layout]  # of several ranks, which wait for the stopped one
    for number in range(freezes):
        layout = layouts[number % len(layouts)]
        supervision = {"hang_seconds": HANG_SECONDS, "restart_seconds": 0.0}
        step = last_step(out / METRICS)
        life = Life.begin(job(tokens, out, plan(layout), restarts=1, supervision=supervision), folder / "log.txt")
        life.wait_for(lambda step=step: last_step(out / METRICS) > step + 3)
        time.sleep(float(draw.uniform(0, 0.2)))
        took, wrong = (0.0, [life.own_end]) if life.own_end else _freeze(life, out, draw)
        tally.add(f"freeze {number}, {dict(layout)}", wrong, took)
    return {
        "freezes": freezes,
        "found_and_restarted": tally.good,
        "hang_seconds": HANG_SECONDS,
        "longest_seconds": tally.longest_seconds,
        "losses": tally.losses,
    }


def _freeze(life: Life, out: Path, draw: np.random.Generator) -> tuple[float, list[str]]:
    """Return the seconds until the stopped rank was reported, and what went wrong."""
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


def orphan_often(folder: Path, orphans: int, *, seed: int = SEED, progress: Progress = silent) -> dict[str, Any]:
    """Kill the launcher in each life of one training, sometimes while a rank is stopped; count what stays."""
    tokens, out = write_tokens(folder), folder / "run"
    draw, tally = generator_for(seed, "chaos", "orphans"), Tally(orphans, progress)
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
            tally.add(name, [life.own_end])
            continue
        ranks = life.ranks
        # A rank that is stopped in its first millisecond has not yet asked the kernel to end with its launcher.
        if begun and draw.random() < 0.3:
            life.signal(signal.SIGSTOP, ranks[int(draw.integers(len(ranks)))])
        life.signal(signal.SIGKILL, life.pid)
        took = _seconds_until_free(out)
        left = [] if took is not None else [f"held by {states([life.pid, *ranks])} after its launcher was killed"]
        if left:
            life.signal(signal.SIGKILL, *ranks)
            life.gone_within(ORPHAN_SECONDS, ranks)
        life.launcher.join()
        tally.add(name, left, ORPHAN_SECONDS if took is None else took)
    return {
        "launchers_killed": orphans,
        "orphans": len(tally.losses),
        "longest_seconds": tally.longest_seconds,
        "losses": tally.losses,
    }


def _seconds_until_free(out: Path) -> float | None:
    """Return the seconds until no process of the job is left, or None after ORPHAN_SECONDS. Each process holds the lock
    of the run directory as long as it lives."""
    begin = time.monotonic()
    while time.monotonic() - begin < ORPHAN_SECONDS:
        if holder_of(out) is None:
            return time.monotonic() - begin
        time.sleep(POLL_SECONDS)
    return None


def preempt_often(folder: Path, preemptions: int, *, seed: int = SEED, progress: Progress = silent) -> dict[str, Any]:
    """Preempt one training `preemptions` times, resuming it on another layout each time; count what went wrong."""
    tokens, out = write_tokens(folder), folder / "run"
    draw, tally, used = generator_for(seed, "chaos", "preempt"), Tally(preemptions, progress), Counter[str]()
    for number in range(preemptions):
        layout, target = LAYOUTS[int(draw.integers(len(LAYOUTS)))], TARGETS[int(draw.integers(len(TARGETS)))]
        name = f"preemption {number}, {target}, {dict(layout)}"
        mode, every = ("background", "waiting")[int(draw.integers(2))], (3, 1000)[int(draw.integers(2))]
        given = job(tokens, out, plan(layout), save=mode, checkpoint_every=every)
        events, since, step = len(read(out / EVENTS)), time.time(), newest_step(out)
        life = Life.begin(given, folder / "log.txt")
        life.wait_for(lambda life=life: bool(life.ranks))
        if draw.random() < 0.8:
            life.wait_for(lambda step=step: last_step(out / METRICS) > step)
        time.sleep(float(draw.uniform(0, 0.2)))
        if life.own_end:
            tally.add(name, [life.own_end])
            continue
        took, wrong = _twice(life, draw) if target == "twice" else _once(life, out, target, draw)
        new = read(out / EVENTS)[events:]
        did_a_step = any("tokens_per_second" in m and m["time"] > since for m in read(out / METRICS))
        # A user's request ends the training at once if no step was done.
        if life.exit_code == Interrupted.exit_code and not did_a_step:
            wrong = [f"no step was done, and it {e['event']}" for e in new if e["event"] in ("saved", "preempted")]
        elif target != "twice":
            wrong += _saved_once(out, new, every)
        used[target] += 1
        tally.add(name, [*wrong, *_continued(new, step)], took)
    return {
        "preemptions": preemptions,
        "saved_and_ended": tally.good,
        "by_target": dict(used),
        "longest_seconds": tally.longest_seconds,
        "losses": tally.losses,
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
    forwarded = time.time() + (FORWARDING_SECONDS if target == "launcher" else 0)
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
    done, newest = last_step(out / METRICS), newest_step(out)
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
