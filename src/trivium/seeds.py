"""The only source of randomness: every random choice names itself, and the name gives its seed."""

import hashlib

import numpy as np


def seed_for(root: int, *names: str | int) -> int:
    """A 63-bit seed for the choice called `names` under the run's `root` seed.

    The same names give the same seed on every rank and layout, so nothing random ever has to be saved,
    sent, or resharded.
    """
    text = "\x1f".join([str(root), *map(str, names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator_for(root: int, *names: str | int) -> np.random.Generator:
    """A numpy generator for the choice called `names`; Philox, so its stream is the same on every platform."""
    return np.random.Generator(np.random.Philox(seed_for(root, *names)))
