"""`trivium checkpoint`: what it says, and its exit codes."""

import json
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cli.main_test import imported, trivium
from plans import small
from trivium.certify.certificate import RULE
from trivium.checkpoint import pieces
from trivium.checkpoint.format import step_name
from trivium.checkpoint.lease import holding
from trivium.checkpoint.load import Checkpoint
from trivium.checkpoint.save import save
from trivium.cli import main as entry
from trivium.cli.options import DEFAULT_OUT, open_asked
from trivium.cli.run_config import Given, resolve
from trivium.comms.mesh import Mesh
from trivium.config import to_tree
from trivium.interchange.target import opened
from trivium.plan.parameters import Box
from trivium.tokens.tokenizer import load_tokenizer, train_tokenizer
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
        group = [] if words[0] == "diff" else ["checkpoint"]
        monkeypatch.setattr(sys, "argv", ["trivium", *group, *words, *where])
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


def test_show_lists_the_checkpoints_of_a_run(call, run: Path) -> None:
    code, told = call("show", "--json", str(run / "ls.json"))
    assert code == 0 and "10" in told and "20" in told
    assert [c["step"] for c in json.loads((run / "ls.json").read_text())["checkpoints"]] == [10, 20]
    code, told = call("show", "--tensors")
    assert code == 2 and "--tensors: a list shows no tensors" in told


