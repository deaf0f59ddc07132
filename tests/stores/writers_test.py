"""One job per run at a URL."""

import json
import socket

import pytest

from trivium.errors import MachineError
from trivium.stores import lease
from trivium.stores.lease import holding_store


def left(bucket, number, **about):
    text = {"pid": 7, "host": "other", "processes": "others", "started": 0.0, "renewed": 0.0, **about}
    (bucket / f"lease-{number:08d}.json").write(json.dumps(text).encode())


def test_a_job_that_ended_leaves_the_run_to_the_next(bucket):
    said = []
    for number in (1, 2):
        with holding_store(bucket, said.append):
            assert json.loads((bucket / f"lease-{number:08d}.json").read())["host"] == socket.gethostname()
    left(bucket, 3, pid=2**22 + 5, processes=lease._processes())  # killed on this host
    with holding_store(bucket, said.append):
        pass
    assert said == []


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(lease, "POLL_SECONDS", 0.0001)
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.0003)


@pytest.mark.parametrize("about", [{}, {"pid": 10**30}, {"pid": float("inf")}, {"pid": -1}])
def test_a_job_whose_process_cannot_be_seen_is_waited_for_whatever_its_host_is_called(bucket, quick, about):
    """Two containers may have one name, and each its own process IDs."""
    left(bucket, 1, **{"pid": 2**22 + 5, "host": socket.gethostname(), **about})
    said = []
    with holding_store(bucket, said.append):
        assert "waiting until its lease is renewed or expires" in said[0]


def test_a_lease_whose_number_has_more_digits_is_found(bucket, quick):
    left(bucket, 99_999_999)
    for number in (100_000_000, 100_000_001):
        with holding_store(bucket, print):
            assert list(bucket.sizes()) == [f"lease-{number}.json"]


def test_a_job_that_is_alive_is_named_and_one_that_is_not_expires(bucket, quick, monkeypatch):
    left(bucket, 1)
    said = []
    with holding_store(bucket, said.append):
        assert len(said) == 2 and "pid 7 on other, which does not renew" in said[1]
    left(bucket, 5)
    monkeypatch.setattr(lease.time, "sleep", lambda _: left(bucket, 5, renewed=1.0))
    named = pytest.raises(MachineError, match="is being written by pid 7 on other; wait until it ends")
    with named, holding_store(bucket, said.append):
        raise AssertionError("it was held twice")


def test_of_two_jobs_that_begin_at_once_one_is_refused(bucket, monkeypatch):
    monkeypatch.setattr(lease, "_newest", lambda _: (0, b""))
    named = pytest.raises(MachineError, match="was taken by another job just now: pid")
    with holding_store(bucket, print), named, holding_store(bucket, print):
        raise AssertionError("it was held twice")
