"""Laws of stages: done once, done again when anything they depend on changes, never half done."""

import os
from pathlib import Path
from typing import Any

import pytest

from trivium.checkpoint.lease import LEASE, holder_of
from trivium.cli import stage as stages
from trivium.cli.options import given_for, open_run
from trivium.cli.run_config import Given, resolve
from trivium.cli.stage import STARTED, Gone, Run, Stage, perform
from trivium.cli.workspace import Workspace, read_result
from trivium.config import read_preset, to_tree
from trivium.errors import CheckpointError, ConfigError, DataError, MachineError
from trivium.provenance import JOB, STAMP, read_stamp, stamp_hash, write_json


class Bench:
    """Two stages that count how often they worked; the second reads the output of the first."""

    def __init__(self, root: Path) -> None:
        self.root, self.calls = root, []
        self.first = self.stage("harvest", sections=("harvest",), reads=())
        self.second = self.stage("curate", folder="curated", sections=("curate",), reads=("harvest",))

    def stage(self, name, *, folder=None, sections=(), reads=(), work=None, **more) -> Stage:
        def counted(run, out, progress):
            self.calls.append(name)
            (out / "result").write_text(name)
            return work(run, out, progress) if work else {"n": len(self.calls)}

        return Stage(
            name=name,
            verb=name,
            folder=folder or name,
            sections=sections,
            reads=reads,
            work=counted,
            summary=lambda result: [f"  n is {result.get('n')}"],
            **more,
        )

    def run(self, *assignments: str) -> Run:
        return Run(resolve(Given("demo", assignments)), Workspace(self.root))

    def walk(self, *assignments: str) -> list[str]:
        self.calls.clear()
        for stage in (self.first, self.second):
            perform(stage, self.run(*assignments))
        return list(self.calls)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "run")


def test_a_finished_stage_is_skipped_and_says_so(bench: Bench, capsys):
    assert bench.walk() == ["harvest", "curate"]
    capsys.readouterr()
    assert bench.walk() == []
    assert capsys.readouterr().out.count("up to date") == 2


def test_pieces_that_a_kill_left_half_deleted_are_deleted_when_the_stage_is_skipped(bench: Bench):
    bench.walk()
    left = bench.root / ".curated.work.old"
    left.mkdir()
    write_json(left / JOB, {"trivium": "0.1.0"})
    assert bench.walk() == [] and not left.exists()


def test_a_stage_is_done_again_when_its_own_section_changes(bench: Bench):
    bench.walk()
    assert bench.walk("curate.quality.characters=600") == ["curate"]
    assert bench.walk("training.lr=0.5", "curate.quality.characters=600") == []


def test_what_depends_on_a_changed_stage_is_done_again(bench: Bench):
    bench.walk()
    assert bench.walk("harvest.longest=900") == ["harvest", "curate"]
    assert bench.walk("harvest.longest=900", "seed=9") == ["harvest", "curate"]


def test_redo_does_a_finished_stage_again(bench: Bench):
    bench.walk()
    perform(bench.first, bench.run(), redo=True)
    assert bench.calls == ["harvest", "curate", "harvest"]


def test_an_input_outside_the_run_directory_counts(bench: Bench):
    versions = ["1"]
    stage = bench.stage("harvest", outside=lambda run: {"corpus": versions[0]})
    perform(stage, bench.run())
    perform(stage, bench.run())
    versions[0] = "2"
    perform(stage, bench.run())
    assert bench.calls == ["harvest", "harvest"]


def test_an_output_that_something_needs_is_set_aside_and_not_deleted(bench: Bench, capsys):
    reasons = [""]
    bench.first = bench.stage("harvest", sections=("harvest",), needed=lambda run: reasons[0])
    perform(bench.first, bench.run())
    perform(bench.first, bench.run("seed=1"))
    assert not (bench.root / "harvest.previous").exists()
    reasons[0] = "a training was begun with it"
    (bench.root / "harvest" / "result").write_text("needed")
    perform(bench.first, bench.run("seed=1"), redo=True)  # an identical output replaces it
    assert not (bench.root / "harvest.previous").exists()
    (bench.root / "harvest" / "result").write_text("needed")
    for seed in (2, 3):
        perform(bench.first, bench.run(f"seed={seed}"))
    assert (bench.root / "harvest.previous" / "result").read_text() == "needed"
    assert read_stamp(bench.root / "harvest.previous-2") and read_stamp(bench.root / "harvest")
    assert "is now in" in (said := capsys.readouterr().out) and reasons[0] in said


def test_a_missing_input_is_refused_with_the_verb_that_makes_it(bench: Bench):
    with pytest.raises(DataError, match=r"harvest is missing or unfinished.*trivium corpus harvest --out"):
        perform(bench.second, bench.run())
    assert not bench.root.exists()


