"""Ranks that die, hang or are asked to end are named, restarted or saved, and the job is never repeated for nothing."""

import faulthandler
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from chaos.life import Life
from chaos.scene import job, plan, write_tokens
from fake_accelerator import accelerator
from trivium.checkpoint import pieces, verify
from trivium.checkpoint.agree import sums
from trivium.checkpoint.format import published
from trivium.comms.launch import ALONE, RankFailed
from trivium.comms.mesh import Mesh
from trivium.errors import Interrupted, Preempted, TriviumError
from trivium.kernels.crossing import read_later
from trivium.parallel.pipeline import clock as clocks
from trivium.training import loop
from trivium.training.config import Supervision
from trivium.training.metrics import EVENTS, METRICS, last_step, read
from trivium.training.rank import train_rank
from trivium.training.record import CHECKPOINTS
from trivium.training.supervision import job as launcher
from trivium.training.supervision import watchdog as watching
from trivium.training.supervision.heartbeats import PHASES, Heartbeat, Heartbeats, Phase, RankHeartbeat
from trivium.training.supervision.job import Supervisor, start
from trivium.training.supervision.neighbours import stack_of_main_thread
from trivium.training.supervision.preemption import Requests, held_back, listening
from trivium.training.supervision.watchdog import Failure, Watchdog, innermost, seconds_to_wait, signalled, waits

QUICK = {"hang_seconds": 3.0, "restart_seconds": 0.0}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("faults"))


def at_step(step: int, what, monkeypatch, rank: int = 1) -> None:
    """Call `what` once, on one rank in a step."""
    right = loop.Loop.train_step

    def wrong(self):
        done = self.job.out / "done"
        if self.mesh.rank == rank and self.step == step and not done.exists():
            done.touch()
            what()
        return right(self)

    monkeypatch.setattr(loop.Loop, "train_step", wrong)


def events(out: Path, kind: str) -> list[dict]:
    return [e for e in read(out / EVENTS) if e["event"] == kind]


def steps_of(out: Path, kind: str) -> list[int]:
    return [e["step"] for e in events(out, kind)]


def saved(out: Path) -> list[str]:
    return [path.name for path in published(out / CHECKPOINTS)]


def test_dead_rank_is_named_first_with_step_and_cause(tokens, tmp_path, monkeypatch, capfd) -> None:
    at_step(5, lambda: os.kill(os.getpid(), signal.SIGKILL), monkeypatch)
    start(job(tokens, tmp_path, plan({"data": 2}), steps=8, restarts=1, supervision=QUICK, save="waiting"))
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "warning: rank 1 of 2 in step 5: killed by SIGKILL"
    assert lines[1].startswith("warning: restart 1 of 1 in 0 s")
    assert steps_of(tmp_path, "resumed") == [4]
    times = [e["time"] for e in read(tmp_path / EVENTS)]
    assert times == sorted(times)


TEN = [(n * 10 + 1, n * 10) for n in range(1, 8)]


@pytest.mark.parametrize(
    ("ends", "restarts", "attempts"),
    [
        ([(11, 10), (12, 10), (13, 10), (14, 10)], 2, 3),  # failures at the same checkpoint use up the restarts
        ([*TEN, (72, 70), (73, 70), (74, 70)], 2, len(TEN) + 2),  # each newer checkpoint renews them
        ([(11, 10), (11, 10), (12, 10)], 9, 2),  # a step that fails twice is not tried again
    ],
)
def test_restarts_are_counted_from_the_newest_checkpoint(tmp_path, monkeypatch, ends, restarts, attempts) -> None:
    """ends: of each attempt, the step in which it fails, and the step of the newest checkpoint."""
    given = job(tmp_path, tmp_path / "run", plan({}), restarts=restarts, supervision={"restart_seconds": 0})
    (given.out / CHECKPOINTS).mkdir(parents=True)
    made = list[int]()

    def attempt(self, job, heartbeats) -> None:
        step, saved = ends[len(made)]
        made.append(step)
        (given.out / CHECKPOINTS / f"step-{saved:08d}").mkdir(exist_ok=True)
        heartbeats.begin(0, step, "step")
        raise RankFailed(0, {0: 1}, "it failed")

    monkeypatch.setattr(Supervisor, "_attempt", attempt)
    monkeypatch.setattr(launcher, "recover", lambda root: None)
    with pytest.raises(TriviumError) as ended:
        Supervisor(given, Requests(), lambda *_: None, lambda *_: None).run(())
    assert len(made) == len(events(given.out, "rank failed")) == attempts
    assert ("it failed there twice" in str(ended.value)) == (restarts == 9)


