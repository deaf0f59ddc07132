"""Ranks that wait for one another end when one of them is asked to."""

import os
import time

import pytest

from ranks import free_port
from trivium.comms.launch import Place, connected, run_ranks
from trivium.comms.meeting import Unmet

ALL = range(4)


def wait_in_vain(place: Place, port: int, absent: int, asked: tuple[int, ...]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(place.world_size)}
    if place.rank == absent:
        return
    begin = time.monotonic()

    def is_asked() -> bool:
        return place.rank in asked and time.monotonic() > begin + 0.5

    here = Place(place.rank, place.world_size, 0, "env://", place.world_size)
    with pytest.raises(Unmet), connected(here, meeting_seconds=60.0, asked=is_asked):
        pass


@pytest.mark.parametrize(("absent", "asked"), [(3, (0,)), (3, (2,)), (3, tuple(ALL)), (0, tuple(ALL))], ids=str)
def test_one_that_is_asked_to_end_ends_all_that_wait_for_the_last(absent: int, asked: tuple[int, ...]) -> None:
    """Where the first has not come there is no place to tell the others: each is asked itself."""
    run_ranks(wait_in_vain, len(ALL), free_port(), absent, asked, timeout_seconds=20)
