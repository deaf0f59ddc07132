"""`trivium checkpoint`: what it says, and its exit codes."""

import json
import shlex
import shutil
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cli.main_test import imported, trivium
from plans import small
from trivium.certify.certificate import RULE
from trivium.checkpoint.format import step_name
from trivium.checkpoint.lease import holding
from trivium.checkpoint.load import Checkpoint
from trivium.checkpoint.save import save
from trivium.cli import main as entry
from trivium.cli.run_config import RunConfig
from trivium.config import parse_assignments, to_tree
from trivium.parallel.mesh import Mesh
from trivium.plan.parameters import Box
from trivium.tokens.tokenizer import train_tokenizer
from trivium.training.state import fragments
from trivium.training.trainer import Trainer


@pytest.fixture
def run(tmp_path: Path) -> Path:
    plan = small()
    trainer = Trainer(plan, Mesh.single(), seed=7, rule=RULE)
    root = tmp_path / "training" / "checkpoints"
    for step in (10, 20):
        trainer.buckets[0].weights[3] += step
        save(root, step, fragments(trainer), Mesh.single(), {"plan": to_tree(plan), "tokens_seen": step * 64})
    return tmp_path


@pytest.fixture
def call(run: Path, monkeypatch, capsys) -> Callable[..., tuple[int, str]]:
    def do(*words: str) -> tuple[int, str]:
        where = [] if "--out" in words else ["--out", str(run)]
        monkeypatch.setattr(sys, "argv", ["trivium", "checkpoint", *words, *where])
        with pytest.raises(SystemExit) as stopped:
            entry.main()
        told = capsys.readouterr()
        return int(stopped.value.code or 0), told.out + told.err

    return do


def folder(run: Path, step: int) -> Path:
    return run / "training" / "checkpoints" / step_name(step)


def damage(path: Path) -> None:
    file = path / "pieces-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 8
    file.write_bytes(content)


def test_ls_lists_what_is_there_and_tells_damage(call, run: Path) -> None:
    code, told = call("ls", "--json", str(run / "ls.json"))
    assert code == 0 and "10" in told and "20" in told
    assert [c["step"] for c in json.loads((run / "ls.json").read_text())["checkpoints"]] == [10, 20]
    damage(folder(run, 20))
    assert "damaged" in call("ls", "--verify")[1]


def test_verify_names_the_damaged_file_and_exits_with_5(call, run: Path) -> None:
    assert call("verify")[0] == 0
    damage(folder(run, 10))
    assert call("verify", "20")[0] == 0
    code, told = call("verify", "--all")
    assert code == 5 and "pieces-00000" in told and "1 of 2" in told


def test_verify_takes_all_of_a_run_or_one_and_none_is_no_success(call, run: Path, tmp_path: Path) -> None:
    code, told = call("verify", str(run), "--all")
    assert code == 0 and told.count(" 1 file,") == 2
    code, told = call("verify", "20", "--all")
    assert code == 2 and "--all: 20 names one checkpoint" in told
    shutil.rmtree(run / "training" / "checkpoints")
    code, told = call("verify", "--all")
    assert code == 5 and "holds no checkpoint" in told


@pytest.mark.parametrize(
    "words", [["ls"], ["ls", "--verify"], ["verify", "--all"], ["show"], ["rm", "10"]], ids=" ".join
)
def test_what_reads_manifests_and_bytes_alone_imports_no_torch(run: Path, words: list[str]) -> None:
    done = trivium("checkpoint", *words, "--out", str(run))
    assert done.returncode == 0 and "torch" not in imported(done), done.stderr


def test_a_run_is_named_once(call, tmp_path: Path) -> None:
    code, told = call("ls", str(tmp_path / "another"))
    assert code == 2 and "name one of the two" in told


def test_show_tells_progress_and_tensors(call) -> None:
    code, told = call("show", "10", "--tensors")
    assert code == 0 and "640" in told and "moment2/layers.0.mlp.up.weight" in told and "96 x 24" in told


def test_diff_names_what_differs_and_by_how_much(call, run: Path) -> None:
    assert call("diff", "10", str(folder(run, 10)))[0] == 0
    code, told = call("diff", "10", "20", "--json", str(run / "d.json"))
    assert code == 1 and "tokens_seen: 640 -> 1280" in told
    (tensor,) = json.loads((run / "d.json").read_text())["tensors"]
    assert tensor["name"].startswith("weights/") and tensor["absolute"] == pytest.approx(20)


