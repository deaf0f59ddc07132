"""Hosts that meet in a folder: one leader, one round, and nobody is alive only because its file is there."""

import errno
import time
from pathlib import Path

import pytest

from trivium.errors import DataError, MachineError
from trivium.provenance import write_json
from trivium.training.supervision import rendezvous
from trivium.training.supervision.rendezvous import Host, Rendezvous, Round, blamed, in_order, led, read_host


def host(name: str, reaches: str = "", **changes: object) -> Host:
    return Host.model_validate(
        {"name": name, "life": f"life of {name}", "port": 1, "reaches": tuple(reaches), **changes}
    )


def met(*names: str) -> Round:
    return Round(number=1, members={name: f"life of {name}" for name in names}, names=names)


def test_first_host_that_all_reach_leads() -> None:
    hosts = [host("a", "abc"), host("b", "abc"), host("c", "abc")]
    assert [h.name for h in led(hosts)] == ["a", "b", "c"]


def test_host_that_is_cut_off_neither_leads_nor_follows() -> None:
    hosts = [host("a", "a"), host("b", "bc"), host("c", "bc")]
    assert [h.name for h in led(hosts)] == ["b", "c"]


def test_members_of_the_last_round_keep_their_order_and_come_first() -> None:
    hosts = {h.name: h for h in map(host, "abcd")}
    assert [h.name for h in in_order(hosts, met("c", "b"))] == ["c", "b", "a", "d"]


def test_only_one_host_creates_a_round(tmp_path: Path) -> None:
    one, two = (Rendezvous(tmp_path, 15.0, name) for name in ("one", "two"))
    assert [one.create(met("two", "one")), two.create(met("two"))] == [True, False]
    assert two.newest().names == ("two", "one")  # in the order of the ranks
    one.close(), two.close()


@pytest.mark.parametrize("text", ["[1, 2]", "[]", "7", '{"name": '])
def test_file_that_is_no_host_is_ignored_and_a_damaged_round_is_named(tmp_path: Path, text: str) -> None:
    here = Rendezvous(tmp_path, 15.0, "here")
    (tmp_path / "backup.json").write_text(text)
    assert set(here.look()) == {"here"}
    (tmp_path / "round-00003.json").write_text(text)
    with pytest.raises(DataError, match=r"round-00003.json is damaged .*delete .*round-\*.json"):
        here.newest()
    here.close()


def test_host_is_alive_only_while_its_file_changes(tmp_path: Path) -> None:
    now = [0.0]
    here = Rendezvous(tmp_path, 10.0, "here", clock=lambda: now[0])

    def seen_at(seconds: float, **changes: object) -> bool:
        now[0] = seconds
        if read_host(tmp_path / "there.json") != (there := host("there", **changes)):
            write_json(tmp_path / "there.json", there.model_dump())
        return "there" in here.look()

    assert not seen_at(0, beat=7)  # it may have been left by a host that died long ago
    assert seen_at(1, beat=8)
    assert seen_at(5, beat=8) and seen_at(9, beat=8) and seen_at(11, beat=8)
    assert not seen_at(11.5, beat=8)
    assert seen_at(12, beat=9)
    assert seen_at(100, beat=9)  # this host slept: it cannot tell
    assert seen_at(103, beat=9) and not (seen_at(107, beat=9) and seen_at(111, beat=9))
    here.close()


def test_host_that_cannot_write_for_lack_of_room_stays_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    here = Rendezvous(tmp_path, 10.0, "here", clock=lambda: now[0])
    there = Rendezvous(tmp_path, 10.0, "there")
    there.say()
    here.look()

    def write(path: Path, value: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(rendezvous, "write_json", write)
    for now[0] in (4.0, 8.0, 12.0, 16.0):
        time.sleep(0.02)  # longer than two times of files may be equal
        there.say()
        assert "there" in here.look()
    there.close()
    for now[0] in (20.0, 24.0, 28.0, 32.0):
        here.look()
    assert "there" not in here.look()
    here.close()


def test_second_agent_of_a_name_is_rejected(tmp_path: Path) -> None:
    first = Rendezvous(tmp_path, 15.0, "twin")
    first.say()
    with pytest.raises(MachineError, match="renewed by another agent"):
        Rendezvous(tmp_path, 15.0, "twin")
    first.close(state="left")
    Rendezvous(tmp_path, 15.0, "twin").close()


def test_hosts_that_went_or_failed_first_are_blamed() -> None:
    before = Round(number=3, members={"a": "1", "b": "2"}, strikes={"a": 1})
    assert blamed(before, silent=["a"], failed=["b"]) == {"a": 2, "b": 1}
