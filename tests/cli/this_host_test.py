"""`train`, `demo` and `--dry-run` price the host they run on, and refuse what it cannot run."""

import shlex

import pytest

from trivium.cli import price as this_host
from trivium.cli.price import host_found, host_lines
from trivium.cli.run_config import Given
from trivium.errors import MachineError
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
    typed = next(line for line in refused.stderr.splitlines() if "settings that work" in line)
    command = shlex.split(typed.partition("work here: trivium ")[2])
    assert call(*command, "--dry-run").returncode == 0


def test_the_command_that_a_refusal_names_has_the_text_to_train_on(call, monkeypatch, tmp_path):
    monkeypatch.setattr(this_host, "memory_bytes", lambda: LAPTOP.memory_bytes)
    monkeypatch.setattr(this_host, "cores", lambda: LAPTOP.cores)
    text = tmp_path / "text.txt"
    text.write_text("Some words.\n\n" * 200)
    words = ("train", "--out", str(tmp_path / "run"), "--preset", "gpt-125m", "--set", "plan.batch.micro=16")
    refused = call(*words, "--data", str(text))
    assert refused.returncode == MachineError.exit_code
    assert f"settings that work here: trivium train --data {text} --out" in refused.stderr


def test_a_training_is_refused_before_anything_is_written(call, monkeypatch, tmp_path):
    monkeypatch.setattr(this_host, "memory_bytes", lambda: 1 << 20)
    assert call("demo", "--out", str(tmp_path / "run")).returncode == MachineError.exit_code
    assert not (tmp_path / "run").exists()


def test_who_insists_is_warned_and_goes_on():
    lines = host_lines(Given("gpt-125m"), 19073, ["train"], insists=True, host=LAPTOP)
    assert [line for line in lines if line.startswith("warning: ")]


def test_the_refusal_keeps_the_settings_that_were_given():
    with pytest.raises(MachineError, match="--set seed=7 .*training.steps="):
        host_lines(Given("gpt-125m", ("seed=7",)), 19073, ["train"], insists=False, host=LAPTOP)


def test_under_torchrun_the_ranks_of_this_host_are_known():
    torchrun = {"RANK": "13", "WORLD_SIZE": "16", "LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "a"}
    found = host_found(torchrun | HIDDEN)
    assert (found.first_rank, found.ranks) == (8, 8)
    assert (host_found(HIDDEN).first_rank, host_found(HIDDEN).ranks) == (0, 0)


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
