"""The accelerator's benchmark keeps what it measured, whatever fails, and measures what it says."""

import json
import math
import os
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from trivium.comms.collectives import all_gather, reduce_scatter

CPU = torch.device("cpu")
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture()
def gpu(monkeypatch) -> ModuleType:
    """The script, as a module beside its own."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu

    return gpu


def bench_of(gpu: ModuleType, seconds: float = 3600.0, *, smoke: bool = False):
    return gpu.Bench(CPU, smoke, time.monotonic() + seconds)


def test_the_report_is_written_after_every_part_whatever_the_next_does(gpu, monkeypatch, tmp_path):
    def fail(bench) -> dict:
        raise KeyError("of a kind that nobody expected")

    def interrupt(bench) -> dict:
        raise KeyboardInterrupt

    parts = [("first", lambda bench: {"found": 1}), ("second", fail), ("third", interrupt)]
    monkeypatch.setattr(gpu, "PARTS", [gpu.Part(name, 1, act) for name, act in parts])
    monkeypatch.setenv("PATH", str(tmp_path))  # nor is git there
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    out = tmp_path / "out.json"
    with pytest.raises(KeyboardInterrupt):
        gpu.main(["--cpu", "--json", str(out), "--report", str(tmp_path / "report")])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""  # what is forked on the way must not look for others
    record = json.loads(out.read_text())
    assert record["commit"] == "unknown" and record["parts"]["first"] == {"found": 1}
    assert record["parts"]["second"]["status"] == "failed" and "KeyError" in record["parts"]["second"]["reason"]
    (page,) = (tmp_path / "report").glob("*.md")
    assert "- second: failed: KeyError" in page.read_text()
    assert gpu.main(["--cpu", "--json", str(out), "--only", "first"]) == 0
    assert list(json.loads(out.read_text())["parts"]) == ["first"]
    with pytest.raises(SystemExit):
        gpu.main(["--cpu", "--json", str(out), "--only", "fourth"])


@pytest.mark.parametrize("script", ["gpu.py", "nccl.py"])
def test_missing_package_is_named_with_what_to_do(script: str, capsys, monkeypatch):
    """A machine that one is lent for an hour has another image."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "benchmarks" / script))
    said = capsys.readouterr().err
    assert ended.value.code == 3 and "lacks pydantic;" in said and "--no-index --find-links wheels" in said


@pytest.fixture()
def make_test_gpu(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `make test-gpu` on tests given as text, with a torch that says that it finds a GPU."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    (tmp_path / "torch.py").write_text("class cuda: is_available = staticmethod(lambda: True)")

    def run(tests: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "hung_test.py").write_text(tests)
        given = {"TRIVIUM_PYTHON": sys.executable, "GPU_TESTS": tmp_path / "hung_test.py"}
        command = ["make", "test-gpu", *(f"{name}={value}" for name, value in given.items())]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)

    return run


def test_make_test_gpu_ends_a_call_that_no_signal_interrupts(make_test_gpu):
    ran = make_test_gpu(
        """
import ctypes, os, threading
import pytest

pytestmark = pytest.mark.gpu

@pytest.mark.timeout(1)
def test_hangs():
    threading.Timer(10, os._exit, [0]).start()
    mutex, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)
    for _ in range(2):
        libc.pthread_mutex_lock(mutex)
"""
    )
    assert ran.returncode != 0 and "Timeout" in ran.stdout and "pthread_mutex_lock" in ran.stdout, ran.stdout


