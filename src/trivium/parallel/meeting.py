"""Ranks that others started wait for one another, name those that do not come, and look whether they fit together.

By itself torch lets the first collective find out, in the time that a collective has, and names nobody: where thousands
of processes read their libraries from one file system, some are there minutes before others.
"""

import datetime
from collections.abc import Callable, Sequence
from typing import Any

from trivium.errors import TriviumError, error_of
from trivium.units import listed

_TELLING_SECONDS = 5.0  # that ranks wait longer than the first one, which then says who is missing


def _nothing_wrong(said: Sequence[str]) -> TriviumError | None:
    """The default finding."""
    return None


def meet_at(
    store: Any,
    name: str,
    rank: int,
    world_size: int,
    seconds: float,
    *,
    says: str = "",
    find_wrong: Callable[[Sequence[str]], TriviumError | None] = _nothing_wrong,
) -> None:
    """Return when all ranks are at a store; TriviumError names those that did not come within so many seconds.

    name: of this meeting, for the store's keys. says: what this rank tells the first one. find_wrong: asked there, of
    what all ranks said in their order; the error it returns is raised on every rank.
    """
    keys = [f"{name}/{each}" for each in range(world_size)]
    store.set(keys[rank], says)
    try:
        if rank == 0:
            absent = _absent(store, keys, seconds)
            if absent:
                wrong: TriviumError | None = _missing(listed(absent), world_size, seconds)
            else:
                wrong = find_wrong([said.decode() for said in store.multi_get(keys)])
            store.set(name, f"{wrong.exit_code} {wrong}" if wrong else "")
        else:
            store.wait([name], datetime.timedelta(seconds=seconds + _TELLING_SECONDS))
        told = store.get(name).decode()
        if told:
            _stay_until_told(store, keys, rank)
    except RuntimeError:
        raise _missing("0", world_size, seconds) from None
    if told:
        code, _, text = told.partition(" ")
        raise error_of(int(code), text)


def _missing(ranks: str, world_size: int, seconds: float) -> TriviumError:
    return TriviumError(
        f"of {world_size} ranks these did not come within {seconds:g} s: {ranks}; see what their hosts say"
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
