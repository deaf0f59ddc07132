"""Ranks that die, hang or are asked to end: named, restarted or saved, and never repeated for nothing."""

import faulthandler
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
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
from trivium.training.loop import CHECKPOINTS
from trivium.training.metrics import EVENTS, METRICS, last_step, read
from trivium.training.rank import train_rank
from trivium.training.supervision import watchdog as watching
from trivium.training.supervision.job import start
from trivium.training.supervision.neighbours import stack_of_main_thread
from trivium.training.supervision.preemption import Requests, held_back, listening
from trivium.training.supervision.pulse import Beat, Post, Pulse
from trivium.training.supervision.supervise import note_failure
from trivium.training.supervision.watchdog import Watchdog, asked, innermost, percentile_99, waits

QUICK = {"hang_seconds": 3.0, "restart_seconds": 0.0}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("faults"))


def at_step(step: int, what, monkeypatch, times: int = 1, rank: int = 1) -> None:
    """Let one rank do something in a step, in so many lives."""
    right = loop.Loop.train_step
    marks = [object() for _ in range(times)]

    def wrong(self):
        done = self.job.out / "done"
        done.mkdir(exist_ok=True)
        if self.mesh.rank == rank and self.step == step and len(list(done.iterdir())) < len(marks):
            (done / str(os.getpid())).touch()
            what()
        return right(self)

    monkeypatch.setattr(loop.Loop, "train_step", wrong)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def of_kind(out: Path, kind: str) -> list[dict]:
    return [e for e in read(out / EVENTS) if e["event"] == kind]


def test_a_rank_that_dies_is_named_first_with_step_and_cause(tokens, tmp_path, monkeypatch, capfd) -> None:
    at_step(5, die, monkeypatch)
    start(job(tokens, tmp_path, plan({"data": 2}), steps=8, restarts=1, supervision=QUICK, save="waiting"))
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "warning: rank 1 of 2 in step 5: killed by SIGKILL"
    assert lines[1].startswith("warning: restart 1 of 1 in 0 s")
    assert [e["step"] for e in of_kind(tmp_path, "resumed")] == [4]
    times = [e["time"] for e in read(tmp_path / EVENTS)]
    assert times == sorted(times)


def test_a_step_that_fails_twice_is_not_tried_a_third_time(tokens, tmp_path, monkeypatch) -> None:
    at_step(5, die, monkeypatch, times=9)
    with pytest.raises(Exception, match=r"rank 1 of 2 in step 5: killed by SIGKILL\nstopped: it failed there twice"):
        start(job(tokens, tmp_path, plan({"data": 2}), steps=8, restarts=9, supervision=QUICK))
    assert len(of_kind(tmp_path, "rank failed")) == 2


def loiter() -> None:
    while True:
        time.sleep(0.1)


def test_a_rank_that_hangs_is_found_and_named_with_its_stack(tokens, tmp_path, monkeypatch) -> None:
    at_step(4, loiter, monkeypatch, rank=0)
    start(job(tokens, tmp_path, plan({"tensor": 2}), steps=6, restarts=1, supervision=QUICK))
    (failure,) = of_kind(tmp_path, "rank failed")
    assert failure["rank"] == 0 and failure["in_step"] == 4
    assert "the others wait for it" in failure["cause"] and "in loiter" in failure["cause"]


@pytest.mark.broad
def test_a_rank_is_not_hanging_while_its_slow_disk_gives_block_after_block(tokens, tmp_path, monkeypatch) -> None:
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
    assert of_kind(tmp_path, "resumed") and not of_kind(tmp_path, "rank failed")


