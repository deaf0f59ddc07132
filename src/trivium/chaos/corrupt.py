"""Damage a published checkpoint in thousands of ways, one at a time; verification must notice each."""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trivium.chaos.scene import SEED, job, plan, write_tokens
from trivium.checkpoint.format import published
from trivium.checkpoint.load import Checkpoint
from trivium.errors import CheckpointError
from trivium.progress import Progress, silent
from trivium.seeds import generator_for
from trivium.training.loop import CHECKPOINTS
from trivium.training.supervision.job import start

Damage = Callable[[bytes, np.random.Generator], bytes | None]  # None: the file is gone


def flip_bit(content: bytes, draw: np.random.Generator) -> bytes:
    """One bit of one byte."""
    at, bit = int(draw.integers(len(content))), 1 << int(draw.integers(8))
    return content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :]


def zero_sector(content: bytes, draw: np.random.Generator) -> bytes:
    """512 bytes that never reached the disk."""
    at = int(draw.integers(len(content)))
    return content[:at] + bytes(len(content[at : at + 512])) + content[at + 512 :]


def truncate(content: bytes, draw: np.random.Generator) -> bytes:
    """The end is missing."""
    return content[: int(draw.integers(len(content)))]


def lengthen(content: bytes, draw: np.random.Generator) -> bytes:
    """Something was appended."""
    return content + draw.bytes(int(draw.integers(1, 64)))


def swap_bytes(content: bytes, draw: np.random.Generator) -> bytes:
    """Two equally long stretches changed places."""
    size = int(draw.integers(1, max(2, len(content) // 4)))
    a = int(draw.integers(max(1, len(content) // 2 - size)))
    b = int(draw.integers(len(content) // 2, len(content) - size + 1))
    return (
        content[:a]
        + content[b : b + size]
        + content[a + size : b]
        + content[a : a + size]
        + content[b + size :]
    )


def vanish(content: bytes, draw: np.random.Generator) -> None:
    """The file is gone."""
    return


DAMAGES: Mapping[str, Damage] = {
    d.__name__.replace("_", " "): d for d in (flip_bit, zero_sector, truncate, lengthen, swap_bytes, vanish)
}


def corrupt_often(
    folder: Path, *, corruptions: int, seed: int = SEED, progress: Progress = silent
) -> dict[str, Any]:
    """Damage a checkpoint so often; returns how many were not noticed before a tensor was used."""
    began, tokens, out = time.monotonic(), write_tokens(folder), folder / "run"
    start(job(tokens, out, plan({"data": 2}), steps=2))
    (path,) = published(out / CHECKPOINTS)
    draw, kinds, undetected = generator_for(seed, "chaos", "corrupt"), Counter[str](), []
    files = {p: p.read_bytes() for p in sorted(path.iterdir())}
    for number in range(corruptions):
        victim = list(files)[int(draw.integers(len(files)))]
        # Half of all are single bits, the hardest to notice.
        kind = "flip bit" if draw.random() < 0.5 else list(DAMAGES)[int(draw.integers(len(DAMAGES)))]
        damaged = DAMAGES[kind](files[victim], draw)
        while damaged == files[victim]:  # zeros over zeros are no damage
            damaged = flip_bit(files[victim], draw)
        _replace(victim, damaged)
        if not _noticed(path):
            undetected.append(f"corruption {number}: {kind} in {victim.name}")
        _replace(victim, files[victim])
        kinds[kind] += 1
        progress(number + 1, corruptions, f"{len(undetected)} undetected")
    Checkpoint.open(path).verify()
    shutil.rmtree(out)
    return {
        "corruptions": corruptions,
        "undetected": len(undetected),
        "by_kind": dict(kinds),
        "losses": undetected,
        "seconds": time.monotonic() - began,
        "passed": not undetected,
    }


def _replace(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


def _noticed(path: Path) -> bool:
    try:
        Checkpoint.open(path).verify()
    except CheckpointError:
        return True
    return False
