"""One job per run directory."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import get_context
from pathlib import Path

import pytest

from trivium.checkpoint import lease
from trivium.checkpoint.lease import LEASE, holder_of, holding
from trivium.errors import MachineError


def hold_until_told(directory: Path, ready: Path) -> None:
    with holding(directory, print):
        ready.write_text("yes")
        time.sleep(60)


@pytest.fixture
def held(tmp_path: Path):
    process = get_context("fork").Process(
        target=hold_until_told, args=(tmp_path / "run", tmp_path / "ready"), daemon=True
    )
    process.start()
    while not (tmp_path / "ready").is_file():
        time.sleep(0.01)
    yield tmp_path / "run", process
    process.kill()
    process.join()


def test_a_second_job_is_refused_with_pid_host_and_age_of_the_first(held) -> None:
    directory, process = held
    with pytest.raises(MachineError) as refused, holding(directory, print):
        pass
    text = str(refused.value)
    assert (
        f"pid {process.pid} on {socket.gethostname()}" in text and " ago" in text and str(directory) in text
    )
    holder = holder_of(directory)
    assert holder is not None and holder.pid == process.pid


def test_the_lease_of_a_killed_job_is_recognised_as_stale_at_once_and_told(held) -> None:
    directory, process = held
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert holder_of(directory) is None
    said: list[str] = []
    with holding(directory, said.append):
        assert holder_of(directory).pid == os.getpid()
    assert len(said) == 1 and str(process.pid) in said[0]
    assert holder_of(directory) is None
    with holding(directory, said.append):
        assert len(said) == 1, "a job that ended leaves no lease behind"


def test_a_job_that_fails_leaves_no_lease_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError), holding(tmp_path, print):
        raise ValueError("the work failed")
    assert (tmp_path / LEASE).read_text() == ""


def test_a_folder_that_was_set_aside_while_its_lease_was_awaited_is_not_held_by_its_old_name(
    tmp_path: Path, monkeypatch
) -> None:
    begin = lease._may_live

    def set_aside_meanwhile(*given):
        (tmp_path / "run").rename(tmp_path / "run.previous")
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / LEASE).touch()
        return begin(*given)

    monkeypatch.setattr(lease, "_may_live", set_aside_meanwhile)
    with pytest.raises(MachineError, match="set aside"), holding(tmp_path / "run", print):
        pass


def lease_left(directory: Path, renewed: float, host: str = "elsewhere") -> None:
    directory.mkdir(exist_ok=True)
    holder = {"pid": 7, "host": host, "started": renewed - 50, "renewed": renewed}
    (directory / LEASE).write_text(json.dumps(holder))


def leave_after(seconds: float, directory: Path, text: str) -> None:
    threading.Timer(seconds, (directory / LEASE).write_text, (text,)).start()


@pytest.fixture
def hurried(monkeypatch) -> None:
    monkeypatch.setattr(lease, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.4)
    monkeypatch.setattr(lease, "_LEAST_SECONDS", 0.2)


def test_a_job_of_another_host_is_refused_to_as_soon_as_it_is_seen_to_live(tmp_path: Path, hurried) -> None:
    now, said = time.time(), list[str]()
    lease_left(tmp_path, now)
    assert holder_of(tmp_path).host == "elsewhere"
    renewed = {"pid": 7, "host": "elsewhere", "started": now - 50, "renewed": now + 0.1}
    leave_after(0.1, tmp_path, json.dumps(renewed))
    with pytest.raises(MachineError, match="pid 7 on elsewhere"), holding(tmp_path, said.append):
        pass
    assert "waiting up to 0 s" in said[0] and time.time() - now < 0.4


def test_a_job_of_a_host_whose_clock_is_behind_is_seen_to_live(tmp_path: Path, hurried) -> None:
    now = time.time() - 3600
    lease_left(tmp_path, now)
    renewed = {"pid": 7, "host": "elsewhere", "started": now - 50, "renewed": now + 0.1}
    leave_after(0.05, tmp_path, json.dumps(renewed))
    with pytest.raises(MachineError, match="pid 7 on elsewhere"), holding(tmp_path, print):
        pass


def test_a_job_that_died_on_another_host_is_waited_for_and_its_directory_taken_over(
    tmp_path: Path, hurried
) -> None:
    said, begin = list[str](), time.monotonic()
    lease_left(tmp_path, time.time() + 3600)  # of a clock that is an hour ahead
    with holding(tmp_path, said.append):
        assert "elsewhere" in said[-1] and 0.4 <= time.monotonic() - begin < 2
        assert holder_of(tmp_path).pid == os.getpid()
    lease_left(tmp_path, time.time() - 1)
    assert holder_of(tmp_path) is None
    begin = time.monotonic()
    with holding(tmp_path, said.append):
        assert "taken over" in said[-1]
        assert 0.2 <= time.monotonic() - begin < 2, "what is stale already is looked at for a moment"
    lease_left(tmp_path, time.time() + 3600)
    leave_after(0.1, tmp_path, "")
    begin = time.monotonic()
    with holding(tmp_path, said.append):
        assert time.monotonic() - begin < 0.4, "one that ended well is gone at once"


def test_where_the_file_system_has_no_locks_the_lease_alone_decides(
    tmp_path: Path, monkeypatch, hurried
) -> None:
    def without_locks(*_) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(lease.fcntl, "flock", without_locks)
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(lease, "STALE_SECONDS", 1.0)  # so that a busy machine renews in time
    with holding(tmp_path, print):
        assert holder_of(tmp_path).pid == os.getpid()
        with pytest.raises(MachineError, match=f"pid {os.getpid()}"), holding(tmp_path, print):
            pass
    assert holder_of(tmp_path) is None
    lease_left(tmp_path, time.time(), socket.gethostname())
    with holding(tmp_path, print):
        pass


def test_a_lease_is_renewed_whatever_its_holder_does(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.02)
    with holding(tmp_path, print) as holder:
        deadline = time.monotonic() + 5
        while holder_of(tmp_path).renewed <= holder.renewed + 0.05:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_processes_that_the_job_forked_hold_the_directory_when_it_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom trivium.checkpoint.lease import holding\n"
        "with holding(Path(sys.argv[1]), print):\n    child = os.fork()\n"
        "    if child:\n        print(child, flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as job:
        orphan = int(job.stdout.readline())
        job.kill()
        job.wait()
        try:
            assert holder_of(tmp_path) is not None, "a rank still writes"
        finally:
            os.kill(orphan, signal.SIGKILL)
    time.sleep(0.2)
    assert holder_of(tmp_path) is None
