"""Measures the energy of every step: of GPUs by NVML, and of a host's processors by Linux's RAPL counters.

A processor's counter has all that runs on its host. Where a rank's device has no counter that it may read, as on most
virtual machines, nothing is measured.
"""

import hashlib
import socket
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import torch

from trivium.checkpoint.agree import sums
from trivium.comms.mesh import Mesh
from trivium.training.loop import Loop, Observer, StepSetup
from trivium.training.trainer import StepResult
from trivium.untrusted import open_regular

JOULES = "joules"  # in a record of metrics.jsonl: of a step, over all devices
POWERCAP = Path("/sys/class/powercap")
# Domains that do not contain one another: `core` and `uncore` are parts of a package, and `psys` is a whole board.
_DOMAINS = ("package", "dram")
_MICROJOULES, _PER_MILLIJOULE = 1e6, 1000
_HASH_BYTES = 6  # exact in the fp64 of a sum over ranks


class Counter(NamedTuple):
    """An energy counter. read: returns microjoules, or None if that fails. wraps_at: their range; 0: no end."""

    name: str
    read: Callable[[], int | None]
    wraps_at: int = 0

    def since(self, before: int | None) -> float | None:
        """Return the joules since a reading, or None if one of both failed."""
        now = self.read()
        if before is None or now is None:
            return None
        spent = now - before
        return max(0, spent if spent >= 0 else spent + self.wraps_at) / _MICROJOULES


def rapl_counters(root: Path = POWERCAP) -> list[Counter]:
    """Return the counters of this host's processors and memory that may be read."""
    counters = []
    for domain in sorted(root.glob("intel-rapl:*")):
        kind, wraps_at = _text(domain / "name"), _number(domain / "max_energy_range_uj")
        if kind is None or wraps_at is None or not kind.startswith(_DOMAINS):
            continue
        read = partial(_number, domain / "energy_uj")
        counter = Counter(f"{socket.gethostname()} {domain.name}", read, wraps_at)
        if counter.read() is not None:
            counters.append(counter)
    return counters


def nvml_counters(device: torch.device) -> list[Counter]:
    """Return the counter of a GPU, if the package nvidia-ml-py is installed and the GPU has one."""
    try:
        nvml = import_module("pynvml")
    except ModuleNotFoundError:
        return []
    try:
        nvml.nvmlInit()
        name = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = nvml.nvmlDeviceGetHandleByUUID(name)
    except nvml.NVMLError:
        return []

    def read() -> int | None:
        try:
            return int(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) * _PER_MILLIJOULE
        except nvml.NVMLError:
            return None

    counter = Counter(name, read)
    return [counter] if counter.read() is not None else []


class Energy(Observer):
    """Adds `joules` to the metrics of each step. Of ranks with the same counters, the first reads them."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._own: Sequence[Counter] = ()
        self._before: list[int | None] = []
        self._is_measured: bool | None = None

    def resume(self, loop: Loop) -> None:
        if self._is_measured is not None:  # after a rewind
            return
        device, rank = self._mesh.device, self._mesh.rank
        found = nvml_counters(device) if device.type == "cuda" else rapl_counters()
        marks = [0.0] * self._mesh.layout.world_size
        marks[rank] = _mark([counter.name for counter in found]) if found else 0.0
        every = sums(marks, self._mesh)
        self._is_measured = all(every)
        self._own = found if self._is_measured and every.index(marks[rank]) == rank else ()
        kind = "NVML" if device.type == "cuda" else "RAPL"
        loop.summary["energy"] = f"measured by {kind}" if self._is_measured else f"not measured: {kind} cannot be read"

    def before_step(self, loop: Loop, setup: StepSetup) -> None:
        self._before = [counter.read() for counter in self._own]

    def after_step(self, loop: Loop, result: StepResult) -> None:
        if not self._is_measured:
            return
        spent = [counter.since(before) for counter, before in zip(self._own, self._before, strict=True)]
        failed = any(each is None for each in spent)
        joules, failures = sums([sum(each or 0.0 for each in spent), float(failed)], self._mesh)
        if not failures:
            loop.figures[JOULES] = joules


def _mark(names: Sequence[str]) -> float:
    """Return a number that is the same for ranks with the same counters, and never 0."""
    return 1.0 + int.from_bytes(hashlib.sha256("\n".join(names).encode()).digest()[:_HASH_BYTES], "big")


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdigit() else None


def _text(path: Path) -> str | None:
    """Return the text of a file of the kernel, or None if it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read(100).decode("ascii", errors="replace").strip()
    except OSError:
        return None
