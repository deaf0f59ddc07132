"""Kill a training at random instants, on changing layouts; count what was lost, and what ends differently."""

import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chaos.life import Life
from chaos.scene import LAYOUTS, SEED, Oracle, Tally, event_steps, job, plan, write_tokens
from trivium.checkpoint.format import published, step_of
from trivium.checkpoint.load import Checkpoint
from trivium.comms.launch import Ranks
from trivium.errors import CheckpointError, DataError
from trivium.interchange.bring import import_hf
from trivium.interchange.export import export_hf
from trivium.progress import Progress, silent
from trivium.seeds import generator_for
from trivium.training.loop import TrainingJob
from trivium.training.metrics import EVENTS, METRICS, last_step, read
from trivium.training.record import CHECKPOINTS
from trivium.training.supervision.job import start

STEPS, SAVE_EVERY = 14, 3  # of the trainings of `resume_often`
PHASES = ("training", "saving", "publishing", "retention", "export")


@dataclass
class Losses:
    """What kills cost: every list must stay empty. Each entry names the kill and the loss."""

    acknowledged_lost: list[str] = field(default_factory=list)
    unloadable: list[str] = field(default_factory=list)
    wrong_tensors: list[str] = field(default_factory=list)
    steps_lost: list[str] = field(default_factory=list)
    half_exports: list[str] = field(default_factory=list)
    ended_by_themselves: list[str] = field(default_factory=list)  # trainings and exports

    @property
    def total(self) -> int:
        return sum(len(v) for v in vars(self).values())


def kill_often(
    folder: Path, kills: int, *, layouts: int, seed: int = SEED, progress: Progress = silent
) -> dict[str, Any]:
    """Kill a training `kills` times on the first `layouts` of LAYOUTS; return the counts and what was lost.

    After each kill, every published checkpoint must verify and equal that of an unbroken training, every acknowledged
    checkpoint that retention keeps must exist, and the next life must resume from the newest one.
    """
    tokens, out = write_tokens(folder), folder / "run"
    losses, phases, used, ends = Losses(), Counter[str](), Counter[str](), Counter[str]()
    draw = generator_for(seed, "chaos", "kills")
    oracle = Oracle(job(tokens, out, plan({})))
    newest, export_seconds = 0, 0.0
    for number in range(kills):
        given = LAYOUTS[int(draw.integers(layouts))]
        mode = ("background", "waiting")[int(draw.integers(2))]
        phase = PHASES[int(draw.integers(len(PHASES)))]
        events = len(read(out / EVENTS))
        phases[phase] += 1
        if phase == "export" and newest:
            export_seconds = export_seconds or _export_seconds(out, folder / "exported")
            ends[_one_export(number, out, folder / "exported", export_seconds, draw, losses)] += 1
            _inspect(number, out, oracle, newest, losses)
            continue
        own_end = _one_life(job(tokens, out, plan(given), save=mode), folder / "log.txt", phase, draw)
        losses.ended_by_themselves += [f"kill {number}, {dict(given)}: {own_end}"] if own_end else []
        used[str(dict(given))] += 1
        _check_resumed(number, out, events, newest, losses)
        newest = _inspect(number, out, oracle, newest, losses)
        progress(number + 1, kills, f"{losses.total} losses, step {newest}")
    return {
        "kills": kills,
        "layouts": len(used),
        "steps": newest,
        "by_phase": dict(phases),
        "by_layout": dict(used),
        "exports": dict(ends),
        **{name: len(found) for name, found in vars(losses).items()},
        "losses": [f"{name}: {what}" for name, found in vars(losses).items() for what in found],
    }


def _one_life(of: TrainingJob, log: Path, phase: str, draw: np.random.Generator) -> str:
    """Wait for the phase and a random time longer, then kill a rank or the launcher. Return how the training ended by
    itself, if it did before that."""
    root, metrics, events = of.out / CHECKPOINTS, of.out / METRICS, of.out / EVENTS
    before, step = len(read(events)), last_step(metrics)
    life = Life.begin(of, log)
    seen: dict[str, Callable[[], bool]] = {
        "training": lambda: True,
        "export": lambda: True,  # nothing could be exported yet
        "saving": lambda: any(root.glob(".step-*.partial")),
        "publishing": lambda: any(root.glob(".step-*.partial/manifest.json")),
        "retention": lambda: any(root.glob(".step-*.removed")),
    }
    # Sometimes much earlier: while the ranks start, read the checkpoint, or clean up.
    if draw.random() < 0.1:
        time.sleep(float(draw.uniform(0, 0.5)))
    else:
        life.wait_for(lambda: bool(event_steps(of.out, "resumed", "saved", after=before)) or last_step(metrics) > step)
        life.wait_for(seen[phase])
        time.sleep(float(draw.exponential(0.003 if phase != "training" else 0.05)))
    own_end = life.own_end
    life.kill(launcher=bool(draw.random() < 0.3), victim=int(draw.integers(8)))
    return own_end


