"""Ranks start, fail and end as the launcher promises."""

import os
import signal
import time

import pytest

from trivium.errors import DataError, TriviumError
from trivium.parallel.launch import Place, RankFailed, connected, run_ranks, start_ranks


def fail_on_one(place: Place) -> None:
    with connected(place, timeout_seconds=20):
        if place.rank == 1:
            raise DataError(f"rank {place.rank} met bad data")
        time.sleep(30)


def test_the_first_failure_is_reported_with_its_rank_and_the_others_end_at_once() -> None:
    begin = time.monotonic()
    with pytest.raises(RankFailed, match="rank 1 of 3: rank 1 met bad data") as failure:
        run_ranks(fail_on_one, 3)
    assert failure.value.rank == 1 and failure.value.exits[1] == DataError.exit_code
    assert time.monotonic() - begin < 15


def sleep_forever(place: Place) -> None:
    time.sleep(60)


def test_a_killed_rank_is_named_with_its_signal() -> None:
    ranks = start_ranks(sleep_forever, 2)
    os.kill(ranks.pids[1], signal.SIGKILL)
    with pytest.raises(RankFailed, match="rank 1 of 2: killed by SIGKILL") as failure:
        ranks.wait()
    assert failure.value.signal == signal.SIGKILL
    assert all(p.exitcode is not None for p in ranks.processes)


def test_a_hang_ends_with_the_ranks_that_hang_named() -> None:
    with pytest.raises(TriviumError, match=r"ranks \[0, 1\] did not finish"):
        run_ranks(sleep_forever, 2, timeout_seconds=0.5)
