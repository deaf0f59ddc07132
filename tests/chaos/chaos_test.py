"""A quick share of `make chaos`; and each count can be other than zero."""

import ctypes
import json
import multiprocessing
import os
import platform
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from chaos import corrupt, disk_full, freeze, kills, life, orphans, preempt, resume, run
from chaos.corrupt import DAMAGES
from chaos.life import Life, states
from chaos.scene import job, plan, write_tokens
from trivium.checkpoint import load
from trivium.comms import launch
from trivium.errors import CheckpointError, DataError
from trivium.training import resume as starting
from trivium.training.observers import saves
from trivium.training.supervision.job import start


def test_kills_lose_nothing(tmp_path: Path) -> None:
    found = kills.kill_often(tmp_path, 8, layouts=3)
    assert found["losses"] == [] and found["kills"] == 8 and found["steps"] > 0


@pytest.mark.broad
def test_saves_acknowledged_before_they_are_durable_are_found_by_kills(tmp_path: Path, monkeypatch) -> None:
    right = saves.Saves.begin

    def impatient(self, step: int, fragments, about) -> None:
        self._note({"event": "saved", "step": step, "time": 0.0})
        right(self, step, fragments, about)

    monkeypatch.setattr(saves.Saves, "begin", impatient)
    found = kills.kill_often(tmp_path, 12, layouts=1)
    assert found["acknowledged_lost"] > 0


def test_stale_moments_are_found_by_kills(tmp_path: Path, monkeypatch) -> None:
    right = saves.Saving.__init__

    def stale(self, root, step, fragments, *given) -> None:
        for f in fragments:
            if f.name == "moment1/head.norm.bias":
                f.values.mul_(1.001)
        right(self, root, step, fragments, *given)

    monkeypatch.setattr(saves.Saving, "__init__", stale)
    found = kills.kill_often(tmp_path, 3, layouts=1)
    assert found["wrong_tensors"] > 0 and "moment1/head.norm.bias" in " ".join(found["losses"])


def test_a_training_that_cannot_go_on_after_a_kill_is_found(tmp_path: Path, monkeypatch) -> None:
    """It loses nothing that was on the disk, and is of no use."""
    right = starting.newest_good

    def refuse(*given):
        if right(*given) is not None:
            raise CheckpointError("it is not gone on from")

    monkeypatch.setattr(starting, "newest_good", refuse)
    found = kills.kill_often(tmp_path, 6, layouts=1)
    assert found["ended_by_themselves"] > 0
    assert "with exit code 5; its last line: error: rank" in " ".join(found["losses"])


