"""The only source of randomness: every random choice has a name, which determines its seed."""

import hashlib

import numpy as np


def seed_for(root: int, *names: str | int) -> int:
    """Return a 63-bit seed for the choice `names` under the run's `root` seed.

    The same names give the same seed on every rank and in every layout, so random state never has to be saved, sent
    or resharded.
    """
    text = "\x1f".join([str(root), *map(str, names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator_for(root: int, *names: str | int) -> np.random.Generator:
    """Return a numpy generator for the choice `names`. Philox gives the same stream on every platform."""
    return np.random.Generator(np.random.Philox(seed_for(root, *names)))
