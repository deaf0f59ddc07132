"""A group that loses its time in communication is told; ranks that wait for a slow rank are not."""

import time
from pathlib import Path

import pytest

from chaos.scene import job, plan, write_tokens
from trivium.comms.group import Group
from trivium.plan.layout import Layout
from trivium.training.metrics import EVENTS, read
from trivium.training.observers.slow_links import COLUMNS, SlowLink, slow_in
from trivium.training.supervision.job import start


def table(ranks: int, **columns: list[float]) -> dict[str, list[float]]:
    return {name: columns.get(name, [0.0] * ranks) for name in COLUMNS}


def test_a_group_whose_members_all_wait_is_told_and_no_other() -> None:
    layout = Layout(tensor=2, data=2)
    seconds = table(4, work=[1.0] * 4, tensor=[9.0, 9.0, 0.1, 0.1], gradients=[0.1, 0.1, 9.0, 9.0])
    assert slow_in(seconds, layout, 10.0, 0.0, 1.5) == [SlowLink("tensor", (0, 1), 9.0, 10.0, 0.0)]


def test_a_rank_that_others_wait_for_is_no_slow_link() -> None:
    seconds = table(2, work=[10.0, 1.0], gradients=[0.0, 9.0])
    assert slow_in(seconds, Layout(data=2), 10.0, 1.0, 1.5) == []


def test_stages_that_work_in_turn_are_no_slow_link_and_those_that_all_wait_are() -> None:
    layout = Layout(pipeline=4)
    assert slow_in(table(4, work=[1.0] * 4), layout, 4.0, 0.0, 1.5) == []
    (slow,) = slow_in(table(4, work=[1.0] * 4), layout, 20.0, 0.0, 1.5)
    assert slow == SlowLink("pipeline", (0, 1, 2, 3), 16.0, 20.0, 0.0)
    assert "pipeline between ranks 0, 1, 2, 3" in str(slow) or "0-3" in str(slow)


def test_half_a_step_is_told_only_where_steps_became_slower() -> None:
    seconds = table(2, work=[4.0, 4.0], gradients=[6.0, 6.0])
    assert slow_in(seconds, Layout(data=2), 10.0, 9.0, 1.5) == []
    assert len(slow_in(seconds, Layout(data=2), 10.0, 5.0, 1.5)) == 1


def test_steps_of_milliseconds_are_short_of_work_and_not_of_bandwidth() -> None:
    seconds = table(2, work=[0.001, 0.001], gradients=[0.02, 0.02])
    assert slow_in(seconds, Layout(data=2), 0.021, 0.0, 1.5) == []


@pytest.mark.parametrize(("layout", "link"), [({"tensor": 2}, "tensor"), ({"data": 2}, "gradients")])
def test_a_link_that_is_slow_is_an_event_with_its_ranks(
    tmp_path: Path, monkeypatch, capfd, layout: dict[str, int], link: str
) -> None:
    right = Group.wait_for

    def late(self, work) -> None:
        begin = time.perf_counter()
        time.sleep(0.1)
        self.waited[0] += time.perf_counter() - begin
        right(self, work)

    monkeypatch.setattr(Group, "wait_for", late)
    given = job(write_tokens(tmp_path), tmp_path / "run", plan(layout), steps=2, supervision={"slow_every": 2})
    start(given)
    (event,) = [e for e in read(tmp_path / "run" / EVENTS) if e["event"] == "slow link"]
    assert (event["link"], event["ranks"], event["step"]) == (link, [0, 1], 2)
    assert event["seconds"] > 0.75 * event["step_seconds"]
    assert f"step 2: communication is slow: {link} between ranks" in capfd.readouterr().err
