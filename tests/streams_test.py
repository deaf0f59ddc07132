"""Whether NCCL operations of several ranks complete or deadlock, for traces whose outcome is known."""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
SUM = "ask s1 c all_reduce 8 9 0"


@pytest.fixture()
def streams(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import streams

    return streams


def joined(rank: int, *lines: str, size: int = 2, names: Sequence[str] = "c") -> list[str]:
    return [*(f"join {name} {size} {rank}" for name in names), *lines]


def sent(peer: int, stream: str = "s1", count: int = 8) -> str:
    return f"ask {stream} c send {count} 9 {peer}"


def received(peer: int, stream: str = "s1", count: int = 8) -> str:
    return f"ask {stream} c receive {count} 9 {peer}"


def test_requests_that_meet_are_counted(streams: ModuleType):
    there = [[*joined(r, SUM, "ask s1 c all_gather 4 7 0"), "await device"] for r in (0, 1)]
    found = streams.meet(there)
    assert found.communicators == 1 and found.parts == {"all_reduce": 2, "all_gather": 2}


@pytest.mark.parametrize("other", ["all_reduce 9 9 0", "all_reduce 8 7 0", "all_reduce 8 9 2", "reduce_scatter 8 9 0"])
def test_a_sum_is_the_same_on_all_ranks(streams: ModuleType, other: str):
    with pytest.raises(streams.Apart, match="request 0"):
        streams.meet([joined(0, SUM), joined(1, f"ask s1 c {other}")])


def test_a_rank_that_never_comes_is_waited_for_in_vain(streams: ModuleType):
    with pytest.raises(streams.Apart, match=r"rank 0.*in all_reduce of 8"):
        streams.meet([joined(0, SUM), joined(1)])
    with pytest.raises(streams.Apart, match="rank 0: host at join"):
        streams.meet([joined(0), []])


def test_nothing_is_buffered(streams: ModuleType):
    """Two ranks that both send first wait for each other, but in one group."""
    circle = [joined(r, sent(1 - r), received(1 - r)) for r in (0, 1)]
    with pytest.raises(streams.Apart):
        streams.meet(circle)
    streams.meet([joined(0, sent(1), received(1)), joined(1, received(0), sent(0))])
    streams.meet([joined(r, "group", sent(1 - r), received(1 - r), "end") for r in (0, 1)])


def test_a_communicator_is_asked_in_order_whatever_the_streams(streams: ModuleType):
    with pytest.raises(streams.Apart):
        streams.meet([joined(r, sent(1 - r, "s1"), received(1 - r, "s2")) for r in (0, 1)])


def test_messages_are_paired_by_their_order_and_have_to_be_taken_for_the_same(streams: ModuleType):
    def tagged(ask: str, *tags: int) -> list[str]:
        return [line for tag in tags for line in (f"tag {tag}", ask)]

    streams.meet([joined(0, *tagged(sent(1), 3, 5)), joined(1, *tagged(received(0), 3, 5))])
    with pytest.raises(streams.Apart, match="tag=3"):
        streams.meet([joined(0, *tagged(sent(1), 3, 5)), joined(1, *tagged(received(0), 5, 3))])


TWO = "ask s2 d all_reduce 8 9 0"


def test_communicators_do_not_wait_for_each_other_but_one_at_a_time_they_do(streams: ModuleType):
    crossed = [joined(0, SUM, TWO, names="cd"), joined(1, TWO, SUM, names="cd")]
    streams.meet(crossed)
    with pytest.raises(streams.Apart):
        streams.meet(crossed, one_at_a_time=True)


def test_a_stream_that_waits_for_an_event_holds_what_comes_after_it(streams: ModuleType):
    """Rank 0's second sum begins after its first, rank 1's first after its second."""
    ordered = joined(0, SUM, "record s1 e", "after s2 e", TWO, names="cd")
    streams.meet([ordered, joined(1, SUM, TWO, names="cd")])
    with pytest.raises(streams.Apart, match="waiting for a place in stream s1"):
        streams.meet([ordered, joined(1, TWO, "record s2 e", "after s1 e", SUM, names="cd")])
    # An event means what was recorded last before it was waited for, and nothing where nothing was.
    streams.meet([joined(0, "after s1 e", SUM), joined(1, SUM)])


@pytest.mark.parametrize("wait", ["await stream s1", "await device", "record s1 e\nawait event e"])
def test_a_host_that_waits_asks_for_nothing_meanwhile(streams: ModuleType, wait: str):
    waits = joined(0, SUM, *wait.split("\n"), TWO, names="cd")
    streams.meet([waits, joined(1, SUM, TWO, names="cd")])
    with pytest.raises(streams.Apart, match="rank 0: host at await"):
        streams.meet([waits, joined(1, TWO, "await stream s2", SUM, names="cd")])


def test_a_split_communicator_has_the_ranks_that_chose_its_color_by_their_keys(streams: ModuleType):
    def split(rank: int, color: int, key: int, *lines: str) -> list[str]:
        return joined(rank, f"split c mine {color} {key}", *lines, size=4)

    here, there = "ask s1 mine send 8 9 1", "ask s1 mine receive 8 9 0"
    streams.meet([split(0, 7, 0, here), split(1, 9, 5, there), split(2, 7, 1, there), split(3, 9, 2, here)])
    with pytest.raises(streams.Apart):
        streams.meet([split(0, 7, 0, here), split(1, 9, 2, there), split(2, 7, 1, there), split(3, 9, 5, here)])
    left_out = joined(3, "split c - 0 0", size=4)
    three = [split(r, 7, r, "ask s1 mine all_reduce 8 9 0") for r in range(3)]
    assert streams.meet([*three, left_out]).parts == {"all_reduce": 3}


def test_every_fault_is_found(streams: ModuleType):
    def rank(r: int) -> list[str]:
        message = sent(1) if r == 0 else received(0)
        return joined(r, SUM, "tag 1", message, "tag 2", message, "ask s1 c all_reduce 5 9 0", SUM)

    traces = [rank(0), rank(1)]
    streams.meet(traces)
    for r in (0, 1):
        seeded = streams.faults(traces, r)
        assert len(seeded) == 5
        for changed in seeded.values():
            assert changed[1 - r] == traces[1 - r] and changed[r] != traces[r]
            with pytest.raises(streams.Apart):
                streams.meet(changed)


RECORDED = ["recording 1 s1", SUM, "recorded 1"]


def test_what_is_recorded_is_done_at_its_replays(streams: ModuleType):
    """Between what the stream of a replay was given before and later."""
    once = [*RECORDED, "replay 1 s2", "replay 1 s2"]
    assert streams.meet([joined(0, *once), joined(1, SUM, SUM)]).parts == {"all_reduce": 4}
    with pytest.raises(streams.Apart):
        streams.meet([joined(0, *RECORDED), joined(1, SUM)])
    lines = [*RECORDED, "ask s2 d all_reduce 8 9 0", "replay 1 s2", "ask s2 d all_gather 8 9 0"]
    other = ["ask a d all_reduce 8 9 0", SUM, "ask b d all_gather 8 9 0"]
    streams.meet([joined(r, *each, names="cd") for r, each in enumerate((lines, other))])
    crossed = ["ask s2 d all_reduce 8 9 0", "record s2 e", "after s1 e", SUM]
    circle = [*RECORDED, "replay 1 s2", "ask s2 d all_reduce 8 9 0"]
    with pytest.raises(streams.Apart):
        streams.meet([joined(r, *each, names="cd") for r, each in enumerate((circle, crossed))])


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["record s1 e", "after s2 e", "ask s2 c all_reduce 8 9 0"], "never waited for: streams s2"),
        (["record s1 e", "after s2 e"], "never waited for: streams s2"),
        (["ask s2 c all_reduce 8 9 0"], "its stream is not recorded"),
        (["after s1 e"], "cannot wait for what is not"),
        (["record s2 e", "after s1 e"], "cannot wait for what is not"),
        (["await event e"], "not while a stream is recorded"),
    ],
)
def test_a_device_would_not_record_everything(streams: ModuleType, lines: list[str], says: str):
    with pytest.raises(streams.Apart, match=says):
        streams.meet([joined(0, "recording 1 s1", *lines, "recorded 1", size=1)])


def test_a_stream_that_waits_for_a_recorded_one_is_recorded_until_that_waits_for_it(streams: ModuleType):
    fork = ["record s1 e", "after s2 e", "ask s2 c all_reduce 8 9 0", "record s2 f", "after s1 f"]
    lines = ["recording 1 s1", *fork, "recorded 1", "replay 1 s3"]
    assert streams.meet([joined(0, *lines, size=1)]).parts == {"all_reduce": 1}