@pytest.mark.broad
@pytest.mark.parametrize("messages", ["memory", "network"])
def test_a_rank_may_take_longer_in_its_first_step_than_others_wait_for_it_later(
    tokens, tmp_path, monkeypatch, messages: str
) -> None:
    """Later stages wait in a receive while the first one compiles."""
    monkeypatch.setenv("TRIVIUM_MESSAGES", messages)
    at_step(1, partial(time.sleep, 5.0), monkeypatch, rank=0)
    patience = {"timeout_seconds": 2.0, "stall_seconds": 60.0}
    start(job(tokens, tmp_path, plan({"pipeline": 2}), steps=4, restarts=0, supervision=patience))
    assert not of_kind(tmp_path, "rank failed") and last_step(tmp_path / METRICS) == 4


@pytest.mark.broad
@pytest.mark.parametrize("messages", ["memory", "network"])
@pytest.mark.parametrize("layout", [{"pipeline": 2}, {"data": 2}])
def test_after_the_first_step_none_waits_longer_than_the_timeout(
    tokens, tmp_path, monkeypatch, layout: dict, messages: str
) -> None:
    monkeypatch.setenv("TRIVIUM_MESSAGES", messages)
    at_step(3, partial(time.sleep, 60.0), monkeypatch, rank=0)
    patience = {"timeout_seconds": 2.0, "stall_seconds": 60.0}
    begin = time.monotonic()
    with pytest.raises(TriviumError, match="rank 1 of 2 in step 3"):
        start(job(tokens, tmp_path, plan(layout), steps=4, restarts=0, supervision=patience))
    assert time.monotonic() - begin < 30


def test_a_request_to_end_reaches_the_job_while_it_pauses_before_a_restart(tokens, tmp_path) -> None:
    long = {"restart_seconds": 60.0}
    given = job(tokens, tmp_path / "run", plan({"data": 2}), restarts=1, supervision=long)
    life = Life.begin(given, tmp_path / "log")
    life.wait_for(lambda: last_step(given.out / METRICS) > 2)
    life.signal(signal.SIGKILL, life.ranks[0])
    life.wait_for(lambda: bool(of_kind(given.out, "rank failed")))
    life.signal(signal.SIGTERM, life.pid)
    assert life.gone_within(10, []) is not None and life.exit_code == Preempted.exit_code


def test_one_rank_asked_to_end_makes_all_save_once_and_the_run_goes_on_from_there(tokens, tmp_path) -> None:
    given = job(tokens, tmp_path / "run", plan({"data": 2}), checkpoint_every=1000)
    life = Life.begin(given, tmp_path / "log")
    life.wait_for(lambda: last_step(given.out / METRICS) > 2)
    life.signal(signal.SIGUSR1, life.ranks[-1])
    assert life.gone_within(30, life.ranks) is not None and life.exit_code == Preempted.exit_code
    done = last_step(given.out / METRICS)
    assert [e["step"] for e in of_kind(given.out, "saved")] == [done]
    assert [p.name for p in published(given.out / CHECKPOINTS)] == [f"step-{done:08d}"]
    start(job(tokens, given.out, plan({"tensor": 2}), steps=done + 2, decay_tokens=1_000_000))
    assert [e["step"] for e in of_kind(given.out, "resumed")] == [done]


def test_ctrl_c_saves_once_and_the_run_goes_on_from_there(tokens, tmp_path) -> None:
    """A terminal interrupts the launcher and its ranks alike."""
    given = job(tokens, tmp_path / "run", plan({"data": 2}), checkpoint_every=1000)
    life = Life.begin(given, tmp_path / "log")
    life.wait_for(lambda: last_step(given.out / METRICS) > 2)
    life.signal(signal.SIGINT, life.pid, *life.ranks)
    assert life.gone_within(30, life.ranks) is not None and life.exit_code == Interrupted.exit_code
    done = last_step(given.out / METRICS)
    assert [p.name for p in published(given.out / CHECKPOINTS)] == [f"step-{done:08d}"]
    assert f"saved after step {done}" in life.last_line
    start(job(tokens, given.out, plan({"tensor": 2}), steps=done + 2, decay_tokens=1_000_000))
    assert [e["step"] for e in of_kind(given.out, "resumed")] == [done]


