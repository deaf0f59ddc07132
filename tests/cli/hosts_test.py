"""`trivium train --hosts`: the numbers of hosts, and the plan for those that torchrun brought together."""

from pathlib import Path

import pytest

from trivium.cli.hosts import host_counts, met_by_torchrun
from trivium.cli.run_config import Given, resolve
from trivium.cli.stage import Run
from trivium.cli.train import job_for
from trivium.cli.workspace import Workspace
from trivium.errors import ConfigError
from trivium.training.supervision.rendezvous import GROW

LAYOUT = ("plan.layout.data=4", "plan.batch.sequences=24", "plan.batch.micro=1")


def run(tmp_path: Path) -> Run:
    return Run(resolve(Given("demo", LAYOUT, 1)), Workspace(tmp_path))


@pytest.mark.parametrize(
    ("counts", "says"), [("4", "MIN:MAX"), ("0:4", "1 <= MIN"), ("3:2", "MIN <= MAX"), ("1:3", "cannot share equally")]
)
def test_impossible_numbers_of_hosts_are_rejected(tmp_path: Path, counts: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        host_counts(counts, run(tmp_path).config.plan)


@pytest.mark.parametrize("hosts", [1, 2, 3, 4])
def test_plan_for_the_hosts_of_torchrun_has_their_ranks_and_the_same_batch(tmp_path: Path, hosts: int) -> None:
    before = run(tmp_path)
    after = met_by_torchrun(before, "1:4", {"WORLD_SIZE": str(hosts)})
    assert after.plan.layout.world_size == hosts
    assert after.plan.batch.sequences == before.plan.batch.sequences
    assert after.plan.check() == []
    assert (after.plan == before.plan) == (hosts == 4)
    assert after.config == before.config  # a run is not another one because a host is gone


def test_under_torchrun_ranks_do_not_end_for_hosts_that_a_former_job_awaited(tmp_path: Path) -> None:
    met = met_by_torchrun(run(tmp_path), "1:4", {"WORLD_SIZE": "4"})
    (tmp_path / "hosts").mkdir()
    (tmp_path / "hosts" / GROW).touch()
    assert not job_for(met, tmp_path / "training").others_wait()


def test_other_ranks_than_those_of_the_hosts_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--nnodes 2:4 --nproc-per-node 1"):
        met_by_torchrun(run(tmp_path), "2:4", {"WORLD_SIZE": "1"})


def test_raw_text_is_rejected_because_every_host_would_prepare_it(call, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Some words.\n\n" * 5000)
    refused = call("train", "--data", str(text), "--out", "run", "--preset", "demo", "--hosts", "1:2")
    assert refused.returncode == ConfigError.exit_code
    assert f"`trivium corpus run demo --data {text} --out run` before the job" in refused.stderr
    assert not (tmp_path / "run").exists()
