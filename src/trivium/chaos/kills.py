"""Kill a training at random instants, hundreds of times, on changing layouts; and count what was lost."""

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

from trivium.chaos.life import Life
from trivium.chaos.scene import LAYOUTS, SEED, Oracle, job, plan, write_tokens
from trivium.checkpoint.format import published, step_of
from trivium.checkpoint.load import Checkpoint
from trivium.errors import CheckpointError, ConfigError, DataError
from trivium.interchange.bring import import_hf
from trivium.interchange.export import export_hf
from trivium.progress import Progress, silent
from trivium.seeds import generator_for
from trivium.training.loop import CHECKPOINTS, TrainingJob
from trivium.training.metrics import EVENTS, METRICS, last_step, read

PHASES = ("training", "saving", "publishing", "retention", "export")


@dataclass
class Losses:
    """What kills cost; every list must stay empty. Each entry says which kill and what."""

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
    folder: Path, *, kills: int, layouts: int, seed: int = SEED, progress: Progress = silent
) -> dict[str, Any]:
    """Let a training live and be killed so often; returns the counts and what was lost.

    After each death: every published checkpoint verifies and holds what an unbroken training computes; what was
    acknowledged and is to be kept is there; the next life goes on from the newest one.
    """
    if layouts > len(LAYOUTS):
        raise ConfigError(f"--layouts ({layouts}) must be at most {len(LAYOUTS)}: so many are there")
    began, tokens, out = time.monotonic(), write_tokens(folder), folder / "run"
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
        alone = _one_life(job(tokens, out, plan(given), save=mode), folder / "log.txt", phase, draw)
        losses.ended_by_themselves += [f"kill {number}, {dict(given)}: {alone}"] if alone else []
        used[str(dict(given))] += 1
        _went_on(number, read(out / EVENTS)[events:], newest, losses)
        newest = _inspect(number, out, oracle, newest, losses)
        progress(number + 1, kills, f"{losses.total} losses, step {newest}")
    return {
        "kills": kills,
        "layouts": len(used),
        "steps": newest,
        "seconds": time.monotonic() - began,
        "by_phase": dict(phases),
        "by_layout": dict(used),
        "exports": dict(ends),
        **{name: len(found) for name, found in vars(losses).items()},
        "losses": [f"{name}: {what}" for name, found in vars(losses).items() for what in found],
        "passed": losses.total == 0,
    }


def _one_life(of: TrainingJob, log: Path, phase: str, draw: np.random.Generator) -> str:
    """Live until the phase is seen and a random while longer; then a rank or the launcher is killed. Returns how it
    ended by itself, if it did before that."""
    root, metrics, events = of.out / CHECKPOINTS, of.out / METRICS, of.out / EVENTS
    told, step = len(read(events)), last_step(metrics)
    life = Life.begin(of, log)
    seen: dict[str, Callable[[], bool]] = {
        "training": lambda: True,
        "export": lambda: True,  # there was nothing to export yet
        "saving": lambda: any(root.glob(".step-*.partial")),
        "publishing": lambda: any(root.glob(".step-*.partial/manifest.json")),
        "retention": lambda: any(root.glob(".step-*.removed")),
    }
    # Now and then much earlier: while the ranks start, read the checkpoint, or clear up.
    if draw.random() < 0.1:
        time.sleep(float(draw.uniform(0, 0.5)))
    else:
        life.wait_for(lambda: bool(_resumed_or_saved(read(events)[told:])) or last_step(metrics) > step)
        life.wait_for(seen[phase])
        time.sleep(float(draw.exponential(0.003 if phase != "training" else 0.05)))
    alone = life.own_end
    life.kill(launcher=bool(draw.random() < 0.3), victim=int(draw.integers(8)))
    return alone


def _export_seconds(out: Path, to: Path) -> float:
    """Of an export that nothing happens to, after one that has imported what those forked from here need not."""
    newest = published(out / CHECKPOINTS)[-1]
    _export(newest, to)
    shutil.rmtree(to)
    began, process = time.monotonic(), get_context("fork").Process(target=_export, args=(newest, to))
    process.start()
    process.join()
    shutil.rmtree(to)
    return time.monotonic() - began


def _one_export(
    number: int, out: Path, to: Path, seconds: float, draw: np.random.Generator, losses: Losses
) -> str:
    """Kill an export at a random instant of the seconds that it takes: its folder is whole, or not there; which."""
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
            losses.half_exports.append(f"kill {number}: a finished export is not there")
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


def _went_on(number: int, events: list[dict[str, Any]], newest: int, losses: Losses) -> None:
    """A life that came so far as to resume must have gone on from the newest checkpoint."""
    resumed = [e["step"] for e in events if e["event"] == "resumed"]
    if resumed and resumed[0] < newest:
        losses.steps_lost.append(f"kill {number}: went on from {resumed[0]}, and {newest} was there")
    if newest and not resumed and any(e["event"] == "saved" for e in events):
        losses.steps_lost.append(f"kill {number}: began anew, and {newest} was there")


def _resumed_or_saved(events: list[dict[str, Any]]) -> list[int]:
    return [e["step"] for e in events if e["event"] in ("resumed", "saved")]


def _saved(out: Path) -> list[int]:
    """The steps whose checkpoints were acknowledged, in order."""
    return [e["step"] for e in read(out / EVENTS) if e["event"] == "saved"]


def _inspect(number: int, out: Path, oracle: Oracle, before: int, losses: Losses) -> int:
    """Compare what is on disk with what must be; returns the newest step there."""
    root, acknowledged = out / CHECKPOINTS, _saved(out)
    there = {s: p for p in published(root) if (s := step_of(p.name)) is not None}
    for step in _awaited(acknowledged):
        # Moved aside by a save of the same step: the next life puts it back.
        if step not in there and not (root / f".step-{step:08d}.replaced").exists():
            losses.acknowledged_lost.append(
                f"kill {number}: step {step}, acknowledged, is not among {list(there)}"
            )
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


def _awaited(acknowledged: list[int]) -> list[int]:
    """Of all acknowledged ones, what retention keeps whatever else was published: the newest."""
    return acknowledged[-1:]


def _good(number: int, there: dict[int, Path], losses: Losses) -> Iterator[tuple[int, Checkpoint]]:
    for step, path in sorted(there.items()):
        try:
            checkpoint = Checkpoint.open(path)
            checkpoint.verify()
        except CheckpointError as error:
            losses.unloadable.append(f"kill {number}: {error}")
            continue
        yield step, checkpoint
