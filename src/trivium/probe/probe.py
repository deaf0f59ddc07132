"""Run the measurements: first on every device at once, then between growing numbers of ranks."""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from trivium.comms.collectives import all_reduce_
from trivium.comms.launch import ALONE, Place, connected, run_ranks
from trivium.comms.mesh import Mesh
from trivium.errors import ConfigError
from trivium.plan.layout import Layout
from trivium.planner.measured import Attention, Exchange, Measured, Product, SmallStep, Stream, Update
from trivium.probe.exchanges import exchanges
from trivium.probe.operations import attentions, products, streams, updates
from trivium.probe.steps import split_plan, split_step, steps
from trivium.progress import Progress, silent
from trivium.units import counted
from trivium.untrusted import read_json

TIMEOUT_SECONDS = 180.0
MAX_RANKS_PER_CORE = 16  # ranks
# Everything is measured in turns, so that a change of the machine's speed affects all kinds. BUDGETS has the seconds of
# a kind in one turn.
TURNS, TURNS_ON_GPU = 3, 2
GPU_SHARE = 0.5  # share of those seconds, because a few replays of a CUDA graph suffice
BUDGETS = {"products": 1.5, "streams": 0.3, "attentions": 0.5, "updates": 0.2, "steps": 1.5}
KINDS = {"products": Product, "streams": Stream, "attentions": Attention, "updates": Update, "steps": SmallStep}


class Devices(NamedTuple):
    """The measured devices: their kind, number, and memory of each."""

    name: str
    number: int
    memory_bytes: int
    is_cpu: bool


def accelerators() -> Devices | None:
    """Return the GPUs of this machine, or None. A separate process looks, because ranks cannot be forked from one that
    has started CUDA."""
    with tempfile.TemporaryDirectory(prefix="trivium-probe-") as folder:
        run_ranks(_look, 1, folder, timeout_seconds=TIMEOUT_SECONDS)
        seen = read_json(Path(folder) / "seen.json")
    return Devices(**seen) if seen else None


def _look(place: Place, folder: str) -> None:
    number, seen = torch.cuda.device_count(), {}
    if number:
        first = torch.cuda.get_device_properties(0)
        seen = Devices(first.name, number, int(first.total_memory), is_cpu=False)._asdict()
    (Path(folder) / "seen.json").write_text(json.dumps(seen), encoding="utf-8")


def probe(ranks: int, devices: Devices, *, progress: Progress = silent) -> Measured:
    """Measure on the devices, and between 2, 4, … up to `ranks` ranks. This takes well under a minute.

    A single GPU is measured in this process.
    """
    if ranks < 1:
        raise ConfigError(f"--ranks is {ranks}; a machine has at least one rank")
    most = ranks if devices.is_cpu else min(ranks, devices.number)
    if most > MAX_RANKS_PER_CORE * devices.number:
        raise ConfigError(
            f"--ranks {ranks} on {counted(devices.number, 'core')}: with more than {MAX_RANKS_PER_CORE} ranks a core, "
            f"measurements show only how they wait for one; give at most {MAX_RANKS_PER_CORE * devices.number}"
        )
    sizes = [n for n in (1 << p for p in range(1, 16)) if n <= most]
    rounds = len(sizes) + 1
    progress(0, rounds, "products, memory, attention, optimizer, small models")
    alone = _gathered(_on_devices, devices.number, here=not devices.is_cpu and devices.number == 1)
    found: list[Exchange] = []
    split: list[SmallStep] = []
    for done, size in enumerate(sizes, start=1):
        progress(done, rounds, f"collectives and small models over {size} ranks")
        of_rank = _gathered(_between, size)[0]  # all ranks wait for the slowest, so one measurement suffices
        found += [Exchange(**each) for each in of_rank["exchanges"]]
        split += [SmallStep(**each) for each in of_rank["split_steps"]]
    progress(rounds, rounds, "")
    return Measured(
        device=devices.name,
        is_cpu=devices.is_cpu,
        devices=devices.number,
        memory_bytes=devices.memory_bytes,
        exchanges=tuple(found),
        split_steps=tuple(split),
        **_middle(alone),
    )


def _on_devices(place: Place, folder: str) -> None:
    """Measure on all devices concurrently, because a run also loads all of them at once."""
    with connected(place):
        _together(place)
        on_gpu = place.device.type == "cuda"
        budgets = {kind: seconds * (GPU_SHARE if on_gpu else 1.0) for kind, seconds in BUDGETS.items()}
        for turn in range(TURNS_ON_GPU if on_gpu else TURNS):
            found = {
                "products": products(place.device, budgets["products"]),
                "streams": streams(place.device, budgets["streams"]),
                "attentions": attentions(place.device, budgets["attentions"]),
                "updates": updates(place.device, budgets["updates"]),
                "steps": steps(place.device, budgets["steps"]),
            }
            _write(folder, f"{place.rank}-{turn}", found)
        _together(place)


def _between(place: Place, folder: str) -> None:
    with connected(place):
        plan = split_plan(place.world_size)
        mesh = Mesh.connect(plan.layout, place.rank, place.world_size, place.device)
        # On CPUs only: their ranks wait for each other on the cores that they compute with.
        split = () if place.device.type == "cuda" else (split_step(plan, mesh),)
        _write(folder, str(place.rank), {"exchanges": exchanges(mesh.tensor, place.device), "split_steps": split})


def _together(place: Place) -> None:
    """Wait for the other ranks."""
    mesh = Mesh.connect(Layout(data=place.world_size), place.rank, place.world_size, place.device)
    all_reduce_(torch.zeros(1, device=place.device), mesh.data)


def _write(folder: str, name: str, found: dict[str, tuple[Any, ...]]) -> None:
    plain = {kind: [asdict(each) for each in values] for kind, values in found.items()}
    (Path(folder) / f"{name}.json").write_text(json.dumps(plain), encoding="utf-8")


def _gathered(function: Any, ranks: int, *, here: bool = False) -> list[dict[str, Any]]:
    """Run ranks, or `here` the only one in this process, and read what they wrote, each once or in every turn."""
    with tempfile.TemporaryDirectory(prefix="trivium-probe-") as folder:
        if here:
            function(ALONE, folder)
        else:
            run_ranks(function, ranks, folder, timeout_seconds=TIMEOUT_SECONDS)
        return [read_json(path) for path in sorted(Path(folder).glob("*.json"))]


def _middle(told: list[dict[str, Any]]) -> dict[str, Any]:
    """Return every measurement with the median time of all ranks and turns."""
    found: dict[str, Any] = {}
    for kind, make in KINDS.items():
        rows = zip(*(each[kind] for each in told), strict=True)
        found[kind] = tuple(
            make(**{k: median([r[k] for r in row]) if isinstance(v, float) else v for k, v in row[0].items()})
            for row in rows
        )
    return found
