"""The energy of steps is that of the counters, each counted once, and nothing where they cannot be read."""

import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from chaos.scene import job, plan, write_tokens
from trivium.training.metrics import METRICS, read
from trivium.training.observers import energy
from trivium.training.observers.energy import Counter, nvml_counters, rapl_counters
from trivium.training.supervision.job import start
from trivium.untrusted import read_json

GPU = torch.device("cuda", 0)


def domain(root: Path, folder: str, name: str, microjoules: int | None) -> Path:
    at = root / folder
    at.mkdir(parents=True)
    (at / "name").write_text(f"{name}\n")
    (at / "max_energy_range_uj").write_text("262143328850\n")
    if microjoules is not None:
        (at / "energy_uj").write_text(f"{microjoules}\n")
    return at / "energy_uj"


def test_packages_and_memory_are_counted_once_and_their_parts_are_not(tmp_path: Path) -> None:
    for folder, name in (
        ("intel-rapl:0", "package-0"),
        ("intel-rapl:0:0", "core"),
        ("intel-rapl:0:1", "dram"),
        ("intel-rapl:1", "psys"),
        ("intel-rapl-mmio:0", "package-0"),
    ):
        domain(tmp_path, folder, name, 5)
    domain(tmp_path, "intel-rapl:2", "package-1", None)  # readable by root alone, or absent
    assert [counter.name.split()[-1] for counter in rapl_counters(tmp_path)] == ["intel-rapl:0", "intel-rapl:0:1"]
    assert rapl_counters(tmp_path / "absent") == []


def test_a_counter_that_wraps_goes_on_from_its_range(tmp_path: Path) -> None:
    file = domain(tmp_path, "intel-rapl:0", "package-0", 262_143_000_000)
    (counter,) = rapl_counters(tmp_path)
    before = counter.read()
    file.write_text("1671150\n")
    assert counter.since(before) == pytest.approx(2.0)
    file.write_text("not a number\n")
    assert counter.since(before) is None and counter.since(None) is None


def made_nvml(readings: dict[str, int]) -> SimpleNamespace:
    class NVMLError(Exception):
        pass

    def handle(name: str) -> str:
        if name not in readings:
            raise NVMLError(name)
        return name

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=handle,
        nvmlDeviceGetTotalEnergyConsumption=lambda name: readings[name],
    )


def test_a_gpu_is_found_by_its_uuid_and_its_millijoules_are_converted(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="12-ab"))
    readings = {"GPU-12-ab": 7000}
    monkeypatch.setitem(sys.modules, "pynvml", made_nvml(readings))
    (counter,) = nvml_counters(GPU)
    before = counter.read()
    readings["GPU-12-ab"] += 1500
    assert counter.since(before) == 1.5
    readings["GPU-12-ab"] = 0  # the driver was loaded again
    assert counter.since(before) == 0.0
    monkeypatch.setitem(sys.modules, "pynvml", made_nvml({}))
    assert nvml_counters(GPU) == []
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    assert nvml_counters(GPU) == []


def test_the_ranks_of_a_host_count_its_counters_once(tmp_path: Path, monkeypatch) -> None:
    def ticking() -> list[Counter]:
        ticks = count(0, 3_000_000)
        return [Counter(f"package-{n}", lambda: next(ticks)) for n in range(2)]

    monkeypatch.setattr(energy, "rapl_counters", ticking)
    out = tmp_path / "run"
    start(job(write_tokens(tmp_path), out, plan({"data": 2}), steps=2))
    # Two counters, each read before and after a step, with one other reading in between.
    assert [record["joules"] for record in read(out / METRICS) if "loss" in record] == [12.0, 12.0]
    assert read_json(out / "result.json")["energy"] == "measured by RAPL"


def test_a_step_whose_counter_fails_has_no_energy_and_one_that_cannot_be_read_is_told_once(
    tmp_path, monkeypatch
) -> None:
    readings = iter([0, 1_000_000, None, 2_000_000])
    monkeypatch.setattr(energy, "rapl_counters", lambda: [Counter("package-0", lambda: next(readings))])
    given = write_tokens(tmp_path)
    start(job(given, tmp_path / "fails", plan({}), steps=2))
    joules = [record.get("joules") for record in read(tmp_path / "fails" / METRICS) if "loss" in record]
    assert joules == [1.0, None]
    monkeypatch.setattr(energy, "rapl_counters", list)
    start(job(given, tmp_path / "none", plan({}), steps=1))
    assert not any("joules" in record for record in read(tmp_path / "none" / METRICS))
    assert read_json(tmp_path / "none" / "result.json")["energy"] == "not measured: RAPL cannot be read"