def loiter() -> None:
    while True:
        time.sleep(0.1)


def test_hanging_rank_is_named_with_its_stack(tokens, tmp_path, monkeypatch) -> None:
    at_step(4, loiter, monkeypatch, rank=0)
    start(job(tokens, tmp_path, plan({"tensor": 2}), steps=6, restarts=1, supervision=QUICK))
    (failure,) = events(tmp_path, "rank failed")
    assert failure["rank"] == 0 and failure["in_step"] == 4
    assert "the others wait for it" in failure["cause"] and "in loiter" in failure["cause"]


@pytest.mark.broad
def test_rank_is_not_hanging_while_its_slow_disk_reads_block_after_block(tokens, tmp_path, monkeypatch) -> None:
    def block_by_block(work: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*given: Any) -> Any:
            for _ in range(12):
                time.sleep(0.5)
                given[-1]()
            return work(*given)

        return slow

    short = {"stall_seconds": 4.0, "hang_seconds": 4.0}
    given = job(tokens, tmp_path, plan({}), steps=2, restarts=0, save="waiting", supervision=short)
    monkeypatch.setattr(pieces, "read_back", block_by_block(pieces.read_back))
    start(given)
    monkeypatch.undo()
    monkeypatch.setattr(verify, "file_sha256", block_by_block(verify.file_sha256))
    start(replace(given, training=given.training.model_copy(update={"steps": 3})))
    assert events(tmp_path, "resumed") and not events(tmp_path, "rank failed")


PATIENCE = {"timeout_seconds": 2.0, "stall_seconds": 60.0}


@pytest.mark.broad
@pytest.mark.parametrize("messages", ["memory", "network"])
@pytest.mark.parametrize("layout", [{"pipeline": 2}, {"data": 2}])
def test_ranks_wait_long_for_the_first_step_and_then_up_to_the_timeout(
    tokens, tmp_path, monkeypatch, layout: dict, messages: str
) -> None:
    """Later stages wait in a receive while the first one compiles."""
    monkeypatch.setenv("TRIVIUM_MESSAGES", messages)
    with monkeypatch.context() as first:
        at_step(1, partial(time.sleep, 5.0), first, rank=0)
        start(job(tokens, tmp_path / "a", plan(layout), steps=2, restarts=0, supervision=PATIENCE))
    assert not events(tmp_path / "a", "rank failed")
    at_step(3, partial(time.sleep, 60.0), monkeypatch, rank=0)
    begin = time.monotonic()
    with pytest.raises(TriviumError, match="rank 1 of 2 in step 3"):
        start(job(tokens, tmp_path / "b", plan(layout), steps=4, restarts=0, supervision=PATIENCE))
    assert time.monotonic() - begin < 30


def test_request_to_end_reaches_a_job_that_pauses_before_a_restart(tokens, tmp_path) -> None:
    given = job(tokens, tmp_path / "run", plan({"data": 2}), restarts=1, supervision={"restart_seconds": 60.0})
    life = Life.begin(given, tmp_path / "log")
    life.wait_for(lambda: last_step(given.out / METRICS) > 2)
    life.signal(signal.SIGKILL, life.ranks[0])
    life.wait_for(lambda: bool(events(given.out, "rank failed")))
    life.signal(signal.SIGTERM, life.pid)
    assert life.gone_within(10, []) is not None and life.exit_code == Preempted.exit_code


@pytest.mark.parametrize(
    ("number", "to_all", "ends"),
    [(signal.SIGUSR1, False, Preempted), (signal.SIGINT, True, Interrupted)],
    ids=["one rank by a scheduler", "Ctrl-C, which a terminal sends to the launcher and its ranks"],
)
def test_signal_makes_all_ranks_save_once_and_the_run_resumes_there(tokens, tmp_path, number, to_all, ends) -> None:
    given = job(tokens, tmp_path / "run", plan({"data": 2}), checkpoint_every=1000)
    life = Life.begin(given, tmp_path / "log")
    life.wait_for(lambda: last_step(given.out / METRICS) > 2)
    life.signal(number, *([life.pid, *life.ranks] if to_all else [life.ranks[-1]]))
    assert life.gone_within(30, life.ranks) is not None and life.exit_code == ends.exit_code
    done = last_step(given.out / METRICS)
    assert steps_of(given.out, "saved") == [done] and saved(given.out) == [f"step-{done:08d}"]
    assert f"saved after step {done}" in life.last_line
    start(job(tokens, given.out, plan({"tensor": 2}), steps=done + 2, decay_tokens=1_000_000))
    assert steps_of(given.out, "resumed") == [done]


