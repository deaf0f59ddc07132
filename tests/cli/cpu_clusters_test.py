"""Clusters of CPUs: the planner chooses a layout for the cores of their nodes, and a job file asks for cores."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import yaml
from tests.cli.pods_test import accepted

from trivium.cli import main as entry
from trivium.cli.run_config import Given, resolve
from trivium.cost.hardware import machine_named
from trivium.planner.search import best_search

TWO_NODES = ["machine=epyc-9654", "plan.layout.tensor=2", "plan.layout.data=192", "plan.batch.sequences=384"]


def printed(capsys, monkeypatch, target: str, *sets: str, more: Sequence[str] = ()) -> str:
    words = [word for each in sets for word in ("--set", each)] + [*more]
    command = ["trivium", "launch", "--print", target, "--preset", "gpt-125m", "--out", "/runs/a", *words]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    told = capsys.readouterr()
    assert not ended.value.code, told.err
    return told.out


def test_slurm_gives_each_rank_a_core_and_the_job_whole_nodes(capsys, monkeypatch) -> None:
    text = printed(capsys, monkeypatch, "slurm", *TWO_NODES, "plan.batch.micro=2")
    subprocess.run(["bash", "-n"], input=text.encode(), check=True)
    asked = {line for line in text.splitlines() if line.startswith("#SBATCH")}
    whole = {"#SBATCH --cpus-per-task=1", "#SBATCH --exclusive", "#SBATCH --mem=0"}
    assert whole | {"#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=192"} <= asked
    assert "gpus" not in text and "TRIVIUM_DEVICES" not in text
    part = printed(capsys, monkeypatch, "slurm", "machine=epyc-9654")
    assert "#SBATCH --ntasks-per-node=8" in part and "--exclusive" not in part and "--mem=0" not in part


def test_an_elastic_job_keeps_the_nodes_that_are_left_and_starts_one_task_on_each(capsys, monkeypatch) -> None:
    text = printed(capsys, monkeypatch, "slurm", *TWO_NODES, "plan.batch.micro=2", more=["--hosts", "1:2"])
    subprocess.run(["bash", "-n"], input=text.encode(), check=True)
    asked = {line for line in text.splitlines() if line.startswith("#SBATCH")}
    assert {"#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=1", "#SBATCH --cpus-per-task=192"} <= asked
    assert {"#SBATCH --no-kill", "#SBATCH --exclusive"} <= asked
    (started,) = [line for line in text.splitlines() if line.startswith("srun ")]
    assert "--no-kill" in started and "--kill-on-bad-exit=0" in started and " --hosts 1:2\n" in text
    assert "MASTER_PORT" not in text and "{{" not in text


@pytest.mark.parametrize(
    ("target", "hosts", "law"),
    [("torchrun", "1:2", "waits for the same hosts"), ("slurm", "1:4", "MAX must be 2"), ("slurm", "2", "MIN:MAX")],
)
def test_hosts_that_a_job_file_cannot_have_are_refused(capsys, monkeypatch, target: str, hosts: str, law: str) -> None:
    with pytest.raises(AssertionError, match=law):
        printed(capsys, monkeypatch, target, *TWO_NODES, "plan.batch.micro=2", more=["--hosts", hosts])


def test_pods_ask_for_no_gpus(capsys, monkeypatch) -> None:
    _, job = yaml.safe_load_all(printed(capsys, monkeypatch, "kubernetes", *TWO_NODES, "plan.batch.micro=2"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert "resources" not in container and [each["name"] for each in container["env"]] == ["OUT", "JOB"]


@pytest.mark.parametrize("more", [(), ("--hosts", "1:2")])
@pytest.mark.parametrize("target", ["kubernetes", "jobset"])
def test_pods_that_take_all_cores_of_a_node_are_not_put_on_one_node(capsys, monkeypatch, target: str, more) -> None:
    def pods(*sets: str, more: Sequence[str] = ()) -> dict[str, Any]:
        *_, file = yaml.safe_load_all(printed(capsys, monkeypatch, target, *sets, more=more))
        accepted([file])
        spec = file["spec"] if target == "kubernetes" else file["spec"]["replicatedJobs"][0]["template"]["spec"]
        return spec["template"]

    whole = pods(*TWO_NODES, "plan.batch.micro=2", more=more)
    (rule,) = whole["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert rule["labelSelector"] == {"matchLabels": whole["metadata"]["labels"]}
    part = pods("machine=epyc-9654")
    assert "metadata" not in part and "affinity" not in part["spec"], "8 ranks leave the other cores"


@pytest.mark.parametrize("name", ["archer2", "epyc-9654"])
def test_a_search_fills_two_nodes_with_tensor_groups_inside_them_and_records_nothing(name: str) -> None:
    machine = machine_named(name).with_nodes(2)
    plan = resolve(Given("gpt-125m")).plan
    assert plan.cuda_graphs
    chosen = best_search(plan, machine, machine.devices).chosen.plan
    assert chosen.layout.world_size == machine.devices and machine.devices_per_node % chosen.layout.tensor == 0
    assert not chosen.cuda_graphs
