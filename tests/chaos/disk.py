"""Damage the files of a training: change a checkpoint, which verification must detect, or refuse writes, after which
training must continue."""

import contextlib
import resource
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from chaos.life import Life
from chaos.scene import LAYOUTS, SEED, Tally, event_steps, job, plan, verifies, write_tokens
from trivium.checkpoint.format import published
from trivium.progress import Progress, silent
from trivium.seeds import generator_for
from trivium.training.metrics import EVENTS, METRICS, last_step, read
from trivium.training.record import CHECKPOINTS
from trivium.training.supervision.job import start

GOOD_SAVES = 3  # before the disk is full
FAILED_SAVES = 2  # before it has room again


def flip_bit(content: bytes, draw: np.random.Generator) -> bytes:
    at, bit = int(draw.integers(len(content))), 1 << int(draw.integers(8))
    return content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :]


def zero_sector(content: bytes, draw: np.random.Generator) -> bytes:
    """Clear 512 bytes, as if they had never reached the disk."""
    at = int(draw.integers(len(content)))
    return content[:at] + bytes(len(content[at : at + 512])) + content[at + 512 :]


def truncate(content: bytes, draw: np.random.Generator) -> bytes:
    return content[: int(draw.integers(len(content)))]


def lengthen(content: bytes, draw: np.random.Generator) -> bytes:
    return content + draw.bytes(int(draw.integers(1, 64)))


def swap_bytes(content: bytes, draw: np.random.Generator) -> bytes:
    """Exchange two ranges of equal length."""
    size = int(draw.integers(1, max(2, len(content) // 4)))
    a = int(draw.integers(max(1, len(content) // 2 - size)))
    b = int(draw.integers(len(content) // 2, len(content) - size + 1))
    first, second = content[a : a + size], content[b : b + size]
    return content[:a] + second + content[a + size : b] + first + content[b + size :]


def vanish(content: bytes, draw: np.random.Generator) -> None:
    """Return None, which tells the caller to delete the file."""


DAMAGES = {d.__name__.replace("_", " "): d for d in (flip_bit, zero_sector, truncate, lengthen, swap_bytes, vanish)}


def corrupt_often(folder: Path, corruptions: int, *, seed: int = SEED, progress: Progress = silent) -> dict[str, Any]:
    """Damage a checkpoint `corruptions` times; count what `verify` did not detect."""
    out = folder / "run"
    start(job(write_tokens(folder), out, plan({"data": 2}), steps=2))
    (path,) = published(out / CHECKPOINTS)
    draw, kinds, losses = generator_for(seed, "chaos", "corrupt"), Counter[str](), list[str]()
    files = {p: p.read_bytes() for p in sorted(path.iterdir())}
    for number in range(corruptions):
        victim = list(files)[int(draw.integers(len(files)))]
        # Half of them flip a single bit, which is the hardest to detect.
        kind = "flip bit" if draw.random() < 0.5 else list(DAMAGES)[int(draw.integers(len(DAMAGES)))]
        damaged = DAMAGES[kind](files[victim], draw)
        while damaged == files[victim]:  # for example zeros over zeros
            damaged = flip_bit(files[victim], draw)
        if damaged is None:
            victim.unlink()
        else:
            victim.write_bytes(damaged)
        if verifies(path):
            losses.append(f"corruption {number}: {kind} in {victim.name}")
        victim.write_bytes(files[victim])
        kinds[kind] += 1
        progress(number + 1, corruptions, f"{len(losses)} undetected")
    assert verifies(path), "the restored checkpoint must be good"
    return {"corruptions": corruptions, "undetected": len(losses), "by_kind": dict(kinds), "losses": losses}


def fill_often(folder: Path, fillings: int, *, seed: int = SEED, progress: Progress = silent) -> dict[str, Any]:
    """Fill the disk of `fillings` trainings: RLIMIT_FSIZE keeps a rank's files below the size of what it saves."""
    tokens, tally = write_tokens(folder), Tally(fillings, progress)
    draw = generator_for(seed, "chaos", "disk full")
    for number in range(fillings):
        layout = LAYOUTS[number % len(LAYOUTS)]
        tally.add(f"filling {number}, {dict(layout)}", _fill(folder, tokens, number, draw))
    return {"fillings": fillings, "went_on": tally.good, "losses": tally.losses}


def _fill(folder: Path, tokens: Path, number: int, draw: np.random.Generator) -> list[str]:
    out = folder / f"full-{number}"
    mode = ("background", "waiting")[int(draw.integers(2))]
    given = plan(LAYOUTS[number % len(LAYOUTS)])
    life = Life.begin(job(tokens, out, given, save=mode, save_failures=100_000), folder / f"log-{number}.txt")
    life.wait_for(lambda: len(event_steps(out, "saved")) >= GOOD_SAVES)
    time.sleep(float(draw.uniform(0, 0.1)))
    ranks = life.ranks
    full = [r for r in ranks if draw.random() < 0.5] or ranks[:1]
    saved, limit = _acknowledged(out), int(draw.integers(30_000, 60_000))
    for rank in full:
        _limit(rank, limit)
    life.wait_for(lambda: len(event_steps(out, "save failed")) >= FAILED_SAVES)
    newest, step = _acknowledged(out), last_step(out / METRICS)
    # A newer checkpoint may have replaced the newest acknowledged one meanwhile.
    good = any(verifies(p) for p in published(out / CHECKPOINTS) if p.name >= f"step-{newest:08d}")
    wrong = [] if newest >= saved and good else [f"the checkpoint of step {newest} was lost"]
    for rank in full:
        _limit(rank, resource.RLIM_INFINITY)
    continued = life.wait_for(lambda: _acknowledged(out) > max(newest, step))
    life.kill(launcher=True, victim=0)
    if not continued:
        wrong.append(f"training did not continue and save after step {step}")
    causes = [e["cause"] for e in read(out / EVENTS) if e["event"] == "save failed"]
    if not all("needed" in c and "free" in c and str(out) in c for c in causes):
        wrong.append(f"an error lacks the path, the bytes needed or the bytes free: {causes[0]}")
    return wrong + [f"{p.name} is damaged" for p in published(out / CHECKPOINTS) if not verifies(p)]


def _acknowledged(out: Path) -> int:
    return (event_steps(out, "saved") or [0])[-1]


def _limit(rank: int, limit: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        hard = resource.prlimit(rank, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(rank, resource.RLIMIT_FSIZE, (limit, hard))