def test_the_command_in_an_error_can_be_typed_as_it_is(tmp_path: Path):
    bench = Bench(tmp_path / "my run")
    with pytest.raises(DataError, match=f"run `trivium corpus harvest --out '{bench.root}'` first"):
        perform(bench.second, bench.run())


def test_an_interrupted_stage_leaves_no_output_and_is_done_next_time(bench: Bench):
    def stop(run, out, progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        perform(bench.stage("harvest", sections=("harvest",), work=stop), bench.run())
    assert not (bench.root / "harvest").exists()
    assert bench.walk() == ["harvest", "curate"]


@pytest.mark.parametrize("error", [ConfigError, DataError, CheckpointError, MachineError])
def test_settings_that_were_refused_are_not_those_of_the_run(bench: Bench, error: type[Exception]):
    """They would make later commands fail, or repeat the work of earlier ones."""

    def refuse(run, out, progress):
        raise error("it cannot be done")

    def refused(place: str, **more: Any) -> Any:
        with pytest.raises(error):
            perform(bench.stage(place, sections=(place,), work=refuse, **more), bench.run("seed=6"))
        return read_result(bench.root / "config.json")["seed"] if (bench.root / "config.json").exists() else None

    assert refused("harvest") is None
    bench.walk("seed=5")
    assert refused("curate") == 5
    # a stage that is written in place has begun, and continues with its settings
    assert refused("training", writes="in place") == (5 if error is ConfigError else 6)


def test_the_time_of_a_skipped_stage_is_kept(bench: Bench):
    bench.walk()
    before = Workspace(bench.root).seconds()
    bench.walk()
    assert Workspace(bench.root).seconds() == before and before.keys() == {"harvest", "curate"}


def test_the_resolved_config_and_the_stamp_stand_beside_the_output(bench: Bench):
    bench.walk("seed=5")
    assert read_result(bench.root / "config.json")["seed"] == 5
    stamp = read_stamp(bench.root / "curated")
    assert stamp["config"]["seed"] == 5 and stamp["inputs"] == {"harvest": stamp_hash(bench.root / "harvest")}


def training(bench: Bench, work=None, writes="in place", **more) -> Stage:
    return bench.stage(
        "training",
        work=work,
        writes=writes,
        **more,
        sections=("training",),
        lasting=lambda what: {"lr": what["config"]["training"]["lr"]},
        extent=lambda run: run.config.training.steps,
    )


def test_what_asks_a_model_leaves_alone_what_the_next_training_would_be_set_aside_for(bench: Bench):
    perform(training(bench), bench.run("training.lr=0.25"))
    asks = bench.stage("bias", sections=("bias", "training"), reads=("training",))
    perform(asks, bench.run("bias.confidence=0.9", "training.lr=0.5", "seed=9", "plan.layout.tensor=1"))
    noted = read_result(bench.root / "config.json")
    as_trained = resolve(Given("demo", ("bias.confidence=0.9", "training.lr=0.25")))
    assert noted == to_tree(as_trained)


def stopped(run, out, progress):
    (out / "checkpoint").write_text("half")
    raise KeyboardInterrupt


def test_interrupted_work_in_place_goes_on_with_what_is_there(bench: Bench):
    with pytest.raises(KeyboardInterrupt):
        perform(training(bench, stopped), bench.run())
    assert stamp_hash(bench.root / "training") == ""
    perform(training(bench), bench.run())
    assert (bench.root / "training" / "checkpoint").read_text() == "half"
    assert stamp_hash(bench.root / "training") != ""


def test_work_in_place_of_other_settings_is_set_aside_and_not_lost(bench: Bench, capsys):
    with pytest.raises(KeyboardInterrupt):
        perform(training(bench, stopped), bench.run("training.lr=0.25"))
    perform(training(bench), bench.run("training.lr=0.5"))
    assert not (bench.root / "training" / "checkpoint").exists()
    assert (bench.root / "training.previous" / "checkpoint").read_text() == "half"
    assert "training.previous: it had other settings\n    lr: 0.25 -> 0.5\n" in capsys.readouterr().out


@pytest.mark.parametrize(("steps", "goes_on"), [(300, True), (100, False)])
def test_finished_work_in_place_goes_on_only_to_more_steps(bench: Bench, steps: int, goes_on: bool):
    perform(training(bench), bench.run("training.steps=200"))
    (bench.root / "training" / "checkpoint").write_text("done")
    perform(training(bench), bench.run(f"training.steps={steps}"))
    assert (bench.root / "training" / "checkpoint").exists() is goes_on
    assert read_result(bench.root / "training" / STARTED)["extent"] == steps


@pytest.mark.parametrize("other", [(), ("training.keep_last=5",)], ids=["same", "other settings"])
@pytest.mark.parametrize("left", [100, 0])
def test_finished_work_in_place_that_lost_its_end_goes_on_from_what_is_left(
    bench: Bench, left: int, other: tuple[str, ...], capsys
):
    lost = training(bench, gone=lambda run, extent: Gone("the checkpoint is gone", left) if extent == 200 else None)
    perform(training(bench), bench.run("training.steps=200"))
    (bench.root / "training" / "checkpoint").write_text("of an earlier step")
    capsys.readouterr()
    perform(lost, bench.run("training.steps=200", *other))
    assert bench.calls == ["training", "training"]
    assert (bench.root / "training" / "checkpoint").exists() is (left > 0)
    assert (bench.root / "training.previous").exists() is (left == 0)  # its metrics and events are not lost
    assert "training: the checkpoint is gone; " in capsys.readouterr().out


def test_a_folder_of_the_user_s_in_the_place_of_an_output_is_set_aside_and_not_deleted(bench: Bench, capsys):
    (bench.root / "harvest").mkdir(parents=True)
    (bench.root / "harvest" / "letter").write_text("dear")
    assert "harvest" in bench.walk()
    assert (bench.root / "harvest.previous" / "letter").read_text() == "dear"
    assert f"is now in {bench.root / 'harvest.previous'}: no {STAMP} says" in capsys.readouterr().out
    bench.walk("harvest.longest=900")
    assert not (bench.root / "harvest.previous-2").exists()


def files(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): p.read_text() for p in root.rglob("*") if p.is_file()}