def test_the_figures_of_many_steps_are_told_by_their_number(call, run: Path) -> None:
    plan = small()
    trainer = Trainer(plan, Mesh.single(), seed=7, rule=RULE)
    for step, last in ((30, 0.5), (40, 0.25)):
        about = {"plan": to_tree(plan), "spikes": {"losses": [1.5] * 99 + [last], "few": [last]}}
        save(run / "training" / "checkpoints", step, fragments(trainer), Mesh.single(), about)
    code, told = call("diff", "30", "40")
    assert code == 1 and "spikes.losses: 100 figures, hash " in told and "spikes.few: [0.5] -> [0.25]" in told
    assert "1.5, " not in told + call("show", "40", "--json", str(run / "s.json"))[1]
    assert len(json.loads((run / "s.json").read_text())["about"]["spikes"]["losses"]) == 100


def test_a_resharded_checkpoint_is_the_same_in_another_number_of_files(call, run: Path) -> None:
    to = run / "other"
    assert call("reshard", "20", "--to", str(to), "--files", "3")[0] == 0
    there = Checkpoint.open(to / step_name(20))
    there.verify()
    sizes = [f["bytes"] for f in there.manifest["files"].values()]
    assert len(sizes) == 3 and max(sizes) < 1.5 * min(sizes)
    assert call("diff", "20", str(there.directory))[0] == 0
    assert call("reshard", "20", "--to", str(to))[0] == 2


@pytest.mark.parametrize("words", [("reshard", "20"), ("average", "10", "20")], ids=str)
def test_where_it_cannot_go_another_place_is_given_by_the_option_that_named_this_one(
    call, run: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "file").touch()
    code, told = call(*words, "--to", str(run / "file"))
    assert code == 5 and "choose another --to" in told and "--out" not in told
    code, told = call(*words, "--to", str(run / "file" / "below"))
    assert code == 5 and "choose another --to" in told and "--out" not in told
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=7))
    code, told = call(*words, "--to", str(run / "full"))
    assert code == 5 and "7 are free" in told and "choose another --to" in told and "--out" not in told


def test_an_average_is_exported_and_its_steps_are_named(call, run: Path) -> None:
    code, told = call("average", "10", "20")
    mean = run / "averaged" / step_name(20)
    assert code == 0 and f"training.start_from={mean}" in told
    assert "average_of" in call("show", str(mean))[1]
    assert call("export", "--to", "hf", str(run / "hf"), str(mean))[0] == 0
    one, two, both = (Checkpoint.open(path) for path in (folder(run, 10), folder(run, 20), mean))
    name, box = "weights/layers.2.attention.qkv.weight", Box((0, 0), (72, 24))
    halves = (one.read(name, box, torch.float64) + two.read(name, box, torch.float64)) / 2
    assert torch.equal(both.read(name, box, torch.float32), halves.float())
    damage(folder(run, 10))
    assert call("average", "10", "20", "--to", str(run / "again"))[0] == 5


def test_export_and_import_go_round(call, run: Path) -> None:
    assert call("export", "--to", "hf", str(run / "hf"), "20")[0] == 0
    code, told = call("import", "--from", "hf", str(run / "hf"))
    assert code == 0 and "--set training.start_from=" in told and "plan.model.layers=4" in told
    assert f"trivium evaluate {run / 'hf'}" in told
    one, two = Checkpoint.open(folder(run, 20)), Checkpoint.open(run / "imported" / step_name(0))
    box = Box((0, 0), (72, 24))
    name = "weights/layers.2.attention.qkv.weight"
    assert torch.equal(one.read(name, box, torch.float32), two.read(name, box, torch.float32))
    assert call("export", "--to", "onnx", str(run / "x"))[0] == 2


def test_what_an_import_says_to_type_is_read_as_it_is_meant(call, run: Path) -> None:
    folder = run / "hf #2"
    assert call("export", str(folder), "20")[0] == 0
    train_tokenizer(["some words"] * 3, 260).save(folder / "tokenizer.json")
    told = call("import", str(folder), "--to", str(run / "imported #2"))[1]
    tokens, trained = (
        parse_assignments(
            [after for word, after in pairwise(shlex.split(line)) if word == "--set"], RunConfig
        )
        for line in told.splitlines()
        if " --set " in line
    )
    assert tokens["tokens"]["tokenizer"] == str(folder.resolve())
    assert trained["training"]["start_from"] == str((run / "imported #2" / step_name(0)).resolve())
    assert trained["plan"]["model"]["qkv_bias"] is False and "qkv_bias=false" in told


def test_a_checkpoint_of_another_run_is_exported_with_that_runs_tokenizer(
    call, run: Path, tmp_path_factory
) -> None:
    other = tmp_path_factory.mktemp("other")
    for root, text in ((run, "some words"), (other, "other text")):
        (root / "tokens").mkdir()
        train_tokenizer([text] * 3, 260).save(root / "tokens" / "tokenizer.json")
    plan = small(model={"vocabulary": 300})  # room for the ids of either
    trainer = Trainer(plan, Mesh.single(), seed=7, rule=RULE)
    there = other / "training" / "checkpoints"
    path = save(there, 10, fragments(trainer), Mesh.single(), {"plan": to_tree(plan)})
    there = str(path), "--out", str(other)
    assert call("export", str(run / "hf"), *there)[0] == 0
    exported = (run / "hf" / "tokenizer.json").read_bytes()
    assert exported == (other / "tokens" / "tokenizer.json").read_bytes()
    mine = run / "tokens" / "tokenizer.json"
    assert call("export", str(run / "named"), *there, "--tokenizer", str(mine))[0] == 0
    assert (run / "named" / "tokenizer.json").read_bytes() == mine.read_bytes()


