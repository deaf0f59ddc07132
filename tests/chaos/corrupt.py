"""Damage a published checkpoint thousands of times, one way at a time: verification must detect each damage."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from chaos.scene import SEED, job, plan, verifies, write_tokens
from trivium.checkpoint.format import published
from trivium.progress import Progress, silent
from trivium.seeds import generator_for
from trivium.training.loop import CHECKPOINTS
from trivium.training.supervision.job import start


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
