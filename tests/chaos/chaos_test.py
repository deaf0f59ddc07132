"""A quick share of `make chaos`; and each count can be other than zero."""

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from chaos import kills, life, poison, run, signals
from chaos.disk import DAMAGES, corrupt_often, fill_often
from chaos.kills import kill_often, resume_often
from chaos.life import Life, states
from chaos.poison import KINDS, poison_often
from chaos.scene import LAYOUTS, job, plan, write_tokens
from chaos.signals import freeze_often, orphan_often, preempt_often
from trivium.checkpoint import load
from trivium.comms import launch
from trivium.errors import CheckpointError, DataError
from trivium.training import resume as starting
from trivium.training import spikes
from trivium.training.observers import saves
from trivium.training.supervision.job import start


@pytest.mark.parametrize(
    ("inject", "good"),
    [
        pytest.param(lambda folder: kill_often(folder, 8, layouts=3), {"kills": 8}, id="kills"),
        pytest.param(lambda folder: freeze_often(folder, 1), {"found_and_restarted": 1}, id="freeze"),
        pytest.param(lambda folder: orphan_often(folder, 3), {"orphans": 0}, id="orphans"),
        pytest.param(
            lambda folder: corrupt_often(folder, 150),
            {"corruptions": 150, "undetected": 0, "kinds": set(DAMAGES)},
            id="corrupt",
        ),
        *(
            pytest.param(*case, id=name, marks=pytest.mark.broad)
            for name, *case in [
                ("resume", lambda folder: resume_often(folder, 2), {"bitwise_equal": 2}),
                ("diskfull", lambda folder: fill_often(folder, 2), {"went_on": 2}),
                ("preempt", lambda folder: preempt_often(folder, 5), {"saved_and_ended": 5}),
                (
                    "poison",
                    lambda folder: poison_often(folder, len(KINDS)),
                    {"undetected": 0, "rightly_named": len(KINDS)},
                ),
            ]
        ),
    ],
)
def test_nothing_is_lost(tmp_path: Path, inject, good) -> None:
    found = inject(tmp_path)
    assert found["losses"] == []
    assert good == {name: set(found["by_kind"]) if name == "kinds" else found[name] for name in good}


@pytest.mark.broad
def test_saves_acknowledged_before_they_are_durable_are_found_by_kills(tmp_path: Path, monkeypatch) -> None:
    right = saves.Saves.begin

    def impatient(self, step: int, fragments, about) -> None:
        self._note({"event": "saved", "step": step, "time": 0.0})
        right(self, step, fragments, about)

    monkeypatch.setattr(saves.Saves, "begin", impatient)
    assert kill_often(tmp_path, 12, layouts=1)["acknowledged_lost"] > 0


def test_stale_moments_are_found_by_kills(tmp_path: Path, monkeypatch) -> None:
    right = saves.Saving.__init__

    def stale(self, root, step, fragments, *given) -> None:
        for f in fragments:
            if f.name == "moment1/head.norm.bias":
                f.values.mul_(1.001)
        right(self, root, step, fragments, *given)

    monkeypatch.setattr(saves.Saving, "__init__", stale)
    found = kill_often(tmp_path, 3, layouts=1)
    assert found["wrong_tensors"] > 0 and "moment1/head.norm.bias" in " ".join(found["losses"])


def test_training_that_cannot_resume_is_found_by_kills(tmp_path: Path, monkeypatch) -> None:
    right = starting.newest_good

    def refuse(*given):
        if right(*given) is not None:
            raise CheckpointError("it cannot be resumed")

    monkeypatch.setattr(starting, "newest_good", refuse)
    found = kill_often(tmp_path, 6, layouts=1)
    assert found["ended_by_themselves"] > 0
    assert "with exit code 5; its last line: error: rank" in " ".join(found["losses"])


@pytest.mark.slow
@pytest.mark.parametrize("early", [False, True])
def test_export_that_is_there_before_it_is_complete_is_found_by_kills(tmp_path: Path, monkeypatch, early: bool) -> None:
    def half(source, folder, *, tokenizer):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        time.sleep(60)

    if early:
        monkeypatch.setattr(kills, "export_hf", half)
        monkeypatch.setattr(kills, "_export_seconds", lambda out, to: 0.5)
    monkeypatch.setattr(kills, "PHASES", ("saving", *["export"] * 6))
    found = kill_often(tmp_path, 10 if early else 24, layouts=1)
    if early:
        assert found["half_exports"] > 0
    else:
        assert found["losses"] == [] and set(found["exports"]) == {"none", "whole"}


@pytest.mark.parametrize("inject", [freeze_often, orphan_often, preempt_often])
def test_training_that_ends_by_itself_is_a_loss(tmp_path: Path, monkeypatch, inject) -> None:
    def ends(job) -> None:
        raise DataError("no tokens")

    monkeypatch.setattr(life, "start", ends)
    (loss,) = inject(tmp_path, 1)["losses"]
    assert loss.endswith("exit code 4; its last line: error: no tokens")


