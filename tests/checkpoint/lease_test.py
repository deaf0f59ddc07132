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
from trivium.checkpoint.lease import LEASE, Gone, Holder, _described, _holder_in, holder_of, holding
from trivium.errors import MachineError


def hold_until_killed(directory: Path, ready: Path) -> None:
    with holding(directory, print):
        ready.write_text("yes")
        time.sleep(60)


@pytest.fixture
def held(tmp_path: Path):
    process = get_context("fork").Process(
        target=hold_until_killed, args=(tmp_path / "run", tmp_path / "ready"), daemon=True
    )
    process.start()
    while not (tmp_path / "ready").is_file():
        time.sleep(0.01)
    yield tmp_path / "run", process
    process.kill()
    process.join()


def test_second_job_is_rejected_with_pid_host_and_age_of_first(held) -> None:
    directory, process = held
    with pytest.raises(MachineError) as refused, holding(directory, print):
        pass
    text = str(refused.value)
    assert f"pid {process.pid} on {socket.gethostname()}" in text and " ago" in text and str(directory) in text
    holder = holder_of(directory)
    assert holder is not None and holder.pid == process.pid


def test_lease_of_killed_job_is_stale_at_once(held) -> None:
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
        assert len(said) == 1, "a job that ended leaves no lease"


@pytest.mark.parametrize(
    ("gone", "waits"), [(Gone(), ["expiry", "claim"]), (Gone(silent=["other"]), ["claim"]), (Gone(ended=["other"]), [])]
)
def test_lease_of_a_host_that_is_known_to_be_gone_is_taken_over_without_waiting(tmp_path, monkeypatch, gone, waits):
    waited: list[str] = []
    monkeypatch.setattr(lease, "_wait_for_expiry", lambda left, lock, *_: waited.append("expiry") or lock)
    monkeypatch.setattr(lease, "_claim", lambda *_: waited.append("claim"))
    (tmp_path / LEASE).write_text(json.dumps(Holder(1, "other", time.time(), time.time())._asdict()))
    with holding(tmp_path, lambda text: None, gone):
        assert waited == waits


def test_failed_job_leaves_no_lease(tmp_path: Path) -> None:
    with pytest.raises(ValueError), holding(tmp_path, print):
        raise ValueError("the work failed")
    assert (tmp_path / LEASE).read_text() == ""


def test_target_of_linked_lease_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LEASE).symlink_to(tmp_path / "letter")
    with pytest.raises(MachineError, match="is a link to"), holding(tmp_path / "run", print):
        pass
    assert (tmp_path / "letter").read_text() == "dear"


def test_folder_set_aside_during_wait_is_not_held(tmp_path: Path, monkeypatch) -> None:
    begin = lease._seconds_to_expiry

    def set_aside_meanwhile(*given):
        (tmp_path / "run").rename(tmp_path / "run.previous")
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / LEASE).touch()
        return begin(*given)

    monkeypatch.setattr(lease, "_seconds_to_expiry", set_aside_meanwhile)
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
    monkeypatch.setattr(lease, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.4)
    monkeypatch.setattr(lease, "_MIN_WATCH_SECONDS", 0.2)
    monkeypatch.setattr(lease, "_CLAIM_SECONDS", 0.1)


@pytest.mark.parametrize("behind_seconds", [0, 3600])  # of the other host's clock
def test_renewed_lease_of_other_host_rejects_at_once(tmp_path: Path, hurried, behind_seconds: int) -> None:
    begin, said = time.time(), list[str]()
    now = begin - behind_seconds
    lease_left(tmp_path, now)
    assert behind_seconds or holder_of(tmp_path).host == "elsewhere"
    renewed = {"pid": 7, "host": "elsewhere", "started": now - 50, "renewed": now + 0.1}
    leave_after(0.1, tmp_path, json.dumps(renewed))
    with pytest.raises(MachineError, match="pid 7 on elsewhere"), holding(tmp_path, said.append):
        pass
    assert "waiting up to 0 s" in said[0] and time.time() - begin < 0.4


def test_expired_lease_of_other_host_is_taken_over(tmp_path: Path, monkeypatch, hurried) -> None:
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
        assert 0.2 <= time.monotonic() - begin < 2, "an expired lease is watched for a short time"
    lease_left(tmp_path, time.time() + 3600)
    leave_after(0.1, tmp_path, "")
    monkeypatch.setattr(lease, "STALE_SECONDS", 60.0)
    begin = time.monotonic()
    with holding(tmp_path, said.append):
        assert time.monotonic() - begin < 30, "a job that ended normally is not waited for"


