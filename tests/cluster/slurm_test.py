"""The job file for Slurm, submitted as it was printed to a real one: two nodes train, lose, save and continue.

`make cluster` runs this; it takes about ten minutes, most of which are Slurm's own: it looks at time limits twice a
minute.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import yaml

from chaos.cluster import CAN_BE_MADE
from chaos.scene import VOCABULARY, write_tokens
from cluster.slurm import MISSING, REMEDY, Slurm
from trivium.provenance import STAMP, write_json
from trivium.training.metrics import EVENTS, METRICS, read

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not CAN_BE_MADE, reason="network namespaces need Linux, root and `ip` (iproute2)"),
    pytest.mark.skipif(bool(MISSING), reason=REMEDY),
]
NODES, RANKS = 2, 2  # ranks of each node
SUPERVISION = {"preemption_seconds": 20, "timeout_seconds": 30, "lease_seconds": 10}
MACHINE = {"base": "epyc-9654", "name": "two-nodes", "devices_per_node": RANKS, "nodes": NODES}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    started = Slurm(NODES, tmp_path_factory.mktemp("slurm"))
    yield started
    started.end()


class Training:
    """A small training as a job file for both nodes. The same seed and layout give the same losses, bit for bit."""

    def __init__(self, slurm: Slurm, name: str, steps: int, *more: str) -> None:
        self.slurm, self.out, self.resumptions = slurm, slurm.folder / name, 0
        tokens = slurm.folder / "made" / "tokens"
        if not tokens.exists():
            write_json(write_tokens(slurm.folder / "made") / STAMP, {"key": "tokens"})
            (slurm.folder / "machine.yaml").write_text(yaml.safe_dump(MACHINE))
        model = {"layers": 4, "hidden": 24, "heads": 4, "vocabulary": VOCABULARY, "vocabulary_multiple": 2}
        training = {"steps": steps, "checkpoint_every": 10, "validate_every": 1_000_000, "validation_samples": 8}
        training |= {"decay_tokens": 1_000_000, "supervision": SUPERVISION}
        config = {
            "plan": {
                "model": {**model, "sequence": 8},
                "batch": {"sequences": 8, "micro": 2},
                "layout": {"tensor": RANKS, "data": NODES},
                "precision": {"weights": "fp32"},
            },
            "tokens": {"vocabulary": VOCABULARY},
            "machine": str(slurm.folder / "machine.yaml"),
            "training": training,
        }
        preset = slurm.folder / f"{name}.yaml"
        preset.write_text(yaml.safe_dump(config))
        words = ["launch", "--print", "slurm", "--preset", str(preset), "--tokens", str(tokens), "--out", str(self.out)]
        words += more
        printed = subprocess.run([sys.executable, "-m", "trivium", *words], capture_output=True, text=True)
        assert printed.returncode == 0, printed.stderr
        self.file = slurm.folder / f"{name}.sh"
        self.file.write_text(printed.stdout)

    def submit(self, *options: str) -> str:
        self.number = self.slurm.submit(self.file, *options)
        return self.number

    def losses(self) -> dict[int, float]:
        return {each["step"]: each["loss"] for each in read(self.out / "training" / METRICS) if "loss" in each}

    def events(self, kind: str) -> list[dict]:
        return [each for each in read(self.out / "training" / EVENTS) if each["event"] == kind]

    def wait_for(self, what: str, seen: Callable[[], bool]) -> None:
        self.slurm.wait_for(self.number, seen, what)

    def trains(self, steps: int = 15) -> None:
        """Wait until the job has trained `steps` more steps, and so has saved."""
        begin = max(self.losses(), default=0)
        self.wait_for("the job did not train", lambda: max(self.losses(), default=0) >= begin + steps)

    def restarts(self) -> int:
        return int(self.slurm.job(self.number)["Restarts"])

    def told(self, words: str) -> bool:
        return words in self.slurm.log(self.number)


def test_a_job_resumes_exactly_however_slurm_takes_its_nodes(slurm: Slurm) -> None:
    """It resumes from the last checkpoint that it could have saved, with the losses of an uninterrupted job.
    A job that is cancelled is not queued again, and one that finishes is complete."""
    job = Training(slurm, "taken", 1_000_000)
    job.submit("--time=1-00")
    job.trains()

    slurm.run("scontrol", "requeue", job.number)
    resumes_after(job, "a requeue", saved_by_a_signal=True)

    urgent = slurm.folder / "urgent.sh"
    urgent.write_text("#!/bin/bash\nhostname\n")
    number = slurm.submit(urgent, "--partition=urgent", "--nodes=2", "--exclusive")
    resumes_after(job, "a preemption", saved_by_a_signal=True)
    assert slurm.job(number)["JobState"] == "COMPLETED"

    minutes = int(slurm.job(job.number)["RunTime"].split(":")[1])
    slurm.run("scontrol", "update", f"JobId={job.number}", f"TimeLimit={minutes + 2}")
    job.wait_for("the time limit was not noticed", lambda: job.restarts() == 3)
    slurm.run("scontrol", "update", f"JobId={job.number}", "TimeLimit=1-00")
    resumes_after(job, "the time limit", saved_by_a_signal=True)

    for node in ("h1", "h0"):  # the script runs on h0
        slurm.kill_node(node)
        count = job.restarts() + 1
        job.wait_for(f"{node} was not missed", lambda count=count: job.restarts() == count)
        slurm.start_node(node)
        resumes_after(job, f"a loss of {node}", saved_by_a_signal=False)

    slurm.run("scancel", job.number)
    job.wait_for("it was not cancelled", lambda: job.told("cancelled, and so not queued again"))
    assert job.events("preempted")[-1]["step"] == max(job.losses())

    whole = Training(slurm, "whole", max(job.losses()))
    whole.submit()
    whole.wait_for("it did not finish", lambda: slurm.job(whole.number)["JobState"] == "COMPLETED")
    assert whole.told("trained to the end") and whole.restarts() == 0
    assert whole.losses() == job.losses()


def test_an_elastic_job_continues_without_a_lost_node(slurm: Slurm) -> None:
    job = Training(slurm, "elastic", 1_000_000, "--hosts", f"1:{NODES}")

    def met() -> set[str]:
        rounds = job.events("hosts met")
        return set(rounds[-1]["hosts"]) if rounds else set()

    job.submit("--time=1-00")
    job.wait_for("the hosts did not meet", lambda: met() == {"h0", "h1"})
    job.trains()
    slurm.kill_node("h1")
    job.wait_for("h0 did not continue", lambda: met() == {"h0"})
    job.trains()
    assert slurm.job(job.number)["JobState"] == "RUNNING" and job.restarts() == 0
    slurm.run("scancel", job.number)
    job.wait_for("it was not cancelled", lambda: slurm.job(job.number)["JobState"] == "CANCELLED")
    assert job.events("preempted")[-1]["step"] == max(job.losses()) and job.restarts() == 0


def resumes_after(job: Training, what: str, *, saved_by_a_signal: bool) -> None:
    """Wait until the job has resumed and trained on. It lost no step if a signal came before its end, and otherwise
    those since the last checkpoint."""
    count = job.resumptions + 1
    job.wait_for(f"not resumed after {what}", lambda: len(job.events("resumed")) >= count)
    resumed, saved = job.events("resumed"), job.events("preempted" if saved_by_a_signal else "saved")
    print(f"{what}: resumed from step {resumed[-1]['step']}; restarts {job.restarts()}")
    assert len(resumed) == count
    job.resumptions = count
    before = [each["step"] for each in saved if each["time"] < resumed[-1]["time"]]
    assert resumed[-1]["step"] == before[-1]
    job.trains()
