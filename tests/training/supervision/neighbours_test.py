"""Ranks that torchrun started supervise one another: they find ranks that are stopped, killed or failed."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from tests.training.supervision.job_scripts import job_script

from chaos.scene import job, plan, write_tokens
from ranks import free_port
from trivium.checkpoint.format import published
from trivium.comms.launch import Place, RankFailed, connected, start_ranks
from trivium.comms.meeting import wait_until_open
from trivium.errors import DataError, Preempted
from trivium.training.config import Supervision
from trivium.training.loop import TrainingJob
from trivium.training.metrics import EVENTS, METRICS, last_step, read
from trivium.training.record import CHECKPOINTS
from trivium.training.supervision import job as work
from trivium.training.supervision import neighbours
from trivium.training.supervision.heartbeats import Heartbeat, Heartbeats, RankHeartbeat
from trivium.training.supervision.neighbours import Failure, Neighbours, News, end_siblings, first_host_gone, parent_of
from trivium.training.supervision.watchdog import STACK_SECONDS

RANKS = 3


class MemoryBoard:
    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def write(self, name: str, text: str) -> None:
        self.texts[name] = text

    def write_first(self, name: str, text: str) -> bool:
        return self.texts.setdefault(name, text) is text

    def has(self, *names: str) -> bool:
        return all(name in self.texts for name in names)

    def read(self, names: list[str]) -> list[str]:
        return [self.texts[name] for name in names]


class Street:
    """Ranks on one thread and a clock set by hand. away: ranks that write nothing. found: which rank found one late,
    and when."""

    def __init__(self, monkeypatch, hang_seconds: float = 4.0) -> None:
        self.now, self.away, self.found = 1000.0, set[int](), dict[int, float]()
        clock = lambda: self.now  # noqa: E731
        monkeypatch.setattr("trivium.training.supervision.heartbeats.time", SimpleNamespace(monotonic=clock))
        board, self.beats = MemoryBoard(), [Heartbeats(1) for _ in range(RANKS)]
        config = Supervision(hang_seconds=hang_seconds)
        self.ranks = [
            Neighbours(Place(n, RANKS, n, ""), self.beats[n], config, print, board, clock) for n in range(RANKS)
        ]
        for number, rank in enumerate(self.ranks):
            rank.find = partial(self._find, number)
        self.wait(1.0, 1)

    def _find(self, number: int, late: list[int]) -> None:
        if late:
            self.found.setdefault(number, self.now)

    def wait(self, seconds: float, step: int = 0) -> None:
        """Let time pass, in which all but those away take their turns, and do a step if one is given."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.5
            for n in sorted(set(range(RANKS)) - self.away):
                if step:
                    self.beats[n].begin(0, step, "step")
                self.ranks[n].turn()

    def train(self, first: int, last: int) -> None:
        for step in range(first, last):
            self.wait(1.0, step)


@pytest.mark.parametrize("away", [set(), {1}], ids=["all answer", "rank 1 does not"])
def test_stacks_are_awaited_until_all_answer_or_the_time_is_over(monkeypatch, away: set[int]) -> None:
    street = Street(monkeypatch)
    begun, asker = street.now, street.ranks[0]

    def sleep(seconds: float) -> None:
        street.now += seconds
        assert street.now < begun + 60, "it waits without end"
        for number in {1, 2} - away:
            street.ranks[number].write()

    monkeypatch.setattr(neighbours, "time", SimpleNamespace(monotonic=lambda: street.now, sleep=sleep))
    stacks, mute = asker.stacks()
    seconds = street.now - begun
    assert mute == sorted(away) and [rank for rank in stacks if not stacks[rank]] == mute
    assert seconds >= STACK_SECONDS if away else seconds < 0.1


def test_named_rank_is_killed_by_those_that_its_launcher_started_too(monkeypatch) -> None:
    """A process number of another launcher's child is not one of this job."""
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *given: killed.append(given))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        news = News(1, 1, "step", 0.0, socket.gethostname(), child.pid, os.getppid())
        end_siblings([news, replace(news, launcher=os.getpid()), replace(news, host="elsewhere")])
        assert killed == []
        monkeypatch.setattr(os, "getppid", os.getpid)  # as if the child and this process had one parent
        end_siblings([replace(news, launcher=os.getpid())])
        assert killed == [(child.pid, signal.SIGKILL)]


def test_ranks_that_train_find_nobody(monkeypatch) -> None:
    street = Street(monkeypatch)
    street.train(2, 40)
    street.wait(3.5)
    assert street.found == {}


def test_silent_rank_is_found_by_the_first_and_the_last_rank(monkeypatch) -> None:
    street = Street(monkeypatch)
    left, street.away = street.now, {1}
    street.train(2, 6)
    assert street.found == {}
    street.train(6, 7)
    assert street.found.keys() == {0, 2} and max(street.found.values()) - left <= 5.0


