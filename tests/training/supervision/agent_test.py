"""Agents of three hosts, here threads of one process: who trains with whom after a failure, and when the job ends."""

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trivium.comms.launch import Place
from trivium.errors import DataError, Preempted, TriviumError
from trivium.training.config import Supervision
from trivium.training.metrics import EVENTS, append_event, read
from trivium.training.supervision import agent as agents
from trivium.training.supervision import rendezvous
from trivium.training.supervision.agent import Agent, Elastic, Fit, LeftOut
from trivium.training.supervision.preemption import Requests
from trivium.training.supervision.rendezvous import Rendezvous, Round

pytestmark = pytest.mark.broad
PATIENCE_SECONDS = 120.0


class Job:
    """A job whose ranks wait for orders: files that name what they do next."""

    def __init__(self, folder: Path, least: int = 1) -> None:
        self.folder, self.steps = folder, 0
        (folder / "training").mkdir()
        self.elastic = Elastic(
            out=folder / "training",
            least=least,
            most=3,
            ranks=1,
            restarts=2,
            supervision=Supervision(lease_seconds=5, join_seconds=60),
            rank=self.rank,
            fit=lambda hosts: Fit(hosts, {"layout": {"data": hosts}}, "by test"),
            saved=lambda: self.steps,
            begun=(folder / "begin").exists,
            finished=(folder / "finish").exists,
        )
        self.running: dict[str, tuple[Agent, threading.Thread]] = {}
        self.ended: dict[str, BaseException | None] = {}

    def rank(self, place: Place, found: Round) -> None:
        """Run until a file tells this rank or all of them to end."""
        signal.signal(signal.SIGTERM, lambda *_: (self.folder / f"save-{found.number}").touch())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        me = found.names[place.rank]
        while not (self.folder / "finish").exists():
            if (self.folder / f"save-{found.number}").exists():
                if place.rank == 0:
                    append_event(self.folder / "training", {"event": "preempted", "step": 1})
                raise Preempted("saved")
            if (self.folder / f"refuse-{me}-{found.number}").exists():
                raise DataError("the tokens are damaged")
            if (self.folder / f"fail-{me}-{found.number}").exists():
                append_event(self.folder / "training", {"event": "rank failed", "host": me, "step": 1})
                os._exit(1)
            if (self.folder / f"kill-{me}-{found.number}").exists():
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait(0.02)

    def start(self, *names: str) -> None:
        for name in names:
            agent = Agent(self.elastic, Rendezvous(self.folder / "hosts", 5.0, name), Requests())
            thread = threading.Thread(target=self._live, args=(name, agent))
            self.running[name] = agent, thread
            thread.start()

    def _live(self, name: str, agent: Agent) -> None:
        try:
            agent.run()
            self.ended[name] = None
        except TriviumError as error:
            self.ended[name] = error

    def wait_for(self, seen: Callable[[], bool]) -> None:
        for _ in range(round(PATIENCE_SECONDS / 0.05)):
            if seen():
                return
            threading.Event().wait(0.05)
        raise AssertionError(f"it did not happen; {self.ended}, {read(self.folder / 'training' / EVENTS)}")

    def wait_for_round(self, number: int, *names: str) -> None:
        def runs() -> bool:
            agents = [self.running[name][0].meeting for name in names]
            return all((m.me.state, m.me.round) == ("running", number) for m in agents)

        self.wait_for(runs)
        assert set(self.running[names[0]][0].meeting.newest().names) == set(names)

    def tell(self, order: str) -> None:
        (self.folder / order).touch()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    for module, name, seconds in (
        (rendezvous, "BEAT_SECONDS", 0.1),
        (agents, "BEAT_SECONDS", 0.1),
        (agents, "POLL_SECONDS", 0.05),
        (agents, "SETTLE_SECONDS", 0.6),
        (agents, "GRACE_SECONDS", 0.3),
        (agents, "GROWS_AFTER_SECONDS", 0.3),
    ):
        monkeypatch.setattr(module, name, seconds)
    made = Job(tmp_path)
    made.tell("begin")
    yield made
    made.tell("finish")
    for _, thread in made.running.values():
        thread.join()


def events(job: Job, kind: str) -> list[dict]:
    return [event for event in read(job.folder / "training" / EVENTS) if event["event"] == kind]


