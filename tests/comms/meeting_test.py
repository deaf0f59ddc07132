"""Ranks that wait for one another end when one of them is asked to."""

import os
import time
from functools import cache
from multiprocessing import get_context
from typing import Any

import pytest

from ranks import free_port
from trivium.comms import meeting
from trivium.comms.launch import Place, connected, run_ranks
from trivium.comms.meeting import MAX_POLLS_PER_SECOND, POLLS_OF_THE_FIRST, Unmet, meet_at, pause_seconds

ALL = range(4)


def wait_in_vain(place: Place, port: int, absent: int, asked: tuple[int, ...], all_wait: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(place.world_size)}
    if place.rank == absent:
        return

    @cache
    def begin() -> float:
        all_wait.wait()  # who is late would look for a first rank that has ended
        return time.monotonic()

    def is_asked() -> bool:
        return time.monotonic() > begin() + 1.0 and place.rank in asked

    here = Place(place.rank, place.world_size, 0, "env://", place.world_size)
    with pytest.raises(Unmet), connected(here, meeting_seconds=60.0, asked=is_asked):
        pass


@pytest.mark.parametrize(("absent", "asked"), [(3, (0,)), (3, (2,)), (3, tuple(ALL)), (0, tuple(ALL))], ids=str)
def test_one_that_is_asked_to_end_ends_all_that_wait_for_the_last(absent: int, asked: tuple[int, ...]) -> None:
    """Where the first has not come there is no place to tell the others: each is asked itself."""
    all_wait = get_context("fork").Barrier(len(ALL) - 1)
    run_ranks(wait_in_vain, len(ALL), free_port(), absent, asked, all_wait, timeout_seconds=20)


@pytest.mark.parametrize("world_size", [2**n + more for n in range(1, 15) for more in (0, 1)])
def test_one_store_is_polled_at_most_1000_times_a_second(world_size: int) -> None:
    first, other = (1 / pause_seconds(rank, world_size) for rank in (0, world_size - 1))
    polls = POLLS_OF_THE_FIRST * first + (world_size - 1) * other
    assert polls <= MAX_POLLS_PER_SECOND * (1 + 1e-9)
    assert other == pytest.approx(10) or polls == pytest.approx(MAX_POLLS_PER_SECOND), "no longer than necessary"


class Store:
    """A store at which not all ranks are, by a clock that only sleep advances. polls: seconds of all requests."""

    def __init__(self, monkeypatch) -> None:
        self.now, self.polls, self.values = 0.0, [], {}
        monkeypatch.setattr(meeting.time, "sleep", self.sleep)
        monkeypatch.setattr(meeting.time, "monotonic", lambda: self.now)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def check(self, keys: list[str]) -> bool:
        self.polls.append(self.now)
        return all(key in self.values for key in keys)

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def compare_set(self, key: str, _: str, value: str) -> None:
        self.values.setdefault(key, value)

    def get(self, key: str) -> bytes:
        return self.values[key].encode()


@pytest.mark.parametrize("world_size", [4, 16_384])
def test_a_rank_polls_as_often_as_it_may_and_ends_soon_after_a_request(monkeypatch, world_size: int) -> None:
    store = Store(monkeypatch)
    with pytest.raises(Unmet):
        meet_at(store, "here", 3, world_size, 600.0, asked=lambda: store.now > 99.0)
    assert store.now < 99.5
    before = [at for at in store.polls if at < 99.0]
    assert len(before) == pytest.approx(99.0 / pause_seconds(3, world_size), abs=1.5)