def test_ctrl_c_before_the_first_step_ends_at_once(tokens, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(loop, "verify_together", lambda *_: time.sleep(60))
    given = job(tokens, tmp_path / "run", plan({"data": 2}))
    life = Life.begin(given, tmp_path / "log")
    life.wait_for(lambda: len(life.ranks) == 2)
    life.signal(signal.SIGINT, life.pid, *life.ranks)
    assert life.gone_within(10, life.ranks) is not None and life.exit_code == Interrupted.exit_code
    assert "before the first step" in life.last_line and not saved(given.out)


def test_ctrl_c_in_the_last_step_is_not_a_failure_of_a_rank(tokens, tmp_path, monkeypatch) -> None:
    given = job(tokens, tmp_path / "run", plan({"data": 2}), steps=4)
    at_step(4, lambda: os.kill(os.getpid(), signal.SIGINT), monkeypatch)
    assert start(given)["steps"] == 4 and not events(given.out, "rank failed")


def test_process_started_to_ignore_ctrl_c_keeps_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with listening(lambda _: None) as requests:
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert not requests.asked
    finally:
        signal.signal(signal.SIGINT, before)


def test_preempted_job_saves_at_once_and_validates_when_it_resumes(tokens, tmp_path, monkeypatch) -> None:
    def ask() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.3)

    given = job(tokens, tmp_path / "run", plan({"data": 2}), steps=6, validate_every=4, checkpoint_every=1000)
    at_step(4, ask, monkeypatch)
    with pytest.raises(Preempted):
        start(given)
    validated = lambda: [m["step"] for m in read(given.out / METRICS) if "validation_loss" in m]  # noqa: E731
    assert saved(given.out) == ["step-00000004"] and not validated()
    start(given)
    assert validated() == [4, 6]
    lines = [m["step"] for m in read(given.out / METRICS)]
    assert lines == sorted(lines) and lines.count(4) == 2


def test_job_that_cannot_save_in_time_is_ended(tokens, tmp_path, capfd) -> None:
    given = job(tokens, tmp_path / "run", plan({"data": 2}), supervision={"preemption_seconds": 0.5})
    life = Life.begin(given, tmp_path / "log")
    life.wait_for(lambda: last_step(given.out / METRICS) > 2)
    life.signal(signal.SIGSTOP, life.ranks[0])
    life.signal(signal.SIGTERM, life.pid)
    assert life.gone_within(10, life.ranks) is not None and life.exit_code == Preempted.exit_code
    assert "did not save within" in capfd.readouterr().err + (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("report", "host"),
    [
        ("rank 3 has closed its connection to this one: it has ended", None),
        ("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.4]:29500", None),
        ("CUDA error: an illegal memory access was encountered", "node-17"),
    ],
)
def test_host_of_a_rank_that_lost_a_connection_is_not_to_be_excluded(tmp_path, report: str, host: str | None) -> None:
    Failure(RankFailed(1, {1: None}, report), Heartbeat(7, "step", 0.0, 0.0), "node-17").note(tmp_path)
    (event,) = events(tmp_path, "rank failed")
    assert event.get("host") == host and report in event["cause"]


def test_simultaneous_signals_are_one_request_and_a_later_one_is_the_second() -> None:
    requests, seconds = Requests(), []
    requests.note(signal.SIGTERM, seconds.append)
    requests.note(signal.SIGUSR1, seconds.append)
    assert (requests.asked, requests.again, seconds) == ("SIGTERM", 0, [])
    requests.since -= 2
    requests.note(signal.SIGUSR1, seconds.append)
    assert (requests.again, seconds) == (signal.SIGUSR1, [signal.SIGUSR1])


def test_signal_held_back_while_ranks_are_forked_reaches_the_listener() -> None:
    outer = signal.signal(signal.SIGTERM, before := lambda *_: None)
    with held_back():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
        with listening(lambda _: None) as requests:
            deadline = time.monotonic() + 5
            while not requests.asked and time.monotonic() < deadline:
                time.sleep(0.01)
    assert requests.asked == "SIGTERM"
    assert signal.signal(signal.SIGTERM, outer) is before


def test_rank_that_has_not_begun_a_step_is_named_without_one() -> None:
    beat = Heartbeats(2).of(1)
    assert (beat.step, beat.phase) == (0, "starting")
    failed = Failure(RankFailed(1, {1: None}, "no memory"), beat, "node-17")
    assert "rank 1 of 1 on node-17, starting: no memory" in str(failed.located())