def _export_seconds(out: Path, to: Path) -> float:
    """Return the seconds of an undisturbed export. An export before it imports what the forked ones then need not."""
    newest = published(out / CHECKPOINTS)[-1]
    _export(newest, to)
    shutil.rmtree(to)
    began, process = time.monotonic(), get_context("fork").Process(target=_export, args=(newest, to))
    process.start()
    process.join()
    shutil.rmtree(to)
    return time.monotonic() - began


def _one_export(number: int, out: Path, to: Path, seconds: float, draw: np.random.Generator, losses: Losses) -> str:
    """Kill an export at a random instant: its folder must be complete or absent. Return which it is."""
    newest = published(out / CHECKPOINTS)[-1]
    process = get_context("fork").Process(target=_export, args=(newest, to))
    process.start()
    process.join(float(draw.uniform(0, 2 * seconds)))
    process.kill()
    process.join()
    if process.exitcode not in (0, -signal.SIGKILL):
        losses.ended_by_themselves.append(f"kill {number}: an export ended with exit code {process.exitcode}")
    if not to.exists():
        if process.exitcode == 0:
            losses.half_exports.append(f"kill {number}: a finished export is missing")
        return "none"
    try:
        Checkpoint.open(import_hf(to, to.with_name("imported"))).verify()
    except (DataError, CheckpointError) as error:
        losses.half_exports.append(f"kill {number}: {error}")
    shutil.rmtree(to.with_name("imported"), ignore_errors=True)
    shutil.rmtree(to)
    return "whole"


def _export(checkpoint: Path, to: Path) -> None:
    torch.set_num_threads(1)  # a forked process has none of its parent's threads
    export_hf(Checkpoint.open(checkpoint), to, tokenizer=None)


def _check_resumed(number: int, out: Path, events: int, newest: int, losses: Losses) -> None:
    """Check that this life, if it got as far as resuming, resumed from the newest checkpoint."""
    resumed = event_steps(out, "resumed", after=events)
    if resumed and resumed[0] < newest:
        losses.steps_lost.append(f"kill {number}: resumed from step {resumed[0]}, though {newest} was saved")
    if newest and not resumed and event_steps(out, "saved", after=events):
        losses.steps_lost.append(f"kill {number}: started from scratch, though step {newest} was saved")


def _inspect(number: int, out: Path, oracle: Oracle, before: int, losses: Losses) -> int:
    """Compare the checkpoints on disk with the oracle's; return the newest step."""
    root = out / CHECKPOINTS
    there = {s: p for p in published(root) if (s := step_of(p.name)) is not None}
    # Of the acknowledged checkpoints, retention keeps the newest, whatever else was published.
    for step in event_steps(out, "saved")[-1:]:
        # A checkpoint that a save of the same step moved aside is put back by the next life.
        if step not in there and not (root / f".step-{step:08d}.replaced").exists():
            losses.acknowledged_lost.append(f"kill {number}: acknowledged step {step} is not among {list(there)}")
    for step, checkpoint in _good(number, there, losses):
        if step <= before:
            continue
        oracle.advance_to(step)
        wrong = oracle.wrong_tensors(checkpoint)
        if wrong:
            losses.wrong_tensors.append(f"kill {number}: step {step}: {', '.join(wrong[:3])} of {len(wrong)}")
        else:
            oracle.begin_at(checkpoint)
    return max([before, *there])


def _good(number: int, there: dict[int, Path], losses: Losses) -> Iterator[tuple[int, Checkpoint]]:
    for step, path in sorted(there.items()):
        try:
            checkpoint = Checkpoint.open(path)
            checkpoint.verify()
        except CheckpointError as error:
            losses.unloadable.append(f"kill {number}: {error}")
            continue
        yield step, checkpoint


def resume_often(folder: Path, resumes: int, *, seed: int = SEED, progress: Progress = silent) -> dict[str, Any]:
    """Break and resume `resumes` trainings with dropout and background saves; count those that end differently."""
    tokens, tally = write_tokens(folder), Tally(resumes, progress)
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
        tally.add(f"{number}, {dict(layout)}, {weights}, killed at {at}", wrong)
    return {"resumes": resumes, "bitwise_equal": tally.good, "losses": tally.losses}


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