def test_reader_that_does_not_hash_is_found_by_corruption(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(load.Checkpoint, "verify", lambda self, share=0, shares=1: None)
    assert corrupt_often(tmp_path, 30)["undetected"] > 0


@pytest.mark.slow
def test_training_that_begins_again_is_found_by_resumes_and_preemptions(tmp_path: Path, monkeypatch) -> None:
    """It ends in the same bits, but no checkpoint was used."""
    monkeypatch.setattr(starting, "newest_good", lambda *given: None)
    found = resume_often(tmp_path / "a", 1)
    assert found["bitwise_equal"] == 0 and found["losses"][0].endswith("it was not resumed from a checkpoint")
    monkeypatch.setattr(signals, "TARGETS", ("launcher",))
    monkeypatch.setattr(signals, "_saved_once", lambda out, events, every: [])
    found = preempt_often(tmp_path / "b", 5)
    assert any("started from scratch, though" in loss for loss in found["losses"]), found


def test_forgotten_save_is_found_by_preemption(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(saves.Saves, "at_checkpoint", lambda self, loop: None)
    assert preempt_often(tmp_path, 1)["saved_and_ended"] == 0


def test_ranks_that_outlive_their_launcher_are_found(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(launch, "end_with", lambda launcher: None)
    monkeypatch.setattr(signals, "ORPHAN_SECONDS", 0.5)
    assert orphan_often(tmp_path, 2)["orphans"] > 0


def test_every_kind_of_poison_meets_every_layout() -> None:
    met = [poison.kind_and_layout(number) for number in range(len(KINDS) * len(LAYOUTS))]
    assert all(met.count((kind, layout)) == 1 for kind in KINDS for layout in LAYOUTS)


def test_spike_watch_that_accepts_everything_is_found_by_poison(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(spikes.SpikeWatch, "_cause", lambda self, totals: "")
    assert poison_often(tmp_path, 1)["undetected"] == 1


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


def test_runner_writes_its_counts_and_fails_if_anything_was_lost(tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "out.json"
    assert run_with(monkeypatch, "--corrupt", "5", "--json", str(out)) == 0
    found = json.loads(out.read_text())
    assert (found["corruptions"], found["undetected"], found["passed"]) == (5, 0, True)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""  # the runner forks trainings and computes in between
    # Counts of several faults are added up: an undetected corruption is not hidden by detected poisons.
    corrupted = {"corruptions": 3, "undetected": 2, "losses": ["one", "two"]}
    poisoned = {"poisons": 1, "undetected": 0, "losses": []}
    for option, harm in (("corrupt", corrupted), ("poison", poisoned)):
        monkeypatch.setitem(run.HARMS, option, (lambda *given, harm=harm, **named: harm, ""))
    assert run_with(monkeypatch, "--corrupt", "3", "--poison", "1", "--json", str(out)) == 1
    found = json.loads(out.read_text())
    assert (found["corruptions"], found["poisons"], found["undetected"], found["passed"]) == (3, 1, 2, False)


def test_runner_passes_its_signal_handling_to_no_training(monkeypatch) -> None:
    """Preempted trainings save and exit with 75, like those that a user starts."""
    assert exit_code_of_runner(monkeypatch, "--preempt", "2") == 0


def alive(pids: list[int]) -> list[int]:
    return [pid for pid, threads in states(pids).items() if set(threads) - {"Z"}]


def beside(pids: Path):
    """A fault whose training is a separate process, as is one that the fault forks and that is asked to end, too."""

    def waiting(at: Path) -> None:
        at.touch()
        signal.pause()

    def harm(folder: Path, count: int, **_):
        begun = Life.begin(job(write_tokens(folder), folder / "run", plan({"data": 2})), folder / "log.txt")
        begun.wait_for(lambda: len(begun.ranks) == 2)
        pids.write_text(json.dumps([begun.pid, *begun.ranks]))
        other = multiprocessing.get_context("fork").Process(target=waiting, args=(folder / "waits",))
        other.start()
        while not (folder / "waits").exists():
            time.sleep(0.01)
        os.kill(other.pid or 0, signal.SIGTERM)
        other.join()
        assert other.exitcode == -signal.SIGTERM and begun.lives and folder.exists()
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

    return harm


def within(pids: Path):
    """A fault whose training is launched by its own process."""

    def harm(folder: Path, count: int, **_):
        def watch(ranks: launch.Ranks, step: int) -> None:
            if step and not pids.exists():
                pids.write_text(json.dumps(ranks.pids))
                os.kill(os.getpid(), signal.SIGTERM)

        start(job(write_tokens(folder), folder / "run", plan({"data": 2})), watch=watch)

    return harm


@pytest.mark.parametrize("harm", [beside, within])
def test_ended_runner_leaves_no_process_and_no_folder(tmp_path: Path, monkeypatch, harm) -> None:
    """Temporary files of a killed launcher are removed too; processes that the runner forked remove nothing."""
    pids, temporary = tmp_path / "pids", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setitem(run.HARMS, "freeze", (harm(pids), ""))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    assert exit_code_of_runner(monkeypatch, "--freeze", "1") == 128 + signal.SIGTERM
    until = time.monotonic() + 20  # ranks end with their launcher, which the kernel tells them
    while alive(json.loads(pids.read_text())) and time.monotonic() < until:
        time.sleep(0.01)
    assert not alive(json.loads(pids.read_text()))
    assert not list(temporary.glob("trivium-*"))