def refuse(run, state):
    raise ConfigError("it cannot be")


@pytest.mark.parametrize("assignment", ["training.lr=0.5", "training.steps=300", "training.keep_last=5"])
@pytest.mark.parametrize("redo", [False, True])
def test_what_cannot_begin_is_refused_before_anything_is_written_or_moved(bench: Bench, assignment, redo):
    perform(training(bench), bench.run("training.steps=200"))
    before = files(bench.root)
    with pytest.raises(ConfigError):
        perform(training(bench, check=refuse), bench.run("training.steps=200", assignment), redo=redo)
    assert files(bench.root) == before


def test_a_check_is_told_what_there_is_to_do(bench: Bench):
    told: list[str] = []
    stage = training(bench, check=lambda run, state: told.append(state))
    for assignments in ([], ["training.keep_last=5"], ["training.steps=900"], ["training.lr=0.5"]):
        perform(stage, bench.run(*assignments))
    assert told == ["anew", "current", "goes on", "anew"]


@pytest.mark.parametrize(
    ("assignment", "why"),
    [(("training.lr=0.5", "training.steps=200"), "lr: "), (("training.steps=100",), "training.steps: 200 -> 100")],
)
def test_a_stage_is_asked_before_its_output_is_set_aside_and_redo_answers(
    bench: Bench, assignment: tuple[str, ...], why: str
):
    told: list[str] = []

    def ask(run, changed):
        told.extend(changed)
        raise ConfigError("no")

    perform(training(bench), bench.run("training.steps=200"))
    before = files(bench.root)
    with pytest.raises(ConfigError):
        perform(training(bench, ask=ask), bench.run(*assignment))
    assert files(bench.root) == before and told[0].startswith(why)
    perform(training(bench, ask=ask), bench.run(*assignment), redo=True)
    assert (bench.root / "training.previous").exists()


def test_what_was_set_aside_before_is_kept_when_more_is_set_aside(bench: Bench):
    for lr in ("0.1", "0.2", "0.3", "0.4"):
        perform(training(bench), bench.run(f"training.lr={lr}"))
        (bench.root / "training" / "checkpoint").write_text(lr)
    kept = {p.parent.name: p.read_text() for p in bench.root.glob("*/checkpoint")}
    assert kept == {
        "training.previous": "0.1",
        "training.previous-2": "0.2",
        "training.previous-3": "0.3",
        "training": "0.4",
    }


def test_finished_work_in_place_is_current_under_what_may_change(bench: Bench, capsys):
    perform(training(bench), bench.run())
    before = files(bench.root)
    perform(training(bench), bench.run("training.keep_last=5"))
    assert files(bench.root) == before and bench.calls == ["training"]
    assert "--redo" in capsys.readouterr().out


@pytest.mark.parametrize("assignment", ["training.lr=0.5", "training.lr=0.1"])
@pytest.mark.parametrize("writes", ["in place", "afresh"])
def test_who_is_refused_by_the_lease_changes_nothing_of_the_job_that_holds_it(bench: Bench, assignment, writes):
    def meddle(run, out, progress):
        before = files(bench.root)
        with pytest.raises(MachineError, match="is being written by"):
            perform(training(bench, writes=writes), bench.run(assignment), redo=True)
        assert files(bench.root) == before
        return {}

    perform(training(bench, meddle, writes=writes), bench.run("training.lr=0.1"))