def test_lease_decides_without_locks(tmp_path: Path, monkeypatch, hurried) -> None:
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


def test_lease_is_renewed_in_background(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.02)
    with holding(tmp_path, print) as holder:
        deadline = time.monotonic() + 5
        while holder_of(tmp_path).renewed <= holder.renewed + 0.05:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_forked_processes_hold_directory_after_kill(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom trivium.checkpoint.lease import holding\n"
        "with holding(Path(sys.argv[1]), print):\n    child = os.fork()\n"
        "    if child:\n        print(child, flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as job:
        orphan = int(job.stdout.readline())
        job.kill()
        job.wait()
        try:
            assert holder_of(tmp_path) is not None, "a rank still writes"
        finally:
            os.kill(orphan, signal.SIGKILL)
    time.sleep(0.2)
    assert holder_of(tmp_path) is None


@pytest.fixture
def kept_by_a_server(tmp_path: Path, monkeypatch) -> threading.Event:
    """Keep the lock of the present lease, as an NFS server does for a dead host. Setting the event releases it."""
    lease_left(tmp_path, time.time())
    old, released, right = (tmp_path / LEASE).stat(), threading.Event(), lease.fcntl.flock

    def flock(descriptor: int, how: int) -> None:
        if os.path.samestat(os.fstat(descriptor), old) and not released.is_set():
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        right(descriptor, how)

    monkeypatch.setattr(lease.fcntl, "flock", flock)
    return released


def test_lock_kept_by_server_ends_with_expired_lease(tmp_path: Path, hurried, kept_by_a_server) -> None:
    said, left = list[str](), holder_of(tmp_path)
    assert left.host == "elsewhere", "the lock alone does not show whether the job is alive"
    with holding(tmp_path, said.append):
        assert time.time() - left.renewed >= 0.4 and "elsewhere" in said[-1] and "taken over" in said[-1]
        assert holder_of(tmp_path).pid == os.getpid()
        with pytest.raises(MachineError, match=f"pid {os.getpid()}"), holding(tmp_path, print):
            pass
    assert [path.name for path in tmp_path.iterdir()] == [LEASE]
    assert holder_of(tmp_path) is None
    told = len(said)
    with holding(tmp_path, said.append):
        assert len(said) == told, "the lock of the new lease is released"


def test_renewed_lease_with_kept_lock_rejects(tmp_path: Path, hurried, kept_by_a_server) -> None:
    lease_left(tmp_path, time.time() - 3600)
    leave_after(0.05, tmp_path, (tmp_path / LEASE).read_text().replace("7", "8"))
    with pytest.raises(MachineError, match="pid 8 on elsewhere"), holding(tmp_path, print):
        pass


def test_released_lock_does_not_end_wait_for_lease(tmp_path: Path, hurried, kept_by_a_server) -> None:
    threading.Timer(0.1, kept_by_a_server.set).start()
    left = holder_of(tmp_path)
    with holding(tmp_path, print):
        assert time.time() - left.renewed >= 0.4


def test_emptied_lease_ends_wait_when_lock_is_released(tmp_path: Path, hurried, kept_by_a_server, monkeypatch) -> None:
    monkeypatch.setattr(lease, "STALE_SECONDS", 60.0)
    leave_after(0.05, tmp_path, "")
    threading.Timer(0.15, kept_by_a_server.set).start()
    begin = time.monotonic()
    with holding(tmp_path, print):
        assert 0.15 <= time.monotonic() - begin < 30


@pytest.mark.parametrize("text", ["", "{", "here"])
def test_lock_of_this_host_or_unknown_owner_rejects_at_once(
    tmp_path: Path, hurried, kept_by_a_server, text: str
) -> None:
    if text == "here":
        lease_left(tmp_path, time.time() - 3600, socket.gethostname())
    else:
        (tmp_path / LEASE).write_text(text)
    said, told = list[str](), "pid 7 on" if text == "here" else f"delete {tmp_path / LEASE}"
    with pytest.raises(MachineError, match=told), holding(tmp_path, said.append):
        pass
    assert not said, "nothing is waited for"


def test_emptied_lease_with_kept_lock_is_not_taken(tmp_path: Path, hurried, kept_by_a_server) -> None:
    leave_after(0.05, tmp_path, "")
    with pytest.raises(MachineError, match="which is not named in the lease"), holding(tmp_path, print):
        pass


def test_unreadable_lease_is_not_taken_over(tmp_path: Path, monkeypatch, hurried) -> None:
    def unreadable(path: Path) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    lease_left(tmp_path, time.time())
    monkeypatch.setattr(lease, "_fresh_text", unreadable)
    with pytest.raises(OSError, match="Input/output error"), holding(tmp_path, print):
        pass
    assert json.loads((tmp_path / LEASE).read_text())["host"] == "elsewhere"


def test_invalid_lease_is_watched_like_other_hosts(tmp_path: Path, hurried) -> None:
    (tmp_path / LEASE).write_text("\0" * 256)
    begin = time.monotonic()
    with holding(tmp_path, print):
        assert time.monotonic() - begin >= 0.2


def test_slow_server_restarts_wait(tmp_path: Path, monkeypatch, hurried) -> None:
    right, looks = lease._fresh_text, list[float]()

    def read(path: Path) -> str:
        looks.append(time.monotonic())
        if len(looks) == 10:
            time.sleep(0.3)
        return right(path)

    lease_left(tmp_path, time.time() - 3600)
    monkeypatch.setattr(lease, "_fresh_text", read)
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.25)
    with holding(tmp_path, print):
        assert looks[-1] - looks[9] >= 0.3 + 0.2, "the wait starts again"


