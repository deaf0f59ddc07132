"""Run the measurements: first on every device at once, then between growing numbers of ranks."""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch

from trivium.errors import ConfigError
from trivium.parallel.collectives import all_reduce_
from trivium.parallel.launch import Place, connected, run_ranks
from trivium.parallel.mesh import Mesh
from trivium.plan.layout import Layout
from trivium.planner.measured import Attention, Exchange, Measured, Product, SmallStep, Stream, Update
from trivium.probe.exchanges import exchanges
from trivium.probe.operations import attentions, products, streams, updates
from trivium.probe.steps import steps
from trivium.progress import Progress, silent

TIMEOUT_SECONDS = 180.0
# Seconds of each kind of measurement.
BUDGETS = {"products": 5.0, "streams": 1.0, "attentions": 1.5, "updates": 0.5, "steps": 5.0}
KINDS = {
    "products": Product,
    "streams": Stream,
    "attentions": Attention,
    "updates": Update,
    "steps": SmallStep,
}


def probe(ranks: int, devices: int, memory_bytes: int, *, progress: Progress = silent) -> Measured:
    """Measure on `devices` devices, and between 2, 4, … up to `ranks` ranks.

    devices: cores, or GPUs where there are any. memory_bytes: of one device. Takes well under a minute.
    """
    if ranks < 1:
        raise ConfigError(f"--ranks is {ranks}; a machine has at least one rank")
    on_gpu = torch.cuda.is_available()
    sizes = [n for n in (1 << p for p in range(1, 16)) if n <= ranks and not (on_gpu and n > devices)]
    rounds = len(sizes) + 1
    progress(0, rounds, "products, memory, attention, optimizer, small models")
    alone = _gathered(_on_devices, devices)
    found: list[Exchange] = []
    for done, size in enumerate(sizes, start=1):
        progress(done, rounds, f"collectives between {size} ranks")
        found += [Exchange(**each) for each in _gathered(_between, size)[0]["exchanges"]]
    progress(rounds, rounds, "")
    return Measured(
        device=torch.cuda.get_device_name(0) if on_gpu else "CPU core",
        is_cpu=not on_gpu,
        devices=devices,
        memory_bytes=memory_bytes,
        exchanges=tuple(found),
        **_middle(alone),
    )


def _on_devices(place: Place, folder: str) -> None:
    """Every device measures at the same time as the others, as they work in a run."""
    with connected(place):
        _together(place)
        found = {
            "products": products(place.device, BUDGETS["products"]),
            "streams": streams(place.device, BUDGETS["streams"]),
            "attentions": attentions(place.device, BUDGETS["attentions"]),
            "updates": updates(place.device, BUDGETS["updates"]),
            "steps": steps(place.device, BUDGETS["steps"]),
        }
        _write(folder, place.rank, found)
        _together(place)


def _between(place: Place, folder: str) -> None:
    with connected(place):
        mesh = Mesh.connect(Layout(tensor=place.world_size), place.rank, place.world_size, place.device)
        _write(folder, place.rank, {"exchanges": exchanges(mesh.tensor, place.device)})


def _together(place: Place) -> None:
    """Wait for the other ranks."""
    mesh = Mesh.connect(Layout(data=place.world_size), place.rank, place.world_size, place.device)
    all_reduce_(torch.zeros(1, device=place.device), mesh.data)


def _write(folder: str, rank: int, found: dict[str, tuple[Any, ...]]) -> None:
    plain = {kind: [asdict(each) for each in values] for kind, values in found.items()}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(plain), encoding="utf-8")


def _gathered(function: Any, ranks: int) -> list[dict[str, Any]]:
    """Run ranks, and read what each of them wrote."""
    with tempfile.TemporaryDirectory(prefix="trivium-probe-") as folder:
        run_ranks(function, ranks, folder, timeout_seconds=TIMEOUT_SECONDS)
        return [
            json.loads((Path(folder) / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(ranks)
        ]


def _middle(by_rank: list[dict[str, Any]]) -> dict[str, Any]:
    """Every measurement with the median of the ranks' times."""
    found: dict[str, Any] = {}
    for kind, make in KINDS.items():
        rows = zip(*(each[kind] for each in by_rank), strict=True)
        found[kind] = tuple(
            make(**{k: median([r[k] for r in row]) if isinstance(v, float) else v for k, v in row[0].items()})
            for row in rows
        )
    return found
