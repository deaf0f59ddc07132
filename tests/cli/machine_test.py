"""Laws of the doctor: each problem is found, named with its figure, and comes with its remedy."""

import sys
from pathlib import Path

import pytest

from trivium.cli import machine
from trivium.cli.machine import Facts, Gpus, check_compiler, gather, judge
from trivium.errors import MachineError

FIT = Facts(
    python=(3, 12, 1),
    torch="2.13.0+cpu",
    cores=2,
    memory_bytes=8 << 30,
    disk_bytes=10 << 30,
    shm_bytes=1 << 30,
    ports=8,
    files=1024,
    out=Path("runs/demo"),
    writable="",
    messages="",
    gpus=Gpus(""),
)


def test_a_fit_machine_passes_every_check():
    assert {check.verdict for check in judge(FIT)} == {"OK"}
    assert all(not check.remedy for check in judge(FIT))


@pytest.mark.parametrize(
    ("lack", "name", "verdict", "shown"),
    [
        ({"python": (3, 10, 4)}, "python", "FAIL", "3.10.4"),
        ({"torch": ""}, "torch", "FAIL", "not installed"),
        ({"torch": "2.10.1"}, "torch", "FAIL", "2.10.1"),
        ({"cores": 1}, "cores", "WARN", "1"),
        ({"memory_bytes": 3 << 30}, "memory", "WARN", "3 GiB"),
        ({"memory_bytes": 1 << 29}, "memory", "FAIL", "512 MiB"),
        ({"disk_bytes": 100 << 20}, "disk", "FAIL", "100 MiB"),
        ({"writable": "no"}, "output", "FAIL", "no"),
        ({"shm_bytes": 1 << 20}, "/dev/shm", "WARN", "1 MiB"),
        ({"ports": 3}, "ports", "WARN", "3 of 8"),
        ({"ports": 0}, "ports", "FAIL", "0 of 8"),
        ({"messages": "not permitted"}, "messages", "WARN", "over loopback: not permitted"),
        ({"gpus": Gpus("/dev/nvidiactl")}, "GPUs", "WARN", "torch 2.13.0+cpu sees none"),
        ({"files": 256}, "files", "WARN", "256"),
    ],
)
def test_each_lack_is_found_with_its_figure_and_remedy(lack: dict, name: str, verdict: str, shown: str):
    found = [check for check in judge(FIT._replace(**lack)) if check.verdict != "OK"]
    assert [(check.name, check.verdict) for check in found] == [(name, verdict)]
    assert shown in found[0].found and found[0].remedy


def test_gpus_are_counted_by_a_process_of_its_own(monkeypatch, tmp_path: Path):
    (tmp_path / "driver").touch()
    monkeypatch.setattr(machine, "DRIVERS", (str(tmp_path / "driver"),))
    monkeypatch.setattr(machine, "ASKED_OF_TORCH", "print(85 << 30, 'Card of Names')\n" * 2)
    found = gather(tmp_path).gpus
    assert found == Gpus(str(tmp_path / "driver"), 2 * (("Card of Names", 85 << 30),))
    (told,) = (c for c in judge(FIT._replace(gpus=found)) if c.name == "GPUs")
    assert told.verdict == "OK" and told.found == "2 x Card of Names, 85 GiB each"
    monkeypatch.setattr(machine, "ASKED_OF_TORCH", "print(85, 'half')\nraise SystemExit(1)")
    assert gather(tmp_path).gpus.seen == ()


def test_a_python_before_its_release_is_looked_at_too(tmp_path: Path, monkeypatch):
    """As text, its version ends in 0rc1, or in a plus if a distribution built it."""
    monkeypatch.setattr("platform.python_version_tuple", lambda: ("3", "14", "0rc1"))
    assert gather(tmp_path).python == sys.version_info[:3]


def test_what_a_platform_does_not_have_is_no_lack():
    assert {c.verdict for c in judge(FIT._replace(shm_bytes=None, files=None))} == {"OK"}


def test_this_machine_is_looked_at_without_leaving_a_trace(tmp_path: Path):
    facts = gather(tmp_path / "deep" / "run")
    assert facts.cores >= 1 and facts.memory_bytes > 0 and facts.ports >= 0 and facts.writable == ""
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    assert "is not a directory" in gather(tmp_path / "file").writable


def test_a_container_is_asked_what_it_leaves(monkeypatch):
    monkeypatch.setattr(machine, "memory_left", lambda: 123)
    monkeypatch.setattr(machine, "cores_allowed", lambda: 1)
    assert machine.memory_bytes() == 123 and machine.cores() == 1


def test_a_compiler_is_asked_for_only_where_one_is_needed(monkeypatch, tmp_path: Path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    check_compiler(wanted=False)
    with pytest.raises(MachineError, match=r"plan\.compiled is true.*g\+\+.*plan\.compiled=false"):
        check_compiler(wanted=True)
    monkeypatch.setenv("CXX", "mine++")
    with pytest.raises(MachineError, match=r"mine\+\+"):
        check_compiler(wanted=True)
    (tmp_path / "mine++").write_text("")
    (tmp_path / "mine++").chmod(0o755)
    check_compiler(wanted=True)