def test_rank_that_writes_but_does_not_train_is_found_by_its_own_clock(monkeypatch) -> None:
    street = Street(monkeypatch)
    street.train(2, 3)
    street.wait(4.0)
    assert street.found == {}
    street.wait(1.0)
    assert street.found.keys() == {0, 2}


def test_job_that_was_stopped_as_a_whole_blames_nobody(monkeypatch) -> None:
    street = Street(monkeypatch)
    street.now += 3600
    street.wait(3.0)
    assert street.found == {}


def test_rank_that_is_over_may_be_silent(monkeypatch) -> None:
    street = Street(monkeypatch)
    street.ranks[1].write(is_over=True)
    street.away = {1}
    street.train(2, 20)
    assert street.found == {}


def test_first_to_fail_is_the_cause_and_all_others_end_with_it(monkeypatch, capsys) -> None:
    street = Street(monkeypatch)
    first, second, third = street.ranks
    assert [rank.turn() for rank in street.ranks] == [None] * RANKS
    own = failure(1, "node7", "out of memory")
    assert second.fail(own) is own
    assert third.fail(failure(2, "node8", "Connection closed by peer")) is None
    assert capsys.readouterr().err == "", "thousands of ranks need not repeat it"
    assert first.turn() == [], "it ends, and nobody is killed"
    assert "rank 1 of 3 on node7 in step 1: out of memory\nit failed first" in capsys.readouterr().err


def failure(rank: int, host: str, report: str) -> Failure:
    return Failure(RankFailed(rank, dict.fromkeys(range(RANKS)), report), Heartbeat(1, "step", 0.0, 0.0), host)


@pytest.mark.parametrize("silent", [True, False])
def test_rank_that_lost_another_names_the_silent_one_or_else_itself(monkeypatch, silent: bool) -> None:
    street = Street(monkeypatch, hang_seconds=1.0)
    first, second, third = street.ranks
    lost, found = failure(2, "node8", "Connection closed by peer"), []
    third.write(is_over=True)
    looking = threading.Thread(target=lambda: found.append(third.fail(lost)))
    looking.start()
    while looking.is_alive():
        for rank in [first] if silent else [first, second]:
            rank.write()
        time.sleep(0.02)
    (named,) = found
    if not silent:
        assert named is lost
        return
    assert (named.error.rank, named.at.step, named.host) == (1, 1, socket.gethostname())
    assert "its host has failed" in str(named.error) and named.host_lost


@pytest.mark.parametrize("local_rank", [0, 1])
def test_first_host_that_is_gone_is_named_by_one_rank_of_each_host(monkeypatch, local_rank: int) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))  # nobody listens there
    lost = failure(2 + local_rank, "node8", "Connection closed by peer")
    found = first_host_gone(Place(2 + local_rank, 4, local_rank, "env://", 2), lost)
    if local_rank:
        assert found is None
        return
    assert found is not None and (found.error.rank, found.host) == (0, "127.0.0.1")
    assert str(found.located()).startswith("rank 0 of 4 on 127.0.0.1 in step 1: its host, which runs the store")
    assert not found.lost_another and found.host_lost, "the event names the host"


def test_rank_reports_its_own_failure_if_it_lost_none_or_the_first_host_answers(monkeypatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    place, own = Place(2, 4, 0, "env://", 2), failure(2, "node8", "shard 7 is damaged")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    assert first_host_gone(place, own) is own
    lost = failure(2, "node8", "Connection closed by peer")
    with socket.create_server(("127.0.0.1", 0)) as first:
        monkeypatch.setenv("MASTER_PORT", str(first.getsockname()[1]))
        assert first_host_gone(place, lost) is lost


def fail_among_others(place: Place, port: int, given: TrainingJob, also: int | None, killed: bool) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_RANK": str(place.rank),
        "LOCAL_WORLD_SIZE": str(place.world_size),
    }

    def train(place: Place, given: TrainingJob, heartbeat: RankHeartbeat) -> None:
        with connected(place, timeout_seconds=30):
            dist.barrier()  # A rank that ends while others still connect to it would give them another error.
            heartbeat.begin(5, "step")
            time.sleep(0.5 if place.rank == 2 else 1.0 if place.rank == also else 60)
            if killed and place.rank == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            raise (DataError("shard 7 is damaged") if place.rank == 2 else RuntimeError("Connection closed by peer"))

    work.train_rank = train
    work.check = lambda given: None
    work.start(given)


