"""Ranks start, fail and end as the launcher promises."""

import os
import signal
import time

import pytest

from trivium.errors import ConfigError, DataError, TriviumError
from trivium.parallel.launch import Place, RankFailed, connected, run_ranks, start_ranks, torchrun_place

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29400"}


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


def test_torchrun_gives_a_place_and_without_it_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torchrun_place() is None
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert torchrun_place() == Place(1, 2, 1, "env://")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert torchrun_place() == Place(1, 2, 0, "env://")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"MASTER_PORT": ""}, "lacks MASTER_PORT"),
        ({"RANK": "5"}, "RANK=5, WORLD_SIZE=2"),
        ({"RANK": "-1"}, "RANK=-1"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE=two"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT=http"),
        ({"MASTER_ADDR": "", "TORCHELASTIC_RUN_ID": "x"}, "lacks MASTER_ADDR"),
    ],
)
def test_a_place_among_ranks_that_cannot_meet_is_refused_at_once(
    wrong: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (TORCHRUN | wrong).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=told):
        torchrun_place()