def test_ctrl_c_before_the_first_step_ends_at_once(tokens, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(loop, "verify_together", lambda *_: time.sleep(60))
    given = job(tokens, tmp_path / "run", plan({"data": 2}))
    life = Life.begin(given, tmp_path / "log")
    life.wait_for(lambda: len(life.ranks) == 2)
    life.signal(signal.SIGINT, life.pid, *life.ranks)
    assert life.gone_within(10, life.ranks) is not None and life.exit_code == Interrupted.exit_code
    assert "before the first step" in life.last_line and not published(given.out / CHECKPOINTS)


def test_ctrl_c_in_the_last_step_is_no_failure_of_a_rank(tokens, tmp_path, monkeypatch) -> None:
    given = job(tokens, tmp_path / "run", plan({"data": 2}), steps=4)
    at_step(4, lambda: os.kill(os.getpid(), signal.SIGINT), monkeypatch)
    assert start(given)["steps"] == 4 and not of_kind(given.out, "rank failed")


def test_who_was_started_to_ignore_ctrl_c_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with listening(lambda _: None) as requests:
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert not requests.asked
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_job_that_is_asked_to_end_saves_at_once_and_validates_where_it_goes_on(tokens, tmp_path, monkeypatch) -> None:
    def ask() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.3)

    given = job(tokens, tmp_path / "run", plan({"data": 2}), steps=6, validate_every=4, checkpoint_every=1000)
    at_step(4, ask, monkeypatch)
    with pytest.raises(Preempted):
        start(given)
    validated = lambda: [m["step"] for m in read(given.out / METRICS) if "validation_loss" in m]  # noqa: E731
    assert [p.name for p in published(given.out / CHECKPOINTS)] == ["step-00000004"] and not validated()
    start(given)
    assert validated() == [4, 6]
    lines = [m["step"] for m in read(given.out / METRICS)]
    assert lines == sorted(lines) and lines.count(4) == 2


def test_a_job_that_cannot_save_in_time_is_ended(tokens, tmp_path, capfd) -> None:
    impatient = {"preemption_seconds": 0.5}
    given = job(tokens, tmp_path / "run", plan({"data": 2}), supervision=impatient)
    life = Life.begin(given, tmp_path / "log")
    life.wait_for(lambda: last_step(given.out / METRICS) > 2)
    life.signal(signal.SIGSTOP, life.ranks[0])
    life.signal(signal.SIGTERM, life.pid)
    assert life.gone_within(10, life.ranks) is not None and life.exit_code == Preempted.exit_code
    assert "did not save within" in capfd.readouterr().err + (tmp_path / "log").read_text()


@pytest.mark.parametrize(("said", "names"), [
    ("rank 3 has closed its connection to this one: it has ended", False),
    ("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.4]:29500", False),
    ("CUDA error: an illegal memory access was encountered", True),
])  # fmt: skip
def test_who_lost_a_connection_is_not_the_host_to_leave_out(tmp_path, said: str, names: bool) -> None:
    note_failure(tmp_path, RankFailed(1, {1: None}, said), Beat(7, "step", 0.0, 0.0), "node-17")
    (event,) = of_kind(tmp_path, "rank failed")
    assert event.get("host") == ("node-17" if names else None) and said in event["cause"]


def test_signals_that_come_together_are_one_request_and_a_later_one_is_the_second() -> None:
    requests, seconds = Requests(), []
    requests.note(signal.SIGTERM, seconds.append)
    requests.note(signal.SIGUSR1, seconds.append)
    assert (requests.asked, requests.again, seconds) == ("SIGTERM", 0, [])
    requests.since -= 2
    requests.note(signal.SIGUSR1, seconds.append)
    assert (requests.again, seconds) == (signal.SIGUSR1, [signal.SIGUSR1])