@pytest.mark.parametrize(("killed", "also"), [(False, 0), (False, 1), (True, 0), (True, 1), (True, None)], ids=str)
def test_failed_or_killed_rank_ends_all_others_and_is_named_once_with_its_host(
    tmp_path: Path, capfd, killed: bool, also: int | None
) -> None:
    """also: a rank that loses its connection; the others wait in a collective without end."""
    given = job(tmp_path, tmp_path / "run", plan({"data": 4}), supervision={"hang_seconds": 2.0})
    ranks = start_ranks(fail_among_others, 4, free_port(), given, also, killed)
    for process in ranks.processes:
        process.join(20)
    codes = [process.exitcode for process in ranks.processes]
    ranks.end()
    assert codes == [1, 1, -signal.SIGKILL if killed else DataError.exit_code, 1]
    (failed,) = events(tmp_path / "run", "rank failed")
    cause = "its process ended without a report" if killed else "shard 7 is damaged"
    assert (failed["rank"], failed["host"]) == (2, socket.gethostname())
    assert failed["cause"].startswith(f"rank 2 of 4 on {socket.gethostname()} in step 5: {cause}")
    assert "closed by peer" not in capfd.readouterr().err


def wait_for_others(place: Place, port: int, given: TrainingJob) -> None:
    """Wait as the first of two ranks, the other of which never connects."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    work.start(given)


def test_rank_that_waits_for_others_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    """A scheduler whose grace is shorter than `stall_seconds` would kill it, and call that a failure."""
    given = job(write_tokens(tmp_path), tmp_path / "run", plan({"data": 2}))
    port = free_port()
    ranks = start_ranks(wait_for_others, 1, port, given)
    try:
        wait_until_open("127.0.0.1", port, 60.0, lambda: False, pause=0.1)
        os.kill(ranks.pids[0], signal.SIGTERM)
        ranks.processes[0].join(20)
        assert ranks.processes[0].exitcode == Preempted.exit_code
    finally:
        ranks.end()
    assert [each["step"] for each in events(tmp_path / "run", "preempted")] == [0]


def ranks_of(job: subprocess.Popen) -> list[int]:
    """The processes that torchrun started, by rank."""
    everyone = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()]
    agents = [p for p in everyone if parent_of(p) == job.pid]
    found = [
        p
        for p in everyone
        if parent_of(p) in agents and b"trivium.cli.main" in (Path("/proc") / str(p) / "cmdline").read_bytes()
    ]

    def rank_of(pid: int) -> int:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return int(dict(each.split(b"=", 1) for each in environment if each)[b"RANK"])

    return sorted(found, key=rank_of)


def events(run: Path, kind: str) -> list[dict]:
    return [e for e in read(run / EVENTS) if e["event"] == kind]


def wait_for(seen: Callable[[], object], log: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.05)


def wait_for_more_steps(run: Path, resumptions: int, log: Path) -> None:
    """Wait until the job was resumed `resumptions` times and has done another step."""
    before = last_step(run / METRICS)
    wait_for(lambda: len(events(run, "resumed")) == resumptions and last_step(run / METRICS) > before, log)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds ranks in /proc")
def test_torchrun_job_survives_a_stopped_and_a_killed_rank_until_preempted(tmp_path) -> None:
    script = job_script(tmp_path, write_tokens(tmp_path), nodes=1, steps=1000, hang_seconds=3.0, preemption_seconds=1.0)
    run, log = tmp_path / "run" / "training", tmp_path / "log"
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment["TRIVIUM_DEVICES"] = "any"  # the file is for a machine with accelerators
    with open(log, "ab") as out:
        agent = subprocess.Popen(["bash", str(script)], env=environment, stdout=out, stderr=out)
    try:
        wait_for(lambda: events(run, "saved"), log)  # before that there is nothing to resume from
        os.kill(ranks_of(agent)[0], signal.SIGSTOP)
        wait_for(lambda: events(run, "rank failed"), log)
        wait_for_more_steps(run, 1, log)
        os.kill(ranks_of(agent)[0], signal.SIGKILL)
        wait_for(lambda: len(events(run, "rank failed")) == 2, log)
        wait_for_more_steps(run, 2, log)
        os.kill(ranks_of(agent)[1], signal.SIGUSR1)
        assert agent.wait(60) == Preempted.exit_code, log.read_text()
    finally:
        for pid in [*ranks_of(agent), agent.pid] if agent.poll() is None else []:
            os.kill(pid, signal.SIGKILL)
    stopped, killed = events(run, "rank failed")
    assert "it does not answer" in stopped["cause"] and "ended without a report" in killed["cause"]
    for failed, how in ((stopped, "hangs"), (killed, "its process ended")):
        where = f"rank 0 of 2 on {socket.gethostname()} in step {failed['in_step']}: {how}"
        assert failed["rank"] == 0 and failed["host"] == socket.gethostname() and where in log.read_text()
    done = last_step(run / METRICS)
    assert [e["step"] for e in events(run, "preempted")] == [done]
    assert published(run / CHECKPOINTS)[-1].name == f"step-{done:08d}"
