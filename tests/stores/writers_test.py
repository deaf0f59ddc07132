"""One job per run at a URL."""

import json
import socket

import pytest

from trivium.errors import MachineError
from trivium.stores import lease
from trivium.stores.lease import holding_store


def left(bucket, number, **about):
    text = {"pid": 7, "host": "other", "started": 0.0, "renewed": 0.0, **about}
    (bucket / f"lease-{number:08d}.json").write(json.dumps(text).encode())


def test_a_job_that_ended_leaves_the_run_to_the_next(bucket):
    said = []
    for number in (1, 2):
        with holding_store(bucket, said.append):
            assert json.loads((bucket / f"lease-{number:08d}.json").read())["host"] == socket.gethostname()
    left(bucket, 3, pid=2**22 + 5, host=socket.gethostname())  # killed on this host
    with holding_store(bucket, said.append):
        pass
    assert said == []


def test_a_job_that_is_alive_is_named_and_one_that_is_not_expires(bucket, monkeypatch):
    monkeypatch.setattr(lease, "POLL_SECONDS", 0.0001)
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.0003)
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