def test_round_that_cannot_be_written_is_tried_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    create, full = Rendezvous.create, [True, True]

    def write(meeting: Rendezvous, found: Round) -> bool:
        if full:
            full.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        return create(meeting, found)

    monkeypatch.setattr(Rendezvous, "create", write)
    job.start("a", "b", "c")
    job.wait_for_round(1, "a", "b", "c")
    assert not full


def test_host_that_is_asked_to_leave_saves_and_the_others_continue(job: Job) -> None:
    job.start("a", "b", "c")
    job.wait_for_round(1, "a", "b", "c")
    job.running["b"][0].requests.note(signal.SIGTERM, lambda number: None)
    job.wait_for_round(2, "a", "c")
    job.wait_for(lambda: "b" in job.ended)
    assert isinstance(job.ended["b"], Preempted)
    job.tell("finish")
    job.wait_for(lambda: set(job.ended) == {"a", "b", "c"})
    assert job.ended["a"] is None and job.ended["c"] is None
    assert not events(job, "host left out")


def test_host_whose_rank_fails_twice_without_progress_is_left_out(job: Job) -> None:
    job.start("a", "b", "c")
    for number in (1, 2):
        job.wait_for_round(number, "a", "b", "c")
        job.tell(f"fail-b-{number}")
    job.wait_for_round(3, "a", "c")
    assert [event["host"] for event in events(job, "host left out")] == ["b"]
    job.wait_for(lambda: "b" in job.ended)
    assert isinstance(job.ended["b"], LeftOut) and "b.out" in str(job.ended["b"])


def test_failure_before_the_first_event_of_the_training_counts(job: Job) -> None:
    (job.folder / "begin").unlink()
    job.start("a", "b", "c")
    job.wait_for_round(1, "a", "b", "c")
    job.tell("begin")
    job.wait_for(lambda: bool(events(job, "hosts met")))
    job.tell("fail-b-1")
    job.wait_for_round(2, "a", "b", "c")
    assert job.running["a"][0].meeting.newest().strikes == {"b": 1}


def test_host_whose_rank_is_killed_twice_without_progress_is_left_out(job: Job) -> None:
    job.start("a", "b", "c")
    for number in (1, 2):
        job.wait_for_round(number, "a", "b", "c")
        append_event(job.folder / "training", {"event": "rank failed", "cause": "Connection closed by peer"})
        job.tell(f"kill-b-{number}")
    job.wait_for_round(3, "a", "c")
    assert [event["host"] for event in events(job, "host left out")] == ["b"]
    assert {event["cause"] for event in events(job, "rank killed")} == {"rank 1 of 3 on b: killed by SIGKILL"}


def test_killed_rank_is_no_failure_of_its_host_if_all_hosts_lost_one_or_another_was_named(job: Job) -> None:
    job.start("a", "b", "c")
    job.wait_for_round(1, "a", "b", "c")
    for host in "abc":
        job.tell(f"kill-{host}-1")
    job.wait_for_round(2, "a", "b", "c")
    assert job.running["a"][0].meeting.newest().strikes == {}
    job.tell("fail-b-2")
    job.tell("kill-a-2")
    job.wait_for_round(3, "a", "b", "c")
    assert job.running["a"][0].meeting.newest().strikes == {"b": 1}


def test_error_that_ended_the_job_does_not_end_it_again_after_it_was_repaired(job: Job) -> None:
    job.start("a", "b", "c")
    job.wait_for_round(1, "a", "b", "c")
    job.tell("refuse-a-1")
    job.wait_for(lambda: set(job.ended) == {"a", "b", "c"})
    assert all(isinstance(error, DataError) for error in job.ended.values())
    job.start("b", "c", "a")  # the others have read what a said before a begins
    job.wait_for_round(2, "a", "b", "c")


def test_progress_renews_the_budget_and_its_end_ends_the_job(job: Job) -> None:
    job.start("a", "b", "c")
    for number, host in enumerate("abcabca", start=1):
        job.wait_for_round(number, "a", "b", "c")
        job.steps += number <= 5  # the first rounds save; three failures from the same checkpoint are one too many
        job.tell(f"fail-{host}-{number}")
    job.wait_for(lambda: set(job.ended) == {"a", "b", "c"})
    assert all("training.restarts" in str(error) for error in job.ended.values())
    assert events(job, "stopped")