@pytest.mark.parametrize("locks", ["none", "kept"])
def test_one_of_several_jobs_takes_stale_lease(tmp_path: Path, monkeypatch, hurried, locks: str, request) -> None:
    if locks == "kept":
        request.getfixturevalue("kept_by_a_server")
    else:
        lease_left(tmp_path, time.time() - 3600)
        monkeypatch.setattr(lease, "_lock", lambda descriptor: "none")
    monkeypatch.setattr(lease, "_CLAIM_SECONDS", 0.5)  # so that a busy machine writes in time
    hold, refused, holders, most = threading.Lock(), list[str](), [0], [0]

    def compete() -> None:
        try:
            with holding(tmp_path, lambda text: None):
                with hold:
                    holders[0] += 1
                    most[0] = max(most[0], holders[0])
                time.sleep(0.5)
                with hold:
                    holders[0] -= 1
        except MachineError as error:
            refused.append(str(error))

    jobs = [threading.Thread(target=compete) for _ in range(6)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert most == [1] and len(refused) == 5


FROZEN = """
import sys, time
from pathlib import Path
from trivium.checkpoint import lease
lease.RENEW_SECONDS, lease.socket.gethostname = 0.05, lambda: "elsewhere"
with lease.holding(Path(sys.argv[1]), lambda text: print(text, flush=True)):
    print("held", flush=True)
    time.sleep(60)
"""


def test_frozen_job_ends_if_lease_was_taken_over(tmp_path: Path, hurried) -> None:
    with subprocess.Popen([sys.executable, "-c", FROZEN, str(tmp_path)], stdout=subprocess.PIPE, text=True) as frozen:
        try:
            assert frozen.stdout.readline() == "held\n"
            frozen.send_signal(signal.SIGSTOP)
            time.sleep(0.5)
            # As on another host, whose kernel knows nothing of the frozen one's lock.
            (tmp_path / LEASE).rename(tmp_path / "old")
            (tmp_path / LEASE).write_bytes((tmp_path / "old").read_bytes())
            with holding(tmp_path, print):
                frozen.send_signal(signal.SIGCONT)
                assert frozen.wait(10) == MachineError.exit_code
                assert f"taken over by pid {os.getpid()}" in frozen.stdout.read()
                assert holder_of(tmp_path).pid == os.getpid(), "it did not overwrite the other lease"
        finally:
            frozen.kill()


@pytest.mark.parametrize("target", [None, "/dev/zero", "folder"])
def test_special_file_as_lease_is_rejected_by_path(tmp_path: Path, target: str | None) -> None:
    path = tmp_path / LEASE
    if target is None:
        os.mkfifo(path)
    elif target == "folder":
        path.mkdir()
    else:
        path.symlink_to(target)
    with pytest.raises(MachineError, match=rf"{LEASE} (cannot be a lease|is a link)"), holding(tmp_path, print):
        pass
    assert holder_of(tmp_path) is None


@pytest.mark.parametrize(
    "text", ["[" * 300, '{"pid": 1, "host": "x", "started": 1e999, "renewed": 1}', "[1]", '{"pid": 1}']
)
def test_lease_of_other_form_has_no_holder(text: str) -> None:
    assert _holder_in(text) is None


def test_host_name_is_shown_without_control_characters() -> None:
    text = json.dumps({"pid": 1, "host": "\x1b[2Ja", "started": 0, "renewed": 0})
    assert "\x1b" not in _described(text) and "u001b[2Ja" in _described(text)
