"""Rows that are read ahead are those of a step that reads for itself."""

import threading

import numpy as np
import pytest

from trivium.errors import DataError
from trivium.tokens.rows import Rows
from trivium.training.ahead import ReadAhead
from trivium.training.trainer import Samples

SEQUENCES, RANKS = 4, 2


class Source:
    """Rows that hold the numbers of their samples, and the threads that read them."""

    def __init__(self) -> None:
        self.readers: list[str] = []

    def read(self, first: int, count: int) -> Rows:
        if first < 0:
            raise DataError("sample -1 cannot be read")
        self.readers.append(threading.current_thread().name)
        return Rows.of_text(np.arange(first, first + count)[:, None].repeat(3, axis=1))


def of_step(step: int, read) -> Samples:
    return Samples(step * SEQUENCES, SEQUENCES, read)


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_thread_reads_each_step_but_the_first(rank: int) -> None:
    source = Source()
    ahead = ReadAhead(source.read, rank, RANKS)
    for step in range(3):
        ahead.begin(of_step(step + 1, source.read))
        samples = of_step(step, ahead.rows)
        rows = samples.rows(samples.share(rank, RANKS))
        assert rows.tokens[:, 0].tolist() == [step * SEQUENCES + rank * 2, step * SEQUENCES + rank * 2 + 1]
    assert sum(not name.startswith("rows") for name in source.readers) == 1


def test_other_samples_than_those_begun_are_read_when_they_are_asked_for() -> None:
    source = Source()
    ahead = ReadAhead(source.read, 0, 1)
    ahead.begin(of_step(1, source.read))
    ahead.begin(of_step(2, source.read))
    assert ahead.rows(40, 2).tokens[:, 0].tolist() == [40, 41]


def test_an_error_of_the_thread_is_raised_in_the_step_that_needs_the_rows() -> None:
    source = Source()
    ahead = ReadAhead(source.read, 0, 1)
    ahead.begin(of_step(-1, source.read))
    ahead.begin(of_step(0, source.read))
    with pytest.raises(DataError, match="sample -1"):
        ahead.rows(-SEQUENCES, SEQUENCES)
