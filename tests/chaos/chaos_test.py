"""A quick share of `trivium chaos`; and that each count can be other than zero."""

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

from trivium.chaos import corrupt, disk_full, freeze, kills, life, orphans, poison, preempt, resume
from trivium.chaos.corrupt import DAMAGES
from trivium.chaos.life import Life, states
from trivium.chaos.scene import job, plan, write_tokens
from trivium.checkpoint import load
from trivium.cli import main as entry
from trivium.comms import launch
from trivium.errors import CheckpointError, ConfigError, DataError
from trivium.training import resume as starting
from trivium.training.observers import saves
from trivium.training.supervision.job import start
from trivium.training.supervision.preemption import listening


def test_kills_lose_nothing(tmp_path: Path) -> None:
    found = kills.kill_often(tmp_path, kills=8, layouts=3)
    assert found["passed"] and found["kills"] == 8 and found["steps"] > 0, found["losses"]


@pytest.mark.broad
def test_saves_acknowledged_before_they_are_durable_are_found_by_kills(tmp_path: Path, monkeypatch) -> None:
    right = saves.Saves.begin

    def impatient(self, step: int, fragments, about) -> None:
        self._note({"event": "saved", "step": step, "time": 0.0})
        right(self, step, fragments, about)

    monkeypatch.setattr(saves.Saves, "begin", impatient)
    found = kills.kill_often(tmp_path, kills=12, layouts=1)
    assert found["acknowledged_lost"] > 0


def test_stale_moments_are_found_by_kills(tmp_path: Path, monkeypatch) -> None:
    right = saves.Saving.__init__

    def stale(self, root, step, fragments, *given) -> None:
        for f in fragments:
            if f.name == "moment1/head.norm.bias":
                f.values.mul_(1.001)
        right(self, root, step, fragments, *given)

    monkeypatch.setattr(saves.Saving, "__init__", stale)
    found = kills.kill_often(tmp_path, kills=3, layouts=1)
    assert found["wrong_tensors"] > 0 and "moment1/head.norm.bias" in " ".join(found["losses"])


def test_a_training_that_cannot_go_on_after_a_kill_is_found(tmp_path: Path, monkeypatch) -> None:
    """It loses nothing that was on the disk, and is of no use."""
    right = starting.newest_good

    def refuse(*given):
        if right(*given) is not None:
            raise CheckpointError("it is not gone on from")

    monkeypatch.setattr(starting, "newest_good", refuse)
    found = kills.kill_often(tmp_path, kills=6, layouts=1)
    assert found["ended_by_themselves"] > 0 and not found["passed"]
    assert "with exit code 5; the last it said: error: rank" in " ".join(found["losses"])


