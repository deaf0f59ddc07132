"""A probe measures what it says, and leaves nothing behind. Times themselves are not judged here."""

import os
from pathlib import Path

import pytest
import torch

from ranks import ranks
from trivium.comms.launch import ALONE, Place
from trivium.comms.mesh import Mesh
from trivium.errors import ConfigError
from trivium.plan.layout import Layout
from trivium.plan.parameters import count
from trivium.probe import exchanges as links
from trivium.probe import probe as probing
from trivium.probe.operations import SHAPES, attentions, products, streams, updates
from trivium.probe.probe import Devices, accelerators, probe
from trivium.probe.steps import split_plan, split_step
from trivium.probe.timing import MIN_REPETITIONS, median_seconds

CPU = torch.device("cpu")


@pytest.mark.broad
def test_every_operation_is_timed_at_every_shape():
    found = products(CPU, 0.0)
    assert {(p.m, p.n, p.k) for p in found if p.dtype == "fp32"} == set(SHAPES)
    assert {p.dtype for p in found} == {"fp32", "bf16", "fp64", "fp16"}
    assert all(p.gradients > 0 for p in found)
    rest = [*streams(CPU, 0.0), *updates(CPU, 0.0)]
    assert all(each.seconds > 0 for each in (*found, *rest))
    assert all(a.forward > 0 and a.backward > 0 for a in attentions(CPU, 0.0))


def test_a_median_needs_at_least_a_few_repetitions():
    calls = []
    assert median_seconds(lambda: calls.append(1), CPU, budget=0.0) >= 0
    assert len(calls) >= MIN_REPETITIONS


@ranks(2)
def test_every_collective_is_timed_at_every_size(place):
    mesh = Mesh.connect(Layout(tensor=2), place.rank, 2)
    found = links.exchanges(mesh.tensor, CPU)
    assert {e.collective for e in found} == {"all_reduce", "all_gather", "reduce_scatter", "send"}
    assert {e.tensor_bytes for e in found} == set(links.SIZES)
    assert all(e.ranks == 2 and e.seconds > 0 and e.busy_seconds >= 0 for e in found)


@ranks(2)
def test_a_step_over_ranks_is_of_the_plan_it_names(place):
    plan = split_plan(2)
    found = split_step(plan, Mesh.connect(plan.layout, place.rank, 2))
    assert Layout.model_validate(found.layout) == plan.layout == Layout(tensor=2)
    assert found.seconds > 0


def test_no_ranks_are_refused_and_more_than_cores_can_serve():
    with pytest.raises(ConfigError, match="--ranks is 0"):
        probe(0, Devices("CPU core", 1, 1 << 30, is_cpu=True))
    with pytest.raises(ConfigError, match="--ranks 100000 on 2 cores: .* give at most 32"):
        probe(100_000, Devices("CPU core", 2, 1 << 30, is_cpu=True))


def test_a_model_that_many_ranks_share_stays_small():
    """Each of them makes a whole tensor at first."""
    few, many = (count(split_plan(n).model) for n in (8, 128))
    assert split_plan(8).model.hidden == split_plan(8).model.heads * 32
    assert many < 20 * few and split_plan(128).layout == Layout(tensor=128)


def counted(folder: Path) -> int:
    """Accelerators, noting by which process they were counted."""
    (folder / str(os.getpid())).touch()
    return 0


def test_accelerators_are_counted_by_processes_that_no_rank_is_forked_from(tmp_path, monkeypatch):
    """Counting may start CUDA, which a child of that process then cannot."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: counted(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: counted(tmp_path) > 0)
    monkeypatch.setattr(probing, "KINDS", {})
    for name in ("products", "streams", "attentions", "updates", "steps"):
        monkeypatch.setattr(probing, name, lambda device, budget: ())
    monkeypatch.setattr(probing, "Measured", lambda **_: None)
    assert accelerators() is None
    probe(1, Devices("CPU core", 1, 1 << 30, is_cpu=True))
    seen = {int(path.name) for path in tmp_path.iterdir()}
    assert len(seen) == 2 and os.getpid() not in seen


def test_a_lone_accelerator_is_measured_in_this_process(monkeypatch):
    """This process may have used the accelerator before, and then it cannot fork ranks."""
    monkeypatch.setattr(probing, "run_ranks", lambda *_, **__: pytest.fail("a rank was forked"))
    monkeypatch.setattr(probing, "_on_devices", lambda place, folder: measured.append(place))
    monkeypatch.setattr(probing, "_middle", lambda told: dict.fromkeys(probing.KINDS, ()))
    measured: list[Place] = []
    found = probe(8, Devices("NVIDIA H200", 1, 1 << 37, is_cpu=False))
    assert measured == [ALONE] and not found.is_cpu and found.device == "NVIDIA H200"
