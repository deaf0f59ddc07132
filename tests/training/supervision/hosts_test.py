"""Two network namespaces stand for two hosts: the printed torchrun job trains there as on one host."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.training.supervision.job_scripts import STEPS, TRAINING, job_script, losses

from chaos.scene import job, plan, write_tokens
from trivium.training.supervision.job import start
from trivium.training.supervision.neighbours import KEPT_SECONDS

pytestmark = pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0 or shutil.which("ip") is None,
    reason="network namespaces need root and ip (iproute2)",
)


def ip(*words: str) -> None:
    subprocess.run(("ip", *words), check=True, capture_output=True)


class Hosts:
    """Two hosts with one address each, on a network of their own; their file system is shared."""

    def __init__(self, names: tuple[str, str], net: int) -> None:
        self.names, self.net, self.running = names, net, {}
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "eth-a", "netns", names[0], "type", "veth", "peer", "name", "eth-b", "netns", names[1])
        for number, (name, device) in enumerate(zip(names, ("eth-a", "eth-b"), strict=True)):
            ip("-n", name, "addr", "add", f"10.77.{net}.{number + 1}/24", "dev", device)
            for each in ("lo", device):
                ip("-n", name, "link", "set", each, "up")

    def run(self, number: int, script: Path) -> None:
        """Start the job file on a host."""
        first = f"10.77.{self.net}.1"
        environment = os.environ | {
            "FIRST_HOST": first,
            "TRIVIUM_DEVICES": "any",  # the file is for a machine with accelerators
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        with open(script.with_suffix(f".{number}.log"), "ab") as log:
            self.running[number] = subprocess.Popen(
                ["ip", "netns", "exec", self.names[number], "bash", str(script)],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def connect(self, on: bool) -> None:
        """Plug or unplug the cable between them."""
        ip("-n", self.names[0], "link", "set", "eth-a", "up" if on else "down")

    def kill(self, number: int) -> None:
        """Every process of a host, at once."""
        for pid in subprocess.run(
            ("ip", "netns", "pids", self.names[number]), check=True, capture_output=True, text=True
        ).stdout.split():
            os.kill(int(pid), signal.SIGKILL)
        self.running[number].wait()

    def end(self) -> None:
        for number in self.running:
            self.kill(number)
        for name in self.names:
            ip("netns", "del", name)


@pytest.fixture()
def hosts() -> Iterator[Hosts]:
    number = os.getpid() % 200
    names = (f"trivium-a{number}", f"trivium-b{number}")
    try:
        found = Hosts(names, number)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    yield found
    found.end()


def wait_for(seen: Callable[[], bool], hosts: Hosts, log: Path, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not seen():
        text = "\n".join(p.read_text()[-3000:] for p in sorted(log.parent.glob("job.*.log")))
        assert time.monotonic() < deadline, f"nothing after {seconds} s\n{text}"
        time.sleep(0.1)


def ended(hosts: Hosts) -> bool:
    return all(p.poll() is not None for p in hosts.running.values())


def on_one_host(folder: Path, tokens: Path) -> dict[int, float]:
    training = {k: v for k, v in TRAINING.items() if k != "restarts"}
    start(job(tokens, folder / "one", plan({"tensor": 2, "data": 2}), **training))
    return losses(folder / "one" / "metrics.jsonl")


@pytest.mark.broad
def test_two_hosts_train_as_one_and_continue_when_a_dead_host_is_back(hosts, tmp_path) -> None:
    tokens = write_tokens(tmp_path)
    script = job_script(tmp_path, tokens)
    metrics = tmp_path / "run" / "training" / "metrics.jsonl"
    for number in (0, 1):
        hosts.run(number, script)
    wait_for(lambda: len(losses(metrics)) > 8, hosts, script)
    hosts.kill(1)
    hosts.run(1, script)
    wait_for(lambda: ended(hosts), hosts, script, seconds=150)
    assert [hosts.running[n].returncode for n in (0, 1)] == [0, 0], script.with_suffix(".0.log").read_text()
    events = [json.loads(line)["event"] for line in (metrics.parent / "events.jsonl").read_text().splitlines()]
    assert events.count("resumed") == 1
    one, two = on_one_host(tmp_path, tokens), losses(metrics)
    assert one.keys() == two.keys() and len(one) == STEPS
    assert max(abs(one[s] - two[s]) for s in one) <= 1e-12


@pytest.mark.broad
def test_setting_of_one_host_is_rejected_on_both_before_the_first_step(hosts, tmp_path) -> None:
    tokens = write_tokens(tmp_path)
    script = job_script(tmp_path, tokens)
    other = tmp_path / "other" / "job.sh"
    other.parent.mkdir()
    other.write_text(script.read_text().replace("--preset", "--set training.lr=0.0001 --preset"))
    hosts.run(0, script)
    hosts.run(1, other)
    wait_for(lambda: ended(hosts), hosts, script)
    assert [hosts.running[n].returncode for n in (0, 1)] == [2, 2]
    for number, log in enumerate((script, other)):
        said = log.with_suffix(f".{number}.log").read_text()
        assert "training.lr: " in said and "not tried again" in said, said
    assert not (tmp_path / "run" / "training" / "metrics.jsonl").exists()


@pytest.mark.broad
def test_survivor_names_the_dead_first_host_and_waits_for_it(hosts, tmp_path) -> None:
    tokens = write_tokens(tmp_path)
    script = job_script(tmp_path, tokens)
    training = tmp_path / "run" / "training"
    for number in (0, 1):
        hosts.run(number, script)
    wait_for(lambda: len(losses(training / "metrics.jsonl")) > 8, hosts, script)
    hosts.kill(0)
    survivor = script.with_suffix(".1.log")
    wait_for(lambda: "attempt ended with 1" in survivor.read_text(), hosts, script)
    assert "rank 0 of 4 on 10.77." in survivor.read_text()
    failed = [
        e
        for line in (training / "events.jsonl").read_text().splitlines()
        if (e := json.loads(line))["event"] == "rank failed"
    ]
    assert {(e["rank"], e["host"]) for e in failed} == {(0, f"10.77.{hosts.net}.1")}
    hosts.run(0, script)
    wait_for(lambda: ended(hosts), hosts, script, seconds=150)
    assert [hosts.running[n].returncode for n in (0, 1)] == [0, 0], survivor.read_text()
    assert "failure 1 at" not in survivor.read_text(), "waiting for a lost host uses up no restarts"


@pytest.mark.slow
def test_cut_network_is_an_error_within_the_timeout_and_the_job_continues_later(hosts, tmp_path) -> None:
    tokens = write_tokens(tmp_path)
    script = job_script(tmp_path, tokens, timeout_seconds=4.0)
    metrics = tmp_path / "run" / "training" / "metrics.jsonl"
    for number in (0, 1):
        hosts.run(number, script)
    wait_for(lambda: len(losses(metrics)) > 6, hosts, script)
    hosts.connect(False)
    cut = time.monotonic()
    wait_for(lambda: "Timed out waiting 4000ms" in script.with_suffix(".0.log").read_text(), hosts, script)
    assert time.monotonic() - cut < 10 + KEPT_SECONDS  # the first rank keeps the board so long before it tells
    assert "error: rank " in script.with_suffix(".0.log").read_text()
    hosts.connect(True)
    wait_for(lambda: ended(hosts), hosts, script, seconds=200)
    assert [hosts.running[n].returncode for n in (0, 1)] == [0, 0]
    assert losses(metrics).keys() == set(range(1, STEPS + 1))