@pytest.mark.broad
def test_kills_meet_exports_before_and_after_their_end(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(kills, "PHASES", ("saving", *["export"] * 6))
    found = kills.kill_often(tmp_path, 24, layouts=1)
    assert found["losses"] == [] and set(found["exports"]) == {"none", "whole"}


@pytest.mark.broad
def test_an_export_that_is_there_before_it_is_whole_is_found(tmp_path: Path, monkeypatch) -> None:

    def early(source, folder, *, tokenizer):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        time.sleep(60)

    monkeypatch.setattr(kills, "export_hf", early)
    monkeypatch.setattr(kills, "_export_seconds", lambda out, to: 0.5)
    monkeypatch.setattr(kills, "PHASES", ("saving", *["export"] * 6))
    assert kills.kill_often(tmp_path, 10, layouts=1)["half_exports"] > 0


ONE_OF_EACH = {
    "freeze": lambda folder: freeze.freeze_often(folder, 1),
    "orphans": lambda folder: orphans.orphan_often(folder, 1),
    "preempt": lambda folder: preempt.preempt_often(folder, 1),
}


@pytest.mark.parametrize("harm", ONE_OF_EACH)
def test_a_training_that_ends_before_any_harm_is_done_is_a_loss(tmp_path: Path, monkeypatch, harm) -> None:
    def ends(job) -> None:
        raise DataError("no tokens")

    monkeypatch.setattr(life, "start", ends)
    found = ONE_OF_EACH[harm](tmp_path)
    (loss,) = found["losses"]
    assert loss.endswith("exit code 4; its last line: error: no tokens")


def test_a_training_ends_with_the_process_that_does_harm_to_it(tmp_path: Path) -> None:
    """However that ended."""
    work = job(write_tokens(tmp_path), tmp_path / "run", plan({"data": 2}))

    def begin() -> None:
        begun = Life.begin(work, tmp_path / "log.txt")
        begun.wait_for(lambda: len(begun.ranks) == 2)
        (tmp_path / "pids").write_text(json.dumps([begun.pid, *begun.ranks]))
        signal.pause()

    harmful = multiprocessing.get_context("fork").Process(target=begin)
    harmful.start()
    while not (tmp_path / "pids").exists():
        time.sleep(0.01)
    time.sleep(0.1)
    pids = json.loads((tmp_path / "pids").read_text())
    harmful.kill()
    harmful.join()
    until = time.monotonic() + 20
    while alive(pids) and time.monotonic() < until:
        time.sleep(0.01)
    assert not alive(pids)


def alive(pids: list[int]) -> list[int]:
    return [pid for pid, threads in states(pids).items() if set(threads) - {"Z"}]


def test_interrupted_runner_leaves_no_training_and_no_folder(tmp_path: Path, monkeypatch) -> None:
    pids: list[int] = []

    def interrupted(folder, count, **_):
        begun = Life.begin(job(write_tokens(folder), folder / "run", plan({"data": 2})), folder / "log.txt")
        begun.wait_for(lambda: len(begun.ranks) == 2)
        pids.extend([begun.pid, *begun.ranks])
        raise KeyboardInterrupt

    monkeypatch.setitem(run.HARMS, "freeze", (interrupted, ""))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        run_with(monkeypatch, "--freeze", "1")
    until = time.monotonic() + 10  # ranks end with their launcher, which the kernel tells them
    while alive(pids) and time.monotonic() < until:
        time.sleep(0.01)
    assert pids and not alive(pids)
    assert not list(tmp_path.glob("trivium-chaos-*"))


def beside(pids: Path):
    """A harm whose training runs beside it, and a process that it forks and that is asked to end, too."""

    def harm(folder: Path, count: int, **_):
        begun = Life.begin(job(write_tokens(folder), folder / "run", plan({"data": 2})), folder / "log.txt")
        begun.wait_for(lambda: len(begun.ranks) == 2)
        other = multiprocessing.get_context("fork").Process(target=waiting, args=(folder / "waits",))
        other.start()
        while not (folder / "waits").exists():
            time.sleep(0.01)
        os.kill(other.pid or 0, signal.SIGTERM)
        other.join()
        assert other.exitcode == -signal.SIGTERM and begun.lives and folder.exists()
        pids.write_text(json.dumps([begun.pid, *begun.ranks]))
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

    return harm


def waiting(at: Path) -> None:
    at.touch()
    signal.pause()


def within(pids: Path):
    """A harm whose training is launched by its own process."""

    def harm(folder: Path, count: int, **_):
        def watch(ranks: launch.Ranks, step: int) -> None:
            if step and not pids.exists():
                pids.write_text(json.dumps(ranks.pids))
                os.kill(os.getpid(), signal.SIGTERM)

        start(job(write_tokens(folder), folder / "run", plan({"data": 2})), watch=watch)

    return harm


def run_with(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    """Run `python -m chaos.run` with these options in this process; return the exit code."""
    monkeypatch.setattr(sys, "argv", ["chaos", *options])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    return run.main()


def exit_code_of_runner(monkeypatch: pytest.MonkeyPatch, *options: str) -> int | None:
    """Run it in a separate process."""
    runner = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(run_with(monkeypatch, *options)))
    runner.start()
    runner.join(120)
    runner.kill()
    return runner.exitcode


@pytest.mark.parametrize("harm", [beside, within])
def test_terminated_runner_leaves_no_process_and_no_folder(tmp_path: Path, monkeypatch, harm) -> None:
    """Temporary files of a killed launcher are removed too; processes that the runner forked remove nothing."""
    pids, temporary = tmp_path / "pids", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setitem(run.HARMS, "freeze", (harm(pids), ""))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    exit_code = exit_code_of_runner(monkeypatch, "--freeze", "1")
    until = time.monotonic() + 10
    while alive(json.loads(pids.read_text())) and time.monotonic() < until:
        time.sleep(0.01)
    assert exit_code == 128 + signal.SIGTERM and not alive(json.loads(pids.read_text()))
    assert not list(temporary.glob("trivium-*"))


def test_every_corruption_is_noticed(tmp_path: Path) -> None:
    found = corrupt.corrupt_often(tmp_path, 150)
    assert found["losses"] == [] and found["corruptions"] == 150
    assert set(found["by_kind"]) == set(DAMAGES)


def test_a_reader_that_does_not_hash_is_found_by_corruption(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(load.Checkpoint, "verify", lambda self, share=0, shares=1: None)
    assert corrupt.corrupt_often(tmp_path, 30)["undetected"] > 0


@pytest.mark.broad
def test_resumed_runs_are_bitwise_equal(tmp_path: Path) -> None:
    found = resume.resume_often(tmp_path, 2)
    assert found["losses"] == [] and found["bitwise_equal"] == 2


@pytest.mark.broad
def test_a_training_that_begins_anew_proves_no_resume(tmp_path: Path, monkeypatch) -> None:
    """It ends in the same bits, and no checkpoint had any part in that."""
    monkeypatch.setattr(starting, "newest_good", lambda *given: None)
    found = resume.resume_often(tmp_path, 1)
    assert found["bitwise_equal"] == 0
    (loss,) = found["losses"]
    assert loss.endswith("it was not resumed from a checkpoint")


@pytest.mark.broad
def test_a_full_disk_stops_no_training(tmp_path: Path) -> None:
    found = disk_full.fill_often(tmp_path, 2)
    assert found["losses"] == [] and found["went_on"] == 2


def test_runner_writes_its_counts_and_fails_if_anything_was_lost(tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "out.json"
    assert run_with(monkeypatch, "--corrupt", "5", "--json", str(out)) == 0
    found = json.loads(out.read_text())
    assert (found["corruptions"], found["undetected"], found["passed"]) == (5, 0, True)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""  # the runner forks trainings and computes in between
    monkeypatch.setattr(load.Checkpoint, "verify", lambda self, share=0, shares=1: None)
    assert run_with(monkeypatch, "--corrupt", "40", "--json", str(out)) == 1
    assert json.loads(out.read_text())["passed"] is False


def test_counts_of_several_faults_are_added_up(tmp_path: Path, monkeypatch) -> None:
    """A corruption that was not detected is not hidden because every poison was detected."""
    corrupted = {"corruptions": 3, "undetected": 2, "losses": ["one", "two"]}
    poisoned = {"poisons": 1, "undetected": 0, "losses": []}
    for option, found in (("corrupt", corrupted), ("poison", poisoned)):
        monkeypatch.setitem(run.HARMS, option, (lambda *given, found=found, **named: found, ""))
    out = tmp_path / "out.json"
    assert run_with(monkeypatch, "--corrupt", "3", "--poison", "1", "--json", str(out)) == 1
    found = json.loads(out.read_text())
    assert (found["corruptions"], found["poisons"], found["undetected"], found["passed"]) == (3, 1, 2, False)


@pytest.mark.broad
def test_a_training_that_is_preempted_saves_once_and_goes_on(tmp_path: Path) -> None:
    found = preempt.preempt_often(tmp_path, 5)
    assert found["losses"] == [] and found["saved_and_ended"] == 5


@pytest.mark.broad
def test_a_training_that_begins_anew_is_found_by_preemption(tmp_path: Path, monkeypatch) -> None:
    """Also where it gets further than the last life did."""
    monkeypatch.setattr(starting, "newest_good", lambda *given: None)
    monkeypatch.setattr(preempt, "TARGETS", ("launcher",))
    monkeypatch.setattr(preempt, "_saved_once", lambda out, events, every: [])
    found = preempt.preempt_often(tmp_path, 5)
    assert any("started from scratch, though" in loss for loss in found["losses"]), found


def test_a_save_that_is_forgotten_is_found_by_preemption(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(saves.Saves, "at_checkpoint", lambda self, loop: None)
    assert preempt.preempt_often(tmp_path, 1)["saved_and_ended"] == 0


def test_a_frozen_rank_is_named_and_replaced(tmp_path: Path) -> None:
    found = freeze.freeze_often(tmp_path, 1)
    assert found["losses"] == [] and found["found_and_restarted"] == 1


def test_no_rank_outlives_its_launcher(tmp_path: Path) -> None:
    found = orphans.orphan_often(tmp_path, 3)
    assert found["losses"] == [] and found["orphans"] == 0


def test_ranks_that_do_not_end_with_their_launcher_are_found(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(launch, "end_with", lambda launcher: None)
    monkeypatch.setattr(orphans, "LIMIT_SECONDS", 0.5)
    assert orphans.orphan_often(tmp_path, 2)["orphans"] > 0


EXIT_OF_A_THREAD = {"x86_64": 60, "aarch64": 93}  # the system call's number


@pytest.mark.skipif(platform.machine() not in EXIT_OF_A_THREAD, reason="another machine's system calls")
def test_a_process_whose_first_thread_is_gone_runs_as_long_as_another_does() -> None:
    """Of one that is killed the first thread is a zombie while others still keep its files, and the run's lock."""

    def first_thread_ends() -> None:
        threading.Thread(target=signal.pause).start()
        ctypes.CDLL(None).syscall(EXIT_OF_A_THREAD[platform.machine()], 0)

    process = multiprocessing.get_context("fork").Process(target=first_thread_ends, daemon=True)
    process.start()
    pid = process.pid or 0
    until = time.monotonic() + 10
    while life._state(pid) != "Z" and time.monotonic() < until:
        time.sleep(0.01)
    assert life._state(pid) == "Z" and life._runs(pid)
    process.kill()
    process.join()
    assert not life._runs(pid)


def test_runner_passes_its_signal_handling_to_no_training(monkeypatch) -> None:
    """Preempted trainings save and exit with 75, as those that a user starts."""
    assert exit_code_of_runner(monkeypatch, "--preempt", "2") == 0