@pytest.mark.broad
def test_kills_meet_exports_before_and_after_their_end(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(kills, "PHASES", ("saving", *["export"] * 6))
    found = kills.kill_often(tmp_path, kills=24, layouts=1)
    assert found["passed"] and set(found["exports"]) == {"none", "whole"}, found


@pytest.mark.broad
def test_an_export_that_is_there_before_it_is_whole_is_found(tmp_path: Path, monkeypatch) -> None:

    def early(source, folder, *, tokenizer):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        time.sleep(60)

    monkeypatch.setattr(kills, "export_hf", early)
    monkeypatch.setattr(kills, "_export_seconds", lambda out, to: 0.5)
    monkeypatch.setattr(kills, "PHASES", ("saving", *["export"] * 6))
    assert kills.kill_often(tmp_path, kills=10, layouts=1)["half_exports"] > 0


ONE_OF_EACH = {
    "freeze": lambda folder: freeze.freeze_often(folder, freezes=1),
    "orphans": lambda folder: orphans.orphan_often(folder, orphans=1),
    "preempt": lambda folder: preempt.preempt_often(folder, preemptions=1),
}


@pytest.mark.parametrize("harm", ONE_OF_EACH)
def test_a_training_that_ends_before_any_harm_is_done_is_a_loss(tmp_path: Path, monkeypatch, harm) -> None:
    def ends(job) -> None:
        raise DataError("no tokens")

    monkeypatch.setattr(life, "start", ends)
    found = ONE_OF_EACH[harm](tmp_path)
    (loss,) = found["losses"]
    assert not found["passed"] and loss.endswith("exit code 4; the last it said: error: no tokens")


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


def test_an_interrupted_verb_leaves_no_training_and_no_folder(tmp_path: Path, monkeypatch) -> None:
    pids: list[int] = []

    def interrupted(folder, **_):
        begun = Life.begin(job(write_tokens(folder), folder / "run", plan({"data": 2})), folder / "log.txt")
        begun.wait_for(lambda: len(begun.ranks) == 2)
        pids.extend([begun.pid, *begun.ranks])
        raise KeyboardInterrupt

    monkeypatch.setattr(freeze, "freeze_often", interrupted)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["trivium", "chaos", "--freeze", "1"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(SystemExit) as stopped:
        entry.main()
    until = time.monotonic() + 10  # ranks end with their launcher, which the kernel tells them
    while alive(pids) and time.monotonic() < until:
        time.sleep(0.01)
    assert stopped.value.code == 130 and pids and not alive(pids)
    assert not list(tmp_path.glob("trivium-chaos-*"))


def beside(pids: Path):
    """A harm whose training runs beside it, and a process that it forks and that is asked to end, too."""

    def harm(folder: Path, **_):
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

    def harm(folder: Path, **_):
        def watch(ranks: launch.Ranks, step: int) -> None:
            if step and not pids.exists():
                pids.write_text(json.dumps(ranks.pids))
                os.kill(os.getpid(), signal.SIGTERM)

        start(job(write_tokens(folder), folder / "run", plan({"data": 2})), watch=watch)

    return harm


def that_ends_by_itself(pids: Path):
    """A harm whose training was asked to end, and ends for another reason."""

    def harm(folder: Path, **_):
        pids.write_text("[]")
        with listening(lambda _: None) as requests:
            os.kill(os.getpid(), signal.SIGTERM)
            while not requests.asked:
                time.sleep(0.01)
        raise AssertionError("it goes on with the next one")

    return harm


def exit_code_of_the_verb(monkeypatch: pytest.MonkeyPatch, temporary: Path, *options: str) -> int | None:
    """`trivium chaos` with these options, in a process of its own."""
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setattr(sys, "argv", ["trivium", "chaos", *options])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    verb = multiprocessing.get_context("fork").Process(target=entry.main)
    verb.start()
    verb.join(120)
    verb.kill()
    return verb.exitcode


@pytest.mark.parametrize("harm", [beside, within, that_ends_by_itself])
def test_a_verb_that_is_asked_to_end_leaves_no_process_and_no_folder(
    tmp_path: Path, monkeypatch, harm
) -> None:
    """Also nothing that a killed launcher had in the folder for temporary files; and what it forked clears nothing."""
    pids, temporary = tmp_path / "pids", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(freeze, "freeze_often", harm(pids))
    exit_code = exit_code_of_the_verb(monkeypatch, temporary, "--freeze", "1")
    until = time.monotonic() + 10
    while alive(json.loads(pids.read_text())) and time.monotonic() < until:
        time.sleep(0.01)
    assert exit_code == 128 + signal.SIGTERM and not alive(json.loads(pids.read_text()))
    assert not list(temporary.glob("trivium-*"))


def test_every_corruption_is_noticed(tmp_path: Path) -> None:
    found = corrupt.corrupt_often(tmp_path, corruptions=150)
    assert found["passed"] and found["corruptions"] == 150, found["losses"]
    assert set(found["by_kind"]) == set(DAMAGES)


def test_a_reader_that_does_not_hash_is_found_by_corruption(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(load.Checkpoint, "verify", lambda self, share=0, shares=1: None)
    assert corrupt.corrupt_often(tmp_path, corruptions=30)["undetected"] > 0


@pytest.mark.broad
def test_resumed_runs_are_bitwise_equal(tmp_path: Path) -> None:
    found = resume.resume_often(tmp_path, resumes=2)
    assert found["passed"] and found["bitwise_equal"] == 2, found["losses"]


@pytest.mark.broad
def test_a_training_that_begins_anew_proves_no_resume(tmp_path: Path, monkeypatch) -> None:
    """It ends in the same bits, and no checkpoint had any part in that."""
    monkeypatch.setattr(starting, "newest_good", lambda *given: None)
    found = resume.resume_often(tmp_path, resumes=1)
    assert not found["passed"] and found["bitwise_equal"] == 0
    (loss,) = found["losses"]
    assert loss.endswith("it was not resumed from a checkpoint")


@pytest.mark.broad
def test_a_full_disk_stops_no_training(tmp_path: Path) -> None:
    found = disk_full.fill_often(tmp_path, fillings=2)
    assert found["passed"] and found["went_on"] == 2, found["losses"]


def test_the_verb_writes_its_counts_and_fails_when_something_was_lost(tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "out.json"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(sys, "argv", ["trivium", "chaos", "--corrupt", "5", "--json", str(out)])
    with pytest.raises(SystemExit) as stopped:
        entry.main()
    found = json.loads(out.read_text())
    assert (stopped.value.code or 0, found["corruptions"], found["undetected"]) == (0, 5, 0)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""  # it forks, and computes in between
    monkeypatch.setattr(load.Checkpoint, "verify", lambda self, share=0, shares=1: None)
    monkeypatch.setattr(sys, "argv", ["trivium", "chaos", "--corrupt", "40", "--json", str(out)])
    with pytest.raises(SystemExit) as stopped:
        entry.main()
    assert stopped.value.code == 1 and json.loads(out.read_text())["passed"] is False


def test_what_several_harms_count_is_told_together(tmp_path: Path, monkeypatch) -> None:
    """A corruption that nobody noticed is not forgotten because every poison was."""
    counted = {
        "corrupt_often": {"corruptions": 3, "undetected": 2},
        "poison_often": {"poisons": 1, "undetected": 0},
    }
    for module, name in ((corrupt, "corrupt_often"), (poison, "poison_often")):
        found = {**counted[name], "losses": [], "seconds": 0.0, "passed": not counted[name]["undetected"]}
        monkeypatch.setattr(module, name, lambda folder, found=found, **given: found)
    out = tmp_path / "out.json"
    words = ["chaos", "--corrupt", "3", "--poison", "1", "--json", str(out)]
    assert entry.command_line()(words, standalone_mode=False) == 1
    told = json.loads(out.read_text())
    assert (told["corruptions"], told["poisons"], told["undetected"], told["passed"]) == (3, 1, 2, False)


@pytest.mark.parametrize(("words", "said"), [(["--corrupt", "1", "--layouts", "2"], "--kills alone takes it"),
                                             (["--kills", "1", "--layouts", "99"], "must be at most 8")])  # fmt: skip
def test_layouts_that_no_kill_can_take_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=f"--layouts .*{said}"):
        entry.command_line()(["chaos", *words], standalone_mode=False)


@pytest.mark.broad
def test_a_training_that_is_preempted_saves_once_and_goes_on(tmp_path: Path) -> None:
    found = preempt.preempt_often(tmp_path, preemptions=5)
    assert found["passed"] and found["saved_and_ended"] == 5, found["losses"]


@pytest.mark.broad
def test_a_training_that_begins_anew_is_found_by_preemption(tmp_path: Path, monkeypatch) -> None:
    """Also where it gets further than the last life did."""
    monkeypatch.setattr(starting, "newest_good", lambda *given: None)
    monkeypatch.setattr(preempt, "TARGETS", ("launcher",))
    monkeypatch.setattr(preempt, "_saved_once", lambda out, events, every: [])
    found = preempt.preempt_often(tmp_path, preemptions=5)
    assert any("began anew, and" in loss for loss in found["losses"]), found


def test_a_save_that_is_forgotten_is_found_by_preemption(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(saves.Saves, "at_checkpoint", lambda self, loop: None)
    assert preempt.preempt_often(tmp_path, preemptions=1)["saved_and_ended"] == 0


def test_a_frozen_rank_is_named_and_replaced(tmp_path: Path) -> None:
    found = freeze.freeze_often(tmp_path, freezes=1)
    assert found["passed"] and found["found_and_restarted"] == 1, found["losses"]


def test_no_rank_outlives_its_launcher(tmp_path: Path) -> None:
    found = orphans.orphan_often(tmp_path, orphans=3)
    assert found["passed"] and found["orphans"] == 0, found["losses"]


def test_ranks_that_do_not_end_with_their_launcher_are_found(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(launch, "end_with", lambda launcher: None)
    monkeypatch.setattr(orphans, "LIMIT_SECONDS", 0.5)
    assert orphans.orphan_often(tmp_path, orphans=2)["orphans"] > 0


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


def test_the_verb_that_ends_in_order_lets_its_trainings_be_asked_as_users_ask_theirs(
    tmp_path: Path, monkeypatch
) -> None:
    """What it hears signals by is not handed to them: they save, and say 75."""
    assert exit_code_of_the_verb(monkeypatch, tmp_path, "--preempt", "2") == 0