def test_rm_keeps_the_last_good_one_and_stays_away_from_a_running_job(call, run: Path) -> None:
    damage(folder(run, 20))
    code, told = call("rm", "10")
    assert code == 2 and "--last" in told and folder(run, 10).is_dir()
    with holding(run / "training", print):
        assert call("rm", "20")[0] == 3
    assert call("rm", "20")[0] == 0 and not folder(run, 20).exists()
    assert call("rm", "10", "--last")[0] == 0 and not folder(run, 10).exists()


@pytest.mark.parametrize("name", ["checkpoints/mynotes", "ranks", "checkpoints"])
def test_rm_deletes_nothing_but_checkpoints(call, run: Path, name: str) -> None:
    other = run / "training" / name
    other.mkdir(exist_ok=True)
    code, told = call("rm", "10", str(other), "--last")
    assert code == 5 and "only checkpoints" in told
    assert other.is_dir() and folder(run, 10).is_dir()


def test_rm_deletes_a_link_and_nothing_of_the_run_that_it_leads_to(call, run: Path, tmp_path_factory) -> None:
    other = tmp_path_factory.mktemp("other")
    folder(other, 20).parent.mkdir(parents=True)
    folder(other, 20).symlink_to(folder(run, 20))
    told = call("rm", "20", "--out", str(other))[1]
    assert "none of the 0 checkpoints that would remain" in told
    assert call("rm", "20", "--last", "--out", str(other))[0] == 0
    assert list(folder(other, 20).parent.iterdir()) == []
    assert call("verify", "20")[0] == 0, "the other run has its own"


def test_rm_deletes_what_is_named_twice_once(call, run: Path) -> None:
    code, told = call("rm", "10", str(folder(run, 10)))
    assert code == 0 and told.count("deleted") == 1 and not folder(run, 10).exists()


def test_what_is_not_there_is_told_with_what_is(call, run: Path) -> None:
    code, told = call("show", "15")
    assert code == 5 and step_name(10) in told
    shutil.rmtree(run / "training")
    assert call("show")[0] == 5


def test_a_step_is_named_by_its_directory_too(call, run: Path, monkeypatch) -> None:
    assert call("show", step_name(10)) == call("show", "10")
    assert step_name(10) in call("show", step_name(15))[1]
    monkeypatch.chdir(run / "training" / "checkpoints")  # there it is a directory, as any other
    assert call("verify", step_name(10))[0] == 0
    assert call("rm", step_name(10))[0] == 0 and not folder(run, 10).exists()


def test_a_run_without_checkpoints_is_listed_in_one_line(call, run: Path) -> None:
    shutil.rmtree(run / "training")
    assert call("ls") == (0, f"{run}/training/checkpoints holds no checkpoints\n")


def test_a_run_that_is_not_there_is_refused_rather_than_listed_as_empty(call, run: Path) -> None:
    shutil.rmtree(run)
    code, told = call("ls")
    assert code == 4 and "does not exist" in told
    run.touch()
    code, told = call("ls")
    assert code == 4 and f"{run} is a file; name" in told


def test_a_run_stands_for_its_newest_checkpoint_but_never_to_delete_it(call, run: Path) -> None:
    assert call("ls", str(run)) == call("ls")
    assert call("show", str(run)) == call("show", "20")
    assert call("rm", str(run))[0] == 5 and folder(run, 20).is_dir()


@pytest.mark.parametrize(
    "words", [("verify",), ("show",), ("reshard",), ("export", "hf"), ("average", "--to", "mean"), ("rm",)]
)
def test_a_directory_elsewhere_and_an_out_that_has_nothing_of_it_are_not_both_taken(
    call, run: Path, tmp_path_factory, words: tuple[str, ...]
) -> None:
    other = tmp_path_factory.mktemp("other") / step_name(20)
    shutil.copytree(folder(run, 20), other)
    code, told = call(*words, str(other))
    assert code == 2 and f"--out {run}: {other} is not in it; name one of the two" in told
    assert other.is_dir()
    assert call("verify", str(folder(run, 20)))[0] == 0, "a directory of --out is one of it"
    code, told = call("diff", str(other), str(other))
    assert code == 2 and "are not in it" in told
    assert call("diff", "20", str(other))[0] == 0, "a step of --out and a directory elsewhere"
