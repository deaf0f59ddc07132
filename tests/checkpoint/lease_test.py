"""One job per run directory."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import pytest

from trivium.checkpoint import lease
from trivium.checkpoint.lease import LEASE, RENEW_SECONDS, STALE_SECONDS, holder_of, holding
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


def test_a_folder_that_was_set_aside_while_its_lease_was_awaited_is_not_held_by_its_old_name(
    tmp_path: Path, monkeypatch
) -> None:
    begin = lease._refuse_if_held

    def set_aside_meanwhile(descriptor, path, before):
        (tmp_path / "run").rename(tmp_path / "run.previous")
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / LEASE).touch()
        begin(descriptor, path, before)

    monkeypatch.setattr(lease, "_refuse_if_held", set_aside_meanwhile)
    with pytest.raises(MachineError, match="set aside"), holding(tmp_path / "run", print):
        pass


def lease_of_another_host(directory: Path, renewed: float) -> None:
    directory.mkdir(exist_ok=True)
    holder = {"pid": 7, "host": "elsewhere", "started": renewed - 50, "renewed": renewed}
    (directory / LEASE).write_text(json.dumps(holder))


def test_another_hosts_lease_holds_while_it_is_renewed_and_is_stale_afterwards(tmp_path: Path) -> None:
    lease_of_another_host(tmp_path, time.time() - STALE_SECONDS / 2)
    with pytest.raises(MachineError, match="pid 7 on elsewhere"), holding(tmp_path, print):
        pass
    lease_of_another_host(tmp_path, time.time() - STALE_SECONDS - 1)
    said: list[str] = []
    with holding(tmp_path, said.append):
        assert "elsewhere" in said[0]


def test_a_renewed_lease_says_so_on_disk_but_not_at_every_step(tmp_path: Path, monkeypatch) -> None:
    with holding(tmp_path, print) as lease:
        first = json.loads((tmp_path / LEASE).read_text())
        lease.renew()
        assert json.loads((tmp_path / LEASE).read_text()) == first
        now = time.time() + RENEW_SECONDS + 1
        monkeypatch.setattr(time, "time", lambda: now)
        lease.renew()
        assert json.loads((tmp_path / LEASE).read_text())["renewed"] == now


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
