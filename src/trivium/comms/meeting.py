"""Rendezvous of ranks that torchrun or a scheduler started: they wait for each other, report missing ranks, and check
that their devices and settings agree.

Without it the first collective would fail after its own timeout and would not name the missing ranks. When thousands of
processes load their libraries from one file system, some start minutes before others.
"""

import datetime
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from trivium.errors import Preempted, TriviumError, error_of
from trivium.units import listed

_REPORT_SECONDS = 5.0  # added to the wait of all ranks but the first, which reports the missing ones
# Shortest pause between two polls. Torch's own wait ignores signals, and warns about each rank that ends.
_POLL_SECONDS = 0.1
MAX_POLLS_PER_SECOND = 1000  # over all ranks, because a single store answers them
_MAX_KEYS_PER_SECOND = 10_000  # of all ranks' reports, which rank 0 looks for in each of its polls
POLLS_OF_THE_FIRST = 2  # by rank 0 at each pause: for the report, and for the other ranks
_CONNECT_SECONDS = 2.0  # time for a host to accept or reject a connection
_ALL_WELL = "0"
_ASKED = "received a request to end before all ranks had connected; nothing was done, and nothing is lost"


class Unmet(Preempted):
    """The job received a request to end while its ranks still waited for each other."""


def _nothing_wrong(said: Sequence[str]) -> TriviumError | None:
    """The default of `find_wrong`: nothing is wrong."""
    return None


def nobody_asks() -> bool:
    """The default of `asked`: no request to end has arrived."""
    return False


def pause_seconds(rank: int, world_size: int) -> float:
    """Return the seconds between two polls of a rank. All ranks together poll at most MAX_POLLS_PER_SECOND.

    The first rank, which decides whether all are there, polls more often; the others share the rest.
    """
    of_first = max(_POLL_SECONDS, world_size / _MAX_KEYS_PER_SECOND)
    left = MAX_POLLS_PER_SECOND - POLLS_OF_THE_FIRST / of_first
    return max(_POLL_SECONDS, (world_size - 1) / left) if rank else of_first


def wait_until_open(host: str, port: int, seconds: float, asked: Callable[[], bool], *, pause: float) -> None:
    """Return when a process listens at the port; try again after each pause. Raises TriviumError after `seconds`, Unmet
    if `asked()` is true."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
            return
        except OSError as error:
            why = error
        if asked():
            raise Unmet(_ASKED)
        if time.monotonic() > deadline:
            raise TriviumError(
                f"nobody answers at {host}:{port}, where rank 0 opens the store at which all ranks meet, within "
                f"{seconds:g} s ({why}); see what its host says"
            )
        time.sleep(pause)


def meet_at(
    store: Any,
    name: str,
    rank: int,
    world_size: int,
    seconds: float,
    *,
    says: str = "",
    find_wrong: Callable[[Sequence[str]], TriviumError | None] = _nothing_wrong,
    asked: Callable[[], bool] = nobody_asks,
) -> None:
    """Return when all ranks are at a store. Raises TriviumError that names those that did not come within `seconds`.

    name: of this rendezvous, for the store's keys. says: what this rank reports to the first one. find_wrong: called
    there with the reports of all ranks in order; the error that it returns is raised on every rank. asked: returns
    whether this rank received a request to end; if one does before all ranks are there, all ranks end with Unmet.
    """
    keys = [f"{name}/{each}" for each in range(world_size)]
    deadline = time.monotonic() + seconds + (_REPORT_SECONDS if rank else 0.0)

    def word() -> str:
        """Return what this rank reports to all ranks, an exit code and a reason, or an empty text."""
        if asked():
            return f"{Unmet.exit_code} {_ASKED}"
        if rank == 0 and store.check(keys):
            wrong = find_wrong([said.decode() for said in store.multi_get(keys)])
            return f"{wrong.exit_code} {wrong}" if wrong else _ALL_WELL
        if time.monotonic() > deadline:
            absent = [place for place, key in enumerate(keys) if not store.check([key])] if rank == 0 else [0]
            return f"{TriviumError.exit_code} {_missing(listed(absent), world_size, seconds)}"
        return ""

    try:
        store.set(keys[rank], says)
        while not store.check([name]):
            if found := word():
                store.compare_set(name, "", found)  # all ranks follow the first report
            else:
                _pause(pause_seconds(rank, world_size), asked)
        told = store.get(name).decode()
        if told != _ALL_WELL:
            _stay_until_told(store, keys, rank)
    except RuntimeError:
        raise Unmet(_ASKED) if asked() else _missing("0", world_size, seconds) from None
    if told != _ALL_WELL:
        code, _, text = told.partition(" ")
        error = Unmet(text) if int(code) == Unmet.exit_code else error_of(int(code), text)
        error.on_every_rank = True
        raise error


def _pause(seconds: float, asked: Callable[[], bool]) -> None:
    """Return after some seconds, or soon after this rank received a request to end."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not asked():
        time.sleep(min(left, _POLL_SECONDS))


def _missing(ranks: str, world_size: int, seconds: float) -> TriviumError:
    return TriviumError(
        f"of {world_size} ranks these did not come within {seconds:g} s: {ranks}; see what their hosts say"
    )


def _stay_until_told(store: Any, keys: Sequence[str], rank: int) -> None:
    """Keep the first rank, whose process may run the store, alive until the others have read the report."""
    store.set(f"{keys[rank]}/told", "")
    if rank == 0:
        here = [f"{key}/told" for key in keys if store.check([key])]
        seconds = _REPORT_SECONDS + pause_seconds(1, len(keys))
        with suppress(RuntimeError):
            store.wait(here, datetime.timedelta(seconds=seconds))
