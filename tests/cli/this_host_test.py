"""`train`, `demo` and `--dry-run` price the host they run on, and refuse what it cannot run."""

import shlex

import pytest

from trivium.cli import price as this_host
from trivium.cli.planned import planned
from trivium.cli.price import host_found, host_lines
from trivium.cli.run_config import Given, resolve
from trivium.errors import DataError, MachineError
from trivium.planner.this_host import Host

LAPTOP = Host(cores=2, memory_bytes=16 << 30)
HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize("verb", ["train", "demo"])
def test_the_settings_that_a_refusal_names_pass_when_typed(call, monkeypatch, verb, tmp_path):
    monkeypatch.setattr(this_host, "memory_bytes", lambda: LAPTOP.memory_bytes)
    monkeypatch.setattr(this_host, "cores", lambda: LAPTOP.cores)
    words = [verb, "--dry-run", "--out", str(tmp_path / "run"), "--preset", "gpt-125m"]
    refused = call(*words, "--set", "plan.batch.micro=16")
    assert refused.returncode == MachineError.exit_code
    assert "--any-machine" in refused.stderr
    typed = next(line for line in refused.stderr.splitlines() if "settings that run" in line)
    command = shlex.split(typed.partition(": trivium ")[2])
    assert call(*command, "--dry-run").returncode == 0


def test_the_command_that_a_refusal_names_has_the_text_to_train_on(call, monkeypatch, tmp_path):
    monkeypatch.setattr(this_host, "memory_bytes", lambda: LAPTOP.memory_bytes)
    monkeypatch.setattr(this_host, "cores", lambda: LAPTOP.cores)
    text = tmp_path / "text.txt"
    text.write_text("Some words.\n\n" * 50_000)
    words = ("train", "--out", str(tmp_path / "run"), "--preset", "gpt-125m", "--set", "plan.batch.micro=16")
    refused = call(*words, "--data", str(text))
    assert refused.returncode == MachineError.exit_code
    assert f": trivium train --data {text} --out" in refused.stderr


@pytest.mark.parametrize(
    "verb", ["suite pythia --sizes 14m,31m", "recipes run books-124m"], ids=lambda verb: verb.split()[0]
)
def test_a_command_whose_argument_names_the_model_is_named_with_it(call, monkeypatch, verb, tmp_path):
    monkeypatch.setattr(this_host, "memory_bytes", lambda: LAPTOP.memory_bytes)
    monkeypatch.setattr(this_host, "cores", lambda: LAPTOP.cores)
    (tmp_path / "text.txt").write_text("Some words.\n\n" * 170_000)
    refused = call(*verb.split(), "--data", "text.txt", "--out", "run", "--set", "tokens.tokenizer=gpt2")
    assert refused.returncode == MachineError.exit_code and not (tmp_path / "run").exists()
    typed = next(line for line in refused.stderr.splitlines() if "settings that run" in line)
    command = typed.partition(": trivium ")[2]
    assert command.startswith(f"{verb} --data text.txt --out run ") and "--preset" not in command
    assert call(*shlex.split(command), "--dry-run").returncode == 0


def test_a_training_is_refused_before_anything_is_written(call, monkeypatch, tmp_path):
    monkeypatch.setattr(this_host, "memory_bytes", lambda: 1 << 20)
    assert call("demo", "--out", str(tmp_path / "run")).returncode == MachineError.exit_code
    assert not (tmp_path / "run").exists()


def test_who_insists_is_warned_and_goes_on():
    lines = host_lines(Given("gpt-125m"), 19073, ["train"], insists=True, host=LAPTOP)
    assert [line for line in lines if line.startswith("warning: ")]


def test_the_refusal_keeps_the_settings_that_were_given():
    with pytest.raises(MachineError, match="--seed 7 .*--steps "):
        host_lines(Given("gpt-125m", ("seed=7",)), 19073, ["train"], insists=False, host=LAPTOP)