def test_make_test_gpu_names_a_missing_package_instead_of_installing(make_test_gpu, tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['pydantic'] = None")
    ran = make_test_gpu("")
    assert "lacks pydantic;" in ran.stderr and "Error 3" in ran.stderr and "pytest" not in ran.stdout, ran.stderr


def test_a_part_that_the_time_does_not_suffice_for_is_skipped_and_said_so(gpu):
    bench = bench_of(gpu, seconds=50)
    bench.part("long", 60, lambda: pytest.fail("it was begun"))
    bench.part("short", 10, dict)
    assert bench.found["long"]["status"] == "skipped" and "60 s needed" in bench.found["long"]["reason"]
    assert bench.found["short"] == {}
    late = gpu.by_turns(bench_of(gpu, seconds=-1), {"a": lambda: pytest.fail("it was built")})
    assert late["a"]["status"] == "skipped"


def test_a_side_that_fails_leaves_the_others_measured(gpu):
    calls = []

    def failing_later() -> None:
        calls.append(1)
        if len(calls) > 5:
            raise torch.OutOfMemoryError("no room")

    def never() -> None:
        raise TypeError("not this one")

    sides = gpu.by_turns(
        bench_of(gpu), {"good": lambda: lambda: None, "late": lambda: failing_later, "bad": lambda: never}
    )
    assert {name: side["status"] for name, side in sides.items()} == {
        "good": "measured",
        "late": "failed",
        "bad": "failed",
    }


def test_what_has_no_room_beside_the_others_is_measured_after_them_beside_the_first(gpu, monkeypatch):
    """On a card of 80 GB, which has no room for five trainings of 1.3 billion parameters."""
    alive: set[str] = set()
    built: list[str] = []

    class Side:
        def __init__(self, name: str, size: int) -> None:
            if size + len(alive) > 3:
                raise ValueError("at its first action") from torch.OutOfMemoryError("no room")
            self.name = name
            alive.add(name)
            built.append(name)

        def __call__(self) -> None:
            pass

        def __del__(self) -> None:
            alive.discard(getattr(self, "name", ""))

    # What a step takes, in seconds: the second time that the first is built the machine is half as fast.
    pace = {"ours": iter([1.0] * 8 + [2.0] * 8), "near": iter([1.5] * 8), "far": iter([2.0] * 8)}
    monkeypatch.setattr(gpu.Bench, "seconds", lambda self, act, times=1: next(pace[act.name]))
    sizes = {"ours": 1, "near": 1, "far": 2, "huge": 9}
    monkeypatch.setattr(gpu_bench(gpu), "WARM_UP", 0)
    sides = gpu.by_turns(bench_of(gpu), {n: lambda n=n, s=s: Side(n, s) for n, s in sizes.items()})
    assert [side["status"] for side in sides.values()] == ["measured", "measured", "measured", "failed"]
    assert list(sides) == list(sizes) and built[:4] == ["ours", "near", "ours", "far"] and not alive
    assert {n: sides[n]["beside"] for n in ("ours", "near", "far")} == {"ours": 1.0, "near": 1.0, "far": 2.0}
    # As long as ours in the same rounds: the faster of the two.
    assert gpu._against_peers(sides, {"near", "far"}) == {"best": "ours", "fastest_peer": "far", "ratio": 1.0}


def gpu_bench(gpu: ModuleType) -> ModuleType:
    return sys.modules[gpu.by_turns.__module__]


def test_a_peak_is_of_the_step_itself_without_what_was_held_before(gpu, monkeypatch):
    """Such as the workspaces of libraries, which no planner knows."""
    bench = bench_of(gpu)
    monkeypatch.setattr(bench, "held_bytes", lambda: 64 << 20)
    monkeypatch.setattr(bench, "peak_bytes", lambda act: (64 << 20) + 1000)
    assert gpu.alone(bench, lambda: lambda: None, rounds=1)[1] == 1000


def test_copies_stand_for_collectives_of_a_tensor_axis(gpu):
    import gpu_stage

    shape = gpu_stage.TINY_STAGE
    with gpu_stage.one_of_tensor_ranks(shape, CPU) as (mesh, copies):
        own = torch.arange(6.0).view(3, 2)
        assert torch.equal(all_gather(own, mesh.tensor), own.repeat(shape.tensor, 1))
        whole = torch.arange(12.0).view(6, 2)
        assert torch.equal(reduce_scatter(whole, mesh.tensor), whole.chunk(shape.tensor)[mesh.tensor.index])
    assert copies.copied == shape.tensor * own.nbytes + whole.nbytes


def test_a_stage_computes_with_numbers_and_copies_as_many_bytes_as_its_collectives_move(gpu, monkeypatch):
    import gpu_stage

    shape, buckets, made = gpu_stage.TINY_STAGE, [], gpu_stage.make_buckets

    def keep(*given, **more):
        buckets.extend(made(*given, **more))
        return buckets

    monkeypatch.setattr(gpu_stage, "make_buckets", keep)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)  # what nobody wrote is not a number
    try:
        with gpu_stage.one_of_tensor_ranks(shape, CPU) as (mesh, copies):
            gpu_stage.stage_step(shape, mesh, copies)()
            moved = dict(mesh.tensor.traffic)
    finally:
        torch.use_deterministic_algorithms(False)
    places = [(b, slot) for b in buckets for slot in b.slots]
    assert places
    for bucket, slot in places:
        assert bucket.gradients.dtype == torch.float32
        assert math.isfinite(bucket.gradients[slot.start : slot.stop].abs().sum())
    whole = 2 * shape.sequence * shape.hidden  # bytes of a tensor of all positions
    # Attention and MLP of each layer, forward and backward: their inputs gathered, and again in the backward, and the
    # gradients of their outputs; their outputs and the gradients of their inputs scattered.
    scattered, gathered = 4 * shape.layers * whole, 6 * shape.layers * whole
    assert moved == {"reduce_scatter": scattered, "all_gather": gathered // shape.tensor}
    assert copies.of_a_step == scattered + gathered
