import datetime
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from ranks import free_port
from trivium.comms.board import Board


@pytest.fixture
def boards(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Board]]:
    """Yield the boards of two ranks that share a store."""
    port = free_port()
    store = dist.TCPStore("127.0.0.1", port, is_master=True, timeout=datetime.timedelta(seconds=20))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    yield [Board(20, 20), Board(20, 20)]
    del store  # the boards need it until here


def test_of_ranks_that_write_the_same_one_alone_is_first(boards: list[Board]) -> None:
    """Two ranks that find the same rank gone write the same text, and only one of them is to report it."""
    assert [board.write_first("failed", "rank 2 is gone") for board in boards] == [True, False]
    assert [board.read(["failed"]) for board in boards] == [["rank 2 is gone"]] * 2


def test_a_later_text_takes_the_place_of_an_earlier_one(boards: list[Board]) -> None:
    ours, theirs = boards
    ours.write("rank 0", "step 1")
    assert ours.read(["rank 0"]) == ["step 1"]  # the store confirms reads, not writes: only now is the text there
    theirs.write("rank 0", "")
    assert theirs.read(["rank 0"]) == [""]
    ours.write("rank 1", "a line\nand one more, é")
    assert ours.read(["rank 0", "rank 1"]) == ["", "a line\nand one more, é"]
    assert (ours.has("rank 0", "rank 1"), ours.has("rank 0", "rank 2")) == (True, False)
    assert not theirs.write_first("rank 0", "step 2")