def test_work_afresh_empties_what_it_wrote_before_and_sets_aside_what_it_did_not(bench: Bench, capsys):
    folder, outside = bench.root / "training", bench.root / "outside"

    def refuse_leftovers(run, out, progress):
        assert {path.name for path in out.iterdir()} == {LEASE, STARTED, "result"}
        (out / "deep").mkdir()
        (out / "deep" / "part").write_text("half")
        (out / "link").symlink_to(outside)
        raise DataError("it breaks off")

    outside.mkdir(parents=True)
    (outside / "kept").write_text("dear")
    folder.mkdir()
    (folder / "letter").write_text("dear")
    stage = training(bench, refuse_leftovers, writes="afresh")
    for _ in range(3):  # after an interruption too
        with pytest.raises(DataError, match="it breaks off"):
            perform(stage, bench.run())
    assert (bench.root / "training.previous" / "letter").read_text() == "dear"
    assert f"is now in {bench.root / 'training.previous'}: no {STAMP} says" in capsys.readouterr().out
    assert not (bench.root / "training.previous-2").exists() and (outside / "kept").is_file()


@pytest.mark.parametrize("writes", ["in place", "afresh"])
def test_work_is_handed_the_lease_of_the_folder_that_it_writes(bench: Bench, writes):
    def held(run, out, progress):
        assert run.lease is not None
        assert holder_of(bench.root / "training").pid == os.getpid()
        return {}

    for lr in ("0.1", "0.2"):
        perform(training(bench, held, writes=writes), bench.run(f"training.lr={lr}"))
        assert holder_of(bench.root / "training") is None


def test_a_training_that_goes_on_is_at_no_moment_a_finished_one(bench: Bench, monkeypatch):
    perform(training(bench), bench.run("training.steps=200"))
    write, seen = stages.write_json, []

    def watched(path, value):
        write(path, value)
        seen.append(stages.state_of(training(bench), bench.run("training.steps=300")))

    monkeypatch.setattr(stages, "write_json", watched)
    perform(training(bench), bench.run("training.steps=300"))
    assert seen == ["goes on", "goes on", "current"]


def test_redone_work_in_place_starts_from_nothing(bench: Bench):
    perform(training(bench), bench.run())
    (bench.root / "training" / "checkpoint").write_text("done")
    perform(training(bench), bench.run(), redo=True)
    assert not (bench.root / "training" / "checkpoint").exists()


def test_work_that_failed_in_place_is_not_stamped_by_the_run_before(bench: Bench):
    perform(training(bench), bench.run("training.steps=100"))
    with pytest.raises(KeyboardInterrupt):
        perform(training(bench, stopped), bench.run("training.steps=200"))
    assert not (bench.root / "training" / STAMP).exists()


def test_later_verbs_go_on_with_the_config_of_the_run_directory(bench: Bench):
    bench.walk("training.lr=0.25")
    assert open_run(bench.root, given_for(bench.root, None, None)).config.training.lr == 0.25
    fresh = open_run(bench.root, given_for(bench.root, "demo", None)).config
    assert fresh.training.lr == read_preset("demo")["training"]["lr"]


def test_settings_that_the_work_refuses_are_not_left_for_later_verbs(bench: Bench):
    def refuses(run, out, progress):
        raise ConfigError("curate.blend is wrong")

    picky = bench.stage("curate", folder="curated", work=refuses)
    with pytest.raises(ConfigError):
        perform(picky, bench.run("seed=7"))
    assert not Workspace(bench.root).config.exists()
    bench.walk("seed=1")
    before = Workspace(bench.root).config.read_bytes()
    with pytest.raises(ConfigError):
        perform(picky, bench.run("seed=7"))
    assert Workspace(bench.root).config.read_bytes() == before


def test_a_file_in_the_place_of_the_run_directory_is_refused(tmp_path: Path):
    (tmp_path / "x").write_text("")
    with pytest.raises(DataError, match="is a file"):
        open_run(tmp_path / "x", Given("demo"))


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_damaged_result_is_refused_with_its_path(tmp_path: Path, text: str):
    (tmp_path / "seconds.json").write_text(text)
    with pytest.raises(DataError, match=r"seconds\.json"):
        Workspace(tmp_path).seconds()


def test_tokens_made_elsewhere_are_read_there(tmp_path: Path):
    run = Run(resolve(Given("demo")), Workspace(tmp_path), tokens=tmp_path / "elsewhere")
    assert run.folder("tokens") == tmp_path / "elsewhere"
    assert run.tokenizer == tmp_path / "elsewhere" / "tokenizer.json"