def test_verify_names_the_tensor_that_is_not_finite_and_rm_keeps_another(
    call, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = small()
    trainer = Trainer(plan, Mesh.single(), seed=7, rule=RULE)
    trainer.buckets[0].weights[3] = float("nan")
    monkeypatch.setattr(pieces, "is_finite", lambda values: True)
    save(run / "training" / "checkpoints", 30, fragments(trainer), Mesh.single(), {"plan": to_tree(plan)})
    code, told = call("verify", "--all")
    assert code == 5 and told.count(": verified; ") == 2
    assert "not finite" in told and "weight holds a NaN or an infinity; use an older checkpoint" in told
    assert call("verify", "20")[0] == 0
    code, told = call("rm", "10", "20")
    assert code == 2 and "none of the 1 checkpoints that would remain is good" in told


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


@pytest.mark.parametrize("words", [["show"], ["verify", "--all"], ["show", "10"], ["rm", "10"]], ids=" ".join)
def test_what_reads_manifests_and_bytes_alone_imports_no_torch(run: Path, words: list[str]) -> None:
    done = trivium("checkpoint", *words, "--out", str(run))
    assert done.returncode == 0 and "torch" not in imported(done), done.stderr


def test_a_run_is_named_once(call, tmp_path: Path) -> None:
    code, told = call("show", str(tmp_path / "another"))
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


def test_diff_of_runs_without_a_corpus_of_their_own_names_the_checkpoints(call, run: Path, tmp_path_factory) -> None:
    other = tmp_path_factory.mktemp("other")
    shutil.copytree(run / "training", other / "training")
    for of_neither in (True, False):
        code, told = call("diff", str(run), str(other))
        remedy = f"to compare their models, name a checkpoint: `trivium diff {folder(run, 20)} {other}`"
        assert code == 4 and remedy in told
        assert ("neither" if of_neither else f"{run / 'curated'} does not exist") in told
        (other / "curated").mkdir(exist_ok=True)
    assert call("diff", str(folder(run, 20)), str(other))[0] == 0
    shutil.rmtree(other / "training")
    assert "run `trivium corpus run` first" in call("diff", str(run), str(other))[1]


def test_diff_of_a_run_and_a_folder_of_checkpoints_names_the_newest_checkpoint_of_the_run(call, run: Path) -> None:
    shutil.copytree(run / "training" / "checkpoints", run / "merged")
    (run / "tokens").mkdir()
    for words in ((run, run / "merged"), (run / "merged", run)):
        code, told = call("diff", *map(str, words))
        assert code == 4 and "run `trivium corpus run` first" not in told
        command = shlex.split(told[told.index("`") : told.rindex("`")].strip("`"))
        assert call(*command[1:])[0] == 0


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
    assert code == 5 and "7 B are free" in told and "choose another --to" in told and "--out" not in told


def test_an_average_is_exported_and_its_steps_are_named(call, run: Path) -> None:
    code, told = call("average", "10", "20")
    mean = run / "averaged" / step_name(20)
    assert code == 0 and f"training.start_from={mean}" in told
    assert "average_of" in call("show", str(mean))[1]
    assert call("export", str(run / "hf"), str(mean))[0] == 0
    one, two, both = (Checkpoint.open(path) for path in (folder(run, 10), folder(run, 20), mean))
    name, box = "weights/layers.2.attention.qkv.weight", Box((0, 0), (72, 24))
    halves = (one.read(name, box, torch.float64) + two.read(name, box, torch.float64)) / 2
    assert torch.equal(both.read(name, box, torch.float32), halves.float())
    damage(folder(run, 10))
    assert call("average", "10", "20", "--to", str(run / "again"))[0] == 5


def test_export_of_the_arguments_in_the_other_order_names_the_right_one(call, run: Path) -> None:
    code, told = call("export", str(run), str(run / "new"))
    assert code == 2 and f"`trivium checkpoint export NEW {run}`" in told


def test_export_and_import_go_round(call, run: Path) -> None:
    assert call("export", str(run / "hf"), "20")[0] == 0
    code, told = call("import", str(run / "hf"))
    preset = run / "imported" / "preset.yaml"
    assert code == 0 and f"trivium train --preset {preset} --tokens DIR --out {run}" in told
    assert resolve(Given(str(preset))).plan.model == Checkpoint.open(run / "imported" / step_name(0)).plan.model
    one, two = Checkpoint.open(folder(run, 20)), Checkpoint.open(run / "imported" / step_name(0))
    box = Box((0, 0), (72, 24))
    name = "weights/layers.2.attention.qkv.weight"
    assert torch.equal(one.read(name, box, torch.float32), two.read(name, box, torch.float32))
    assert call("export", "--format", "onnx", str(run / "x"))[0] == 2


def test_import_carries_the_tokenizer_and_its_printed_commands_are_valid(call, run: Path, capsys) -> None:
    """Under names that a shell and YAML read otherwise where they are not quoted."""
    folder, root = run / "hf #2", run / "imported #2"
    trainer = Trainer(small(model={"vocabulary": 300}), Mesh.single(), seed=7, rule=RULE)
    about = {"plan": to_tree(trainer.plan)}
    path = save(run / "training" / "checkpoints", 30, fragments(trainer), Mesh.single(), about)
    assert call("export", str(folder), str(path))[0] == 0
    words = train_tokenizer(["some words"] * 3, 260, "</s>")
    words.save(folder / "tokenizer.json")
    config = json.loads((folder / "config.json").read_text())
    dropouts = {"attn_pdrop": 0.1, "embd_pdrop": 0.2, "resid_pdrop": 0.2}
    (folder / "config.json").write_text(json.dumps(config | dropouts))
    drawn = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": words.end_of_text, "min_p": 0.3}
    (folder / "generation_config.json").write_text(json.dumps(drawn))
    shutil.rmtree(run / "training")
    code, told = call("import", str(folder), "--to", str(root))
    assert code == 0 and "documents end with </s>" in told
    ignored = "generation_config.json: settings that are not supported are ignored: min_p 0.3"
    assert ignored in told
    assert "attn_pdrop 0.1 is not applied in training: plan.model.dropout (0.2) is" in told and "embd_pdrop" not in told
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (root / name).read_bytes() == (folder / name).read_bytes()
    commands = [shlex.split(line) for line in told.replace("ask it: ", "").splitlines() if "trivium " in line]
    assert [c[1] for c in commands] == ["generate", "corpus", "train"] and max(map(len, commands)) <= 6
    assert commands[0][2] == str(root)

    config = resolve(Given(commands[1][3])).checked()
    assert config.training.start_from == str(root / step_name(0))
    assert config.tokens.tokenizer == str(root / "tokenizer.json") and config.tokens.vocabulary == 260
    assert config.plan.model == Checkpoint.open(root / step_name(0)).plan.model
    assert config.plan.layout.world_size == 1
    assert (config.generation.sampling.temperature, config.generation.sampling.top_p) == (0.6, 0.9)
    assert open_asked(root, DEFAULT_OUT, None, None).config == config  # how it draws holds where it is asked
    capsys.readouterr()
    assert open_asked(folder, DEFAULT_OUT, None, None).config.generation == config.generation
    assert ignored in capsys.readouterr().err
    greedy = open_asked(folder, DEFAULT_OUT, None, ["generation.sampling.temperature=0"]).config.generation.sampling
    assert (greedy.temperature, greedy.top_p) == (0, 0.9)
    with opened(root) as target:
        assert target.tokenizer == root / "tokenizer.json"
        assert load_tokenizer(target.tokenizer).identity == words.identity
    root.rename(run / "moved")
    assert resolve(Given(str(run / "moved" / "preset.yaml"))).training.start_from == str(run / "moved" / step_name(0))


def test_imported_model_is_a_run_that_trains_and_exports_without_further_options(call, run: Path) -> None:
    """`out` is a run directory inside of `run`, whose own checkpoints are none of its business."""
    folder, out = run / "hf", run / "of its own"
    trainer = Trainer(small(model={"vocabulary": 300}), Mesh.single(), seed=7, rule=RULE)
    path = save(
        run / "training" / "checkpoints", 30, fragments(trainer), Mesh.single(), {"plan": to_tree(trainer.plan)}
    )
    assert call("export", str(folder), str(path))[0] == 0
    words = train_tokenizer(["some words"] * 3, 260)
    words.save(folder / "tokenizer.json")
    code, told = call("import", str(folder), "--out", str(out))
    commands = [shlex.split(line) for line in told.replace("ask it: ", "").splitlines() if "trivium " in line]
    place = shlex.quote(str(out))
    assert code == 0 and [shlex.join(c) for c in commands] == [
        f"trivium generate {place}", f"trivium corpus run --out {place}", f"trivium train --out {place}"
    ]  # fmt: skip
    config = resolve(Given(str(out))).checked()
    assert config.plan.model.of_weights() == trainer.plan.model.of_weights()
    assert config.training.start_from == str(out / "imported" / step_name(0))
    assert load_tokenizer(config.tokens.tokenizer).identity == words.identity
    assert open_asked(out, DEFAULT_OUT, None, None).config == config
    with opened(out) as target:
        assert target.newest == out / "imported" / step_name(0) and target.run == out
    assert call("show", "--out", str(out))[1].split()[7] == "0"
    assert call("export", str(run / "again"), "--out", str(out))[0] == 0
    again = (run / "again" / "model.safetensors").read_bytes()
    assert again == (folder / "model.safetensors").read_bytes()
    assert call("export", str(run / "third"), str(folder), "--out", str(out))[0] == 0
    assert (run / "third" / "model.safetensors").read_bytes() == again


def test_import_leaves_the_config_of_a_run_as_it_was(call, run: Path) -> None:
    assert call("export", str(run / "hf"), "20")[0] == 0
    train_tokenizer(["some words"] * 3, 260).save(run / "hf" / "tokenizer.json")
    (run / "config.json").write_text("{}")
    assert call("import", str(run / "hf"))[0] == 0 and (run / "config.json").read_text() == "{}"


def test_folder_without_weights_is_refused_before_anything_is_written(call, run: Path) -> None:
    assert call("export", str(run / "hf"), "20")[0] == 0
    (run / "hf" / "model.safetensors").unlink()
    code, told = call("import", str(run / "hf"), "--out", str(run / "new"))
    assert code == 4 and "no .safetensors files" in told and not (run / "new").exists()


def test_import_does_not_overwrite_a_preset_or_another_tokenizer(call, run: Path) -> None:
    assert call("export", str(run / "hf"), "20")[0] == 0
    train_tokenizer(["some words"] * 3, 260).save(run / "hf" / "tokenizer.json")
    for name in ("tokenizer.json", "preset.yaml"):
        (run / f"to {name}").mkdir()
        (run / f"to {name}" / name).write_text("{}")
        code, told = call("import", str(run / "hf"), "--to", str(run / f"to {name}"))
        assert code == 2 and "choose another --to" in told and not (run / f"to {name}" / step_name(0)).exists()


def test_a_checkpoint_of_another_run_is_exported_with_that_runs_tokenizer(call, run: Path, tmp_path_factory) -> None:
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


def test_a_step_is_named_by_its_directory_too(call, run: Path, monkeypatch) -> None:
    assert call("show", step_name(10)) == call("show", "10")
    assert step_name(10) in call("show", step_name(15))[1]
    monkeypatch.chdir(run / "training" / "checkpoints")  # there it is a directory, as any other
    assert call("verify", step_name(10))[0] == 0
    assert call("rm", step_name(10))[0] == 0 and not folder(run, 10).exists()


def test_a_run_without_checkpoints_is_listed_in_one_line(call, run: Path) -> None:
    shutil.rmtree(run / "training")
    assert call("show") == (0, f"{run}/training/checkpoints holds no checkpoints\n")


def test_a_run_that_is_not_there_is_refused_rather_than_listed_as_empty(call, run: Path) -> None:
    shutil.rmtree(run)
    code, told = call("show")
    assert code == 4 and "does not exist" in told
    run.touch()
    code, told = call("show")
    assert code == 4 and f"{run} is a file; name" in told


def test_a_run_stands_for_its_newest_checkpoint_but_never_to_delete_it(call, run: Path) -> None:
    assert call("show", str(run)) == call("show")
    assert call("verify", str(run)) == call("verify", "20")
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
