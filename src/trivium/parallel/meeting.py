"""Ranks that others started wait for one another, and name those that do not come.

By itself torch lets the first collective find out, in the time that a collective has, and names nobody: where thousands
of processes read their libraries from one file system, some are there minutes before others.
"""

import datetime
from collections.abc import Sequence
from typing import Any

from trivium.errors import TriviumError
from trivium.units import listed

_TELLING_SECONDS = 5.0  # that ranks wait longer than the first one, which then says who is missing


def meet_at(store: Any, name: str, rank: int, world_size: int, seconds: float) -> None:
    """Return when all ranks are at a store; TriviumError names those that did not come within so many seconds.

    name: of this meeting, for the store's keys.
    """
    keys = [f"{name}/{each}" for each in range(world_size)]
    store.set(keys[rank], "")
    try:
        if rank == 0:
            store.set(name, listed(_absent(store, keys, seconds)))
        else:
            store.wait([name], datetime.timedelta(seconds=seconds + _TELLING_SECONDS))
        missing = store.get(name).decode()
        if missing:
            _stay_until_told(store, keys, rank)
    except RuntimeError:
        missing = "0"
    if missing:
        raise TriviumError(
            f"of {world_size} ranks these did not come within {seconds:g} s: {missing}; see what their hosts say"
        )


def _absent(store: Any, keys: Sequence[str], seconds: float) -> list[int]:
    """The places of those keys that nobody has set in time."""
    try:
        store.wait(list(keys), datetime.timedelta(seconds=seconds))
        return []
    except RuntimeError:
        return [place for place, key in enumerate(keys) if not store.check([key])]


def _stay_until_told(store: Any, keys: Sequence[str], rank: int) -> None:
    """The first rank, in whose process the store may be, ends only when those that are here know who is not."""
    store.set(f"{keys[rank]}/told", "")
    if rank == 0:
        here = [key for key in keys if store.check([key])]
        _absent(store, [f"{key}/told" for key in here], _TELLING_SECONDS)