def test_a_refusal_leaves_out_the_settings_that_change_nothing():
    """The planner's choice repeats most fields of the preset; whoever types the command has to give the others."""
    given = planned(Given("gpt2"), 1, None, lambda line: None)
    with pytest.raises(MachineError) as refused:
        host_lines(given, 2000, ["train", "--data", "x.txt"], insists=False, host=LAPTOP)
    typed = shlex.split(str(refused.value).partition(": trivium ")[2].partition("\n")[0])
    assert {"--dp", "--steps"} <= {*typed}
    steps = int(typed[typed.index("--steps") + 1])
    assert f"in time ({steps:,} of {resolve(given).training.steps:,} steps): trivium" in str(refused.value)
    assert not {"cuda_graphs", "null", "--set"} & {part for word in typed for part in word.replace("=", ".").split(".")}
    assert "a small model, in about" in str(refused.value)
    assert "trivium train --data x.txt --preset demo" in str(refused.value)


def test_text_that_is_missing_is_reported_before_what_this_host_lacks(call, tmp_path):
    done = call("train", "--model", "llama-3-8b", "--data", str(tmp_path / "none.txt"), "--out", str(tmp_path / "run"))
    assert done.returncode == DataError.exit_code
    assert "none.txt does not exist" in done.stderr


def test_only_a_dry_run_that_ends_well_says_that_nothing_was_started(call, monkeypatch, tmp_path):
    words = ("train", "--dry-run", "--out", str(tmp_path / "run"))
    assert call(*words).stdout.splitlines()[-1] == "nothing was started or written"
    monkeypatch.setattr(this_host, "memory_bytes", lambda: 1 << 20)
    refused = call(*words)
    assert refused.returncode == MachineError.exit_code
    assert "nothing was started" not in refused.stdout


def test_under_torchrun_the_ranks_of_this_host_are_known():
    torchrun = {"RANK": "13", "WORLD_SIZE": "16", "LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "a"}
    found = host_found(torchrun | HIDDEN)
    assert (found.first_rank, found.ranks) == (8, 8)
    assert (host_found(HIDDEN).first_rank, host_found(HIDDEN).ranks) == (0, 0)


def test_host_of_several_is_priced_as_the_one_whose_ranks_torchrun_names():
    sets = ("plan.layout.data=64", "plan.zero=3", "plan.batch.sequences=512", "plan.batch.micro=1", "machine=dgx-h100")
    given, node = Given("llama-3-8b", sets), Host(112, 1 << 40, (("NVIDIA H100", 80 << 30),) * 8)
    by_torchrun = Host(112, 1 << 40, node.accelerators, 8, 8)
    lines = host_lines(given, 1000, ["train"], insists=False, host=node, hosts=8)
    assert lines == host_lines(given, 1000, ["train"], insists=False, host=by_torchrun)


def test_each_of_several_hosts_is_priced_for_its_share_of_the_ranks(call, monkeypatch, tmp_path):
    monkeypatch.setattr(this_host, "memory_bytes", lambda: 12 << 30)
    monkeypatch.setattr(this_host, "cores", lambda: 64)
    words = ["train", "--dry-run", "--out", str(tmp_path / "run"), "--preset", "gpt-125m", "--set", "training.steps=9"]
    assert call(*words).returncode == MachineError.exit_code
    assert ": 1 rank of this plan needs" in call(*words, "--hosts", "1:8").stdout
    refused = call(*words, "--hosts", "1:8", "--set", "plan.batch.micro=16")
    assert refused.returncode == MachineError.exit_code
    typed = refused.stderr.partition(": trivium ")[2].partition("\n")[0]
    assert "--hosts 1:8" in typed and call(*shlex.split(typed), "--dry-run").returncode == 0


def test_gpus_are_those_that_nvidia_smi_tells_and_that_are_visible(monkeypatch, tmp_path):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '1024, NVIDIA A'\necho '2048, NVIDIA B'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(this_host, "DRIVERS", (str(smi),))
    monkeypatch.setattr(this_host, "version_of", lambda package: "2.13.0+cu130")
    both = (("NVIDIA A", 1 << 30), ("NVIDIA B", 2 << 30))
    assert host_found({}).accelerators == both
    assert host_found({"CUDA_VISIBLE_DEVICES": "1"}).accelerators == both[1:]
    assert host_found(HIDDEN).accelerators == ()
    smi.write_text("#!/bin/sh\nexit 9\n")
    assert host_found({}) is None
    monkeypatch.setattr(this_host, "version_of", lambda package: "2.13.0+cpu")
    assert host_found({}).accelerators == ()