def test_heartbeats_can_be_read_while_they_are_written() -> None:
    beats, ends = Heartbeats(1), time.monotonic() + 1
    if (rank := os.fork()) == 0:
        while time.monotonic() < ends:
            beats.begin(0, 1, "step")
            beats.alive(0)
        os._exit(0)
    read = [beats.of(0)]
    while time.monotonic() < ends:
        read.append(beats.of(0))
    os.waitpid(rank, 0)
    assert all(before.at <= after.at and before.since <= after.since for before, after in pairwise(read))


def test_collectives_of_later_steps_and_of_saving_time_out_sooner_than_those_in_which_ranks_may_compile() -> None:
    config = Supervision(timeout_seconds=2.0, stall_seconds=60.0)
    waits = {(phase, first): seconds_to_wait(config, phase, is_first=first) for phase in PHASES for first in (0, 1)}
    short = {("saving", 0), ("saving", 1), ("step", 0)}
    assert waits == {case: 2.0 if case in short else 60.0 for case in waits}


class Watched:
    """Two ranks, a watchdog, and a clock set by hand."""

    def __init__(self, monkeypatch, stacks: dict[int, str] | None = None, **config: float) -> None:
        self.now = 1000.0
        clock = lambda: self.now  # noqa: E731
        monkeypatch.setattr("trivium.training.supervision.heartbeats.time", SimpleNamespace(monotonic=clock))
        monkeypatch.setattr(watching, "is_stopped", lambda pid: False)
        monkeypatch.setattr(Watchdog, "stacks", lambda self: (stacks or {0: "", 1: ""}, []))
        self.beats = Heartbeats(2)
        self.dog = Watchdog(self.beats, [0, 0], Supervision(**config), clock)

    def wait(self, seconds: float, times: int = 1) -> None:
        for _ in range(times):
            self.now += seconds
            self.dog.look()

    def steps(self, seconds: float, first: int, last: int) -> None:
        for step in range(first, last):
            for rank in range(2):
                self.beats.begin(rank, step, "step")
            self.dog.look()
            self.wait(seconds / 10, times=10)


def test_limit_is_the_minimum_or_three_times_the_99th_percentile(monkeypatch) -> None:
    watched = Watched(monkeypatch, hang_seconds=4.0)
    assert watched.dog.patience.of_a_step == 4.0
    watched.steps(3.0, 1, 50)
    assert watched.dog.patience.limit("step") == pytest.approx(9.0)
    watched.wait(4.5)
    with pytest.raises(RankFailed, match=r"no heartbeat for 11\.5 s; the limit is 9\.0 s"):
        watched.wait(4.0)


def test_several_steps_between_two_looks_share_the_time() -> None:
    patience = watching.Patience(Supervision(hang_seconds=1.0))
    for step, since in ((1, 10.0), (4, 16.0)):
        patience.learn(Heartbeat(step=step, phase="step", at=since, since=since))
    assert patience.of_a_step == pytest.approx(3 * 2.0)


@pytest.mark.parametrize("before", ["starting", "validating"])
def test_first_step_of_a_resumed_process_may_take_as_long_as_a_start(before: Phase) -> None:
    config = Supervision()
    patience = watching.Patience(config)
    for step, phase, since in ((0, "starting", 100.0), (2, before, 101.0), (3, "step", 102.0)):
        patience.learn(Heartbeat(step=step, phase=phase, at=since, since=since))
    assert patience.limit("step") == config.stall_seconds


def test_first_step_may_take_as_long_as_a_start(monkeypatch) -> None:
    """MT-NLG's took 60 s, twice `hang_seconds`: nobody knows the duration before."""
    config = {"hang_seconds": 4.0, "stall_seconds": 9.0}
    watched = Watched(monkeypatch, **config)
    watched.steps(8.0, 1, 5)
    assert watched.dog.patience.limit("step") == pytest.approx(24.0)
    with pytest.raises(RankFailed, match=r"the limit is 9\.0 s.*raise training\.supervision\.hang_seconds"):
        Watched(monkeypatch, **config).steps(10.0, 1, 2)