def test_a_signal_held_back_while_ranks_are_forked_is_heard_by_who_listens() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with held_back():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
        with listening(lambda _: None) as requests:
            deadline = time.monotonic() + 5
            while not requests.asked and time.monotonic() < deadline:
                time.sleep(0.01)
    assert requests.asked == "SIGTERM"
    assert signal.getsignal(signal.SIGTERM) is before


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def watched(monkeypatch, config: Supervision) -> tuple[Clock, Pulse, Watchdog]:
    clock = Clock()
    monkeypatch.setattr("trivium.training.supervision.pulse.time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(watching, "is_stopped", lambda pid: False)
    monkeypatch.setattr(Watchdog, "_stacks", lambda self, stopped: {0: "", 1: ""})
    pulse = Pulse(2)
    return clock, pulse, Watchdog(pulse, [0, 0], config, clock)


def steps(clock: Clock, pulse: Pulse, dog: Watchdog, seconds: float, first: int, last: int) -> None:
    for step in range(first, last):
        for rank in range(2):
            pulse.beat(rank, step, "step")
        dog.look()
        for _ in range(10):
            clock.now += seconds / 10
            dog.look()


def test_the_limit_is_the_floor_or_three_times_the_99th_percentile(monkeypatch) -> None:
    clock, pulse, dog = watched(monkeypatch, Supervision(hang_seconds=4.0))
    assert dog.patience.of_a_step == 4.0
    steps(clock, pulse, dog, 3.0, 1, 50)
    assert dog.patience.limit("step") == pytest.approx(9.0)
    clock.now += 4.5
    dog.look()
    clock.now += 4.0
    with pytest.raises(RankFailed, match=r"no heartbeat for 11\.5 s; the limit is 9\.0 s"):
        dog.look()


def test_of_several_steps_between_two_looks_each_took_its_share() -> None:
    patience = watching.Patience(Supervision(hang_seconds=1.0))
    for step, since in ((1, 10.0), (4, 16.0)):
        patience.learn(Beat(step=step, phase="step", at=since, since=since))
    assert patience.of_a_step == pytest.approx(3 * 2.0)


def test_the_first_step_may_take_as_long_as_a_start(monkeypatch) -> None:
    """MT-NLG's took 60 s, twice `hang_seconds`: nobody knows it before one is over."""
    clock, pulse, dog = watched(monkeypatch, Supervision(hang_seconds=4.0, stall_seconds=9.0))
    steps(clock, pulse, dog, 8.0, 1, 5)
    assert dog.patience.limit("step") == pytest.approx(24.0)
    clock, pulse, dog = watched(monkeypatch, Supervision(hang_seconds=4.0, stall_seconds=9.0))
    with pytest.raises(RankFailed, match=r"the limit is 9\.0 s.*raise training\.supervision\.hang_seconds"):
        steps(clock, pulse, dog, 10.0, 1, 2)


def test_a_step_may_take_any_time_while_its_micro_batches_give_signs_of_life(monkeypatch) -> None:
    clock, pulse, dog = watched(monkeypatch, Supervision(hang_seconds=4.0, stall_seconds=9.0))
    for step in (1, 2, 3):
        for rank in range(2):
            pulse.beat(rank, step, "step")
        for micro_batch in range(1, 6):
            clock.now += 4.0
            pulse.go_on(0)
            pulse.go_on(1)
            if micro_batch >= step:  # when a step begins is not when it is first seen
                dog.look()
    assert dog.patience.of_a_step == pytest.approx(60.0)  # a step is still known to take 20 s
    with pytest.raises(RankFailed, match=r"no heartbeat for 64\.0 s"):
        for _ in range(16):
            clock.now += 4.0
            dog.look()


def test_every_micro_batch_of_training_and_of_validation_gives_a_sign_of_life(tokens, tmp_path, monkeypatch) -> None:
    signs, pulse = [], Pulse(1)
    monkeypatch.setattr(Pulse, "go_on", lambda self, rank: signs.append(self.of(rank)[:2]))
    begun = job(tokens, tmp_path, plan({}), steps=2, validation_samples=6)
    train_rank(ALONE, begun, Post(0, pulse))
    micro_batches, validated = begun.plan.batch.micro_batches(begun.plan.layout), 6 // begun.plan.batch.micro
    counted = {(1, "step"): micro_batches, (2, "step"): micro_batches, (2, "validating"): validated}
    assert Counter(sign for sign in signs if sign[1] not in ("starting", "saving")) == counted


def test_a_rank_that_starts_or_saves_has_longer(monkeypatch) -> None:
    clock, pulse, dog = watched(monkeypatch, Supervision(hang_seconds=1.0, stall_seconds=9.0))
    for _ in range(2):
        clock.now += 4.0
        dog.look()
    clock.now += 4.0
    with pytest.raises(RankFailed):
        dog.look()


def test_who_waits_for_a_rank_that_saves_is_as_patient_as_that_one(monkeypatch) -> None:
    clock, pulse, dog = watched(monkeypatch, Supervision(hang_seconds=1.0, stall_seconds=9.0))
    waiting = '  File "/x/trivium/comms/transports.py", line 40 in wait'
    monkeypatch.setattr(Watchdog, "_stacks", lambda self, stopped: {0: '  File "/x/save.py", line 1', 1: waiting})
    steps(clock, pulse, dog, 0.3, 1, 4)
    pulse.beat(0, 3, "saving")
    pulse.beat(1, 4, "step")
    for _ in range(8):
        clock.now += 1.1
        dog.look()
    clock.now += 1.1
    with pytest.raises(RankFailed, match=r"rank 0 of 2: hangs: no heartbeat for 9\.9 s; the limit is 9\.0 s"):
        dog.look()


def test_a_launcher_that_was_stopped_itself_blames_nobody(monkeypatch) -> None:
    clock, pulse, dog = watched(monkeypatch, Supervision(hang_seconds=4.0))
    steps(clock, pulse, dog, 1.0, 1, 5)
    clock.now += 3600.0
    dog.look()
    clock.now += 3.0
    dog.look()
    clock.now += 3.0
    with pytest.raises(RankFailed):
        dog.look()


def test_the_99th_percentile_leaves_out_the_hundredth_only() -> None:
    assert percentile_99([1.0] * 99 + [50.0]) == 1.0
    assert percentile_99([1.0] * 98 + [50.0]) == 50.0
    assert percentile_99([]) == 0.0


def test_who_waits_for_others_is_told_by_the_innermost_calls() -> None:
    deep = '  File "/x/torch/nn/functional.py", line 1 in f\n' * 4
    assert waits('  File "/x/trivium/comms/transports.py", line 40 in wait\n' + deep)
    assert not waits(deep + '  File "/x/trivium/comms/transports.py", line 40 in wait\n')


@pytest.mark.parametrize("depth", (3, 300))
def test_a_stack_is_told_however_deep_it_is(depth: int, tmp_path: Path) -> None:
    """As within imports of imports: faulthandler cuts what begins with the function that trains."""

    def train_rank() -> None:
        deeper(depth)

    def deeper(left: int) -> None:
        if left:
            deeper(left - 1)
        else:
            with open(tmp_path / "stacks", "wb") as file:
                faulthandler.dump_traceback(file, all_threads=True)

    over = threading.Event()
    beside = threading.Thread(target=over.wait)
    beside.start()
    train_rank()
    over.set()
    beside.join()
    text = (tmp_path / "stacks").read_text()
    assert ("in train_rank" in text) == (depth < 100)
    assert innermost(text).startswith("  File") and "in deeper" in innermost(text)
    begun = text[: text.index("in deeper")]
    assert not innermost(begun) and asked(begun).startswith("  File")  # while it is being written


def test_a_rank_whose_accelerator_waits_for_others_waits(monkeypatch) -> None:
    """Its processor has asked for everything, and waits for the totals, a sum over ranks, or the end of a step."""
    stacks: list[str] = []

    class Waits(Exception):
        """Of the event that does not come."""

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