def test_step_may_take_any_time_while_its_micro_batches_send_heartbeats(monkeypatch) -> None:
    watched = Watched(monkeypatch, hang_seconds=4.0, stall_seconds=9.0)
    for step in (1, 2, 3):
        for rank in range(2):
            watched.beats.begin(rank, step, "step")
        for micro_batch in range(1, 6):
            watched.now += 4.0
            watched.beats.alive(0)
            watched.beats.alive(1)
            if micro_batch >= step:  # the step began before it is first seen
                watched.dog.look()
    assert watched.dog.patience.of_a_step == pytest.approx(60.0)  # a step is still known to take 20 s
    with pytest.raises(RankFailed, match=r"no heartbeat for 64\.0 s"):
        watched.wait(4.0, times=16)


def test_every_micro_batch_of_training_and_validation_sends_a_heartbeat(tokens, tmp_path, monkeypatch) -> None:
    sent, beats = [], Heartbeats(1)
    monkeypatch.setattr(Heartbeats, "alive", lambda self, rank: sent.append(self.of(rank)[:2]))
    begun = job(tokens, tmp_path, plan({}), steps=2, validation_samples=6)
    train_rank(ALONE, begun, RankHeartbeat(0, beats))
    micro_batches, validated = begun.plan.batch.micro_batches(begun.plan.layout), 6 // begun.plan.batch.micro
    counted = {(1, "step"): micro_batches, (2, "step"): micro_batches, (2, "validating"): validated}
    assert Counter(each for each in sent if each[1] not in ("starting", "saving")) == counted


def test_rank_that_waits_for_one_that_saves_has_as_much_time(monkeypatch) -> None:
    waiting = '  File "/x/trivium/comms/transports.py", line 40 in wait'
    watched = Watched(monkeypatch, {0: '  File "/x/save.py", line 1', 1: waiting}, hang_seconds=1.0, stall_seconds=9.0)
    watched.steps(0.3, 1, 4)
    watched.beats.begin(0, 3, "saving")
    watched.beats.begin(1, 4, "step")
    watched.wait(1.1, times=8)
    with pytest.raises(RankFailed, match=r"rank 0 of 2: hangs: no heartbeat for 9\.9 s; the limit is 9\.0 s"):
        watched.wait(1.1)


def test_launcher_that_was_stopped_itself_blames_nobody(monkeypatch) -> None:
    watched = Watched(monkeypatch, hang_seconds=4.0)
    watched.steps(1.0, 1, 5)
    for seconds in (3600.0, 3.0):
        watched.wait(seconds)
    with pytest.raises(RankFailed):
        watched.wait(3.0)


def test_innermost_calls_show_whether_a_rank_waits_for_others() -> None:
    deep = '  File "/x/torch/nn/functional.py", line 1 in f\n' * 4
    assert waits('  File "/x/trivium/comms/transports.py", line 40 in wait\n' + deep)
    assert not waits(deep + '  File "/x/trivium/comms/transports.py", line 40 in wait\n')


@pytest.mark.parametrize("depth", (3, 300))
def test_stack_of_any_depth_is_found(depth: int, tmp_path: Path) -> None:
    """Nested imports make stacks deep, and faulthandler cuts off the outermost frames, which show `train_rank`."""

    def train_rank() -> None:
        deeper(depth)

    def deeper(left: int) -> None:
        if left:
            deeper(left - 1)
        else:
            with open(tmp_path / "stacks", "wb") as file:
                faulthandler.dump_traceback(file, all_threads=True)

    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    train_rank()
    over.set()
    other.join()
    text = (tmp_path / "stacks").read_text()
    assert ("in train_rank" in text) == (depth < 100)
    assert innermost(text).startswith("  File") and "in deeper" in innermost(text)
    begun = text[: text.index("in deeper")]
    assert not innermost(begun) and signalled(begun).startswith("  File")  # while it is being written


def test_rank_whose_accelerator_waits_for_others_waits(monkeypatch) -> None:
    """The CPU has launched everything, and waits for the totals, a sum over ranks, or the end of a step."""
    stacks: list[str] = []

    class Waits(Exception):
        """Raised instead of waiting for an event that never comes."""

    def synchronize() -> None:
        stacks.append(stack_of_main_thread())
        raise Waits

    event = SimpleNamespace(record=lambda: None, synchronize=synchronize)
    with accelerator() as seen:
        monkeypatch.setattr(torch.cuda, "Event", lambda **_: event)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: synchronize())
        clock, mesh = clocks.Clock(seen.device), Mesh.single(seen.device)
        clock.mark()
        told = read_later(torch.empty(4, device=seen.device))
        for wait in (told, partial(sums, [1.0], mesh), clock.seconds, partial(clocks.finished, seen.device)):
            with pytest.raises(Waits):
                wait()
    assert len(stacks) == 4 and all(map(waits, stacks))
