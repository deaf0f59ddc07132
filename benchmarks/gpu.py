"""What one accelerator reaches: training steps beside their ceilings and beside peers, and the planner checked there.

    python benchmarks/gpu.py --json out.json [--report folder] [--minutes 9]
    python benchmarks/gpu.py --json out.json --cpu        every path with tiny shapes on a processor; no figures

Rows are measured in turn, round by round; a row that fails is reported with its reason, and what the time does not
suffice for is reported as left out. Where there is no network nothing need be installed: torch, numpy, pydantic,
PyYAML, safetensors and tokenizers suffice, and transformers for its rows.
"""

import argparse
import gc
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

# Where there is no network it is not installed: then from beside this.
if importlib.util.find_spec("trivium") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from circumstances import circumstances
from gpu_page import gpu_page
from gpu_sides import (
    Shape,
    StageShape,
    Step,
    one_of_tensor_ranks,
    plain_stage_step,
    plain_step,
    stage_step,
    transformers_step,
    trivium_step,
)
from gpu_texts import text_rows

from trivium.cost.compute import flops_per_token
from trivium.cost.estimate import estimate
from trivium.cost.memory import worst_rank
from trivium.errors import MachineError, TriviumError
from trivium.planner.probed import probed
from trivium.probe.probe import Devices, probe

MINUTES = 9.0
WARM_UP, ROUNDS = 3, 8
STEPS_AT_ONCE = 3  # one after the other, as in a training
TARGETS = {"stage": 0.60, "1.3B": 0.50, "ratio": 1.1, "seconds": 0.06, "memory": 0.02}
SHAPES = (
    Shape("1.3B", layers=24, hidden=2048, heads=16, vocabulary=50304, sequence=2048, sequences=4),
    Shape("125M", layers=12, hidden=768, heads=12, vocabulary=50304, sequence=1024, sequences=16),
    Shape("350M", layers=24, hidden=1024, heads=16, vocabulary=50304, sequence=1024, sequences=8),
)
STAGE = StageShape(layers=3, hidden=20480, heads=128, sequence=2048, tensor=8)
TINY_SHAPES = tuple(
    Shape(s.name, layers=2, hidden=32, heads=2, vocabulary=64, sequence=16, sequences=2) for s in SHAPES
)
TINY_STAGE = StageShape(layers=1, hidden=32, heads=4, sequence=16, tensor=2)


@dataclass
class Bench:
    """One run: where, how large, until when, and what was found."""

    device: torch.device
    smoke: bool
    deadline: float
    found: dict[str, Any] = field(default_factory=dict)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return TINY_SHAPES if self.smoke else SHAPES

    def part(self, name: str, needs_seconds: float, measure: Callable[[], Any]) -> None:
        """Measure, unless the time does not suffice; a failure is its result."""
        left = self.deadline - time.monotonic()
        if left < needs_seconds and not self.smoke:
            self.found[name] = {
                "status": "left out",
                "reason": f"{left:.0f} s were left of {MINUTES:.0f} min",
            }
            return
        try:
            self.found[name] = measure()
        except (RuntimeError, ImportError, TriviumError, AssertionError) as error:
            self.found[name] = failure(error)
        self.clear()
        print(f"{name}: {json.dumps(self.found[name])[:300]}", flush=True)

    def clear(self) -> None:
        """Give memory back."""
        gc.collect()
        torch.compiler.reset()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def wait(self) -> None:
        """Until the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, act: Step, times: int = 1) -> float:
        """Of one of so many calls, one after the other."""
        self.wait()
        begin = time.perf_counter()
        for _ in range(times):
            act()
        self.wait()
        return (time.perf_counter() - begin) / times

    def held_bytes(self) -> int:
        """Bytes of tensors; 0 on a processor."""
        gc.collect()
        self.wait()
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0

    def peak_bytes(self, act: Step) -> int:
        """Most bytes of tensors during a call; 0 on a processor, which does not count them."""
        if self.device.type != "cuda":
            act()
            return 0
        torch.cuda.reset_peak_memory_stats(self.device)
        act()
        self.wait()
        return int(torch.cuda.max_memory_allocated(self.device))


def failure(error: BaseException) -> dict[str, Any]:
    """What a row says that could not be measured."""
    return {"status": "failed", "reason": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def ceilings(bench: Bench) -> dict[str, Any]:
    """The fastest bf16 product of random squares, FLOP/s, and the fastest copy, bytes read and written per second."""
    sizes, elements = ((64,), 1 << 16) if bench.smoke else ((4096, 8192, 12288), 1 << 29)
    products = {}
    for n in sizes:
        a, b = (torch.randn(n, n, device=bench.device, dtype=torch.bfloat16) for _ in range(2))
        times = [bench.seconds(lambda: torch.mm(a, b)) for _ in range(WARM_UP + ROUNDS)][WARM_UP:]  # noqa: B023
        products[n] = 2 * n**3 / statistics.median(times)
    x = torch.empty(elements, device=bench.device, dtype=torch.bfloat16)
    y = torch.empty_like(x)
    times = [bench.seconds(lambda: y.copy_(x)) for _ in range(WARM_UP + ROUNDS)][WARM_UP:]
    copied = 2 * x.numel() * x.element_size() / statistics.median(times)
    return {"products": products, "flops_per_second": max(products.values()), "copy_bytes_per_second": copied}


def by_turns(bench: Bench, builders: Mapping[str, Callable[[], Step]]) -> dict[str, dict[str, Any]]:
    """Each step's median seconds and peak bytes; steps that fail are named with their reason.

    All stay in memory, so that each is measured in turn with all others. A peak is of the step that has it: what the
    others hold is taken off.
    """
    result: dict[str, dict[str, Any]] = {}
    steps: dict[str, Step] = {}
    own: dict[str, int] = {}
    for name, build in builders.items():
        before = bench.held_bytes()
        try:
            step = build()
            for _ in range(WARM_UP):
                step()
            steps[name], own[name] = step, bench.held_bytes() - before
        except (RuntimeError, ImportError, TriviumError, AssertionError) as error:
            result[name] = failure(error)
        step = None
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(ROUNDS):
        for name in steps if number % 2 == 0 else reversed(steps):
            times[name].append(bench.seconds(steps[name], STEPS_AT_ONCE))
    for name, seconds in times.items():
        others = bench.held_bytes() - own[name]
        result[name] = {
            "status": "measured",
            "seconds": statistics.median(seconds),
            "fastest": min(seconds),
            "peak_bytes": max(0, bench.peak_bytes(steps[name]) - others),
        }
    steps.clear()
    return result


def training(bench: Bench, shape: Shape) -> dict[str, Any]:
    """One size against its peers."""
    d = bench.device
    ours = {
        "trivium": lambda: trivium_step(shape, d),
        "trivium, blocks compiled": lambda: trivium_step(shape, d, compiled=True),
    }
    peers = {
        "plain loop, compiled": lambda: plain_step(shape, d, compiled=True),
        "transformers": lambda: transformers_step(shape, d, compiled=False),
        "transformers, compiled": lambda: transformers_step(shape, d, compiled=True),
    }
    sides = by_turns(bench, {**ours, **peers})
    tokens = shape.sequences * shape.sequence
    flops = tokens * flops_per_token(shape.plan().model)
    for side in sides.values():
        if side["status"] == "measured":
            side |= _rates(bench, side["seconds"], tokens, flops)
    return {"sides": sides, **_against_peers(sides, peers)}


def _alone(bench: Bench, build: Callable[[], Step], *, rounds: int) -> tuple[float, int]:
    """Median seconds and peak bytes of a step that has the device to itself."""
    step = build()
    step()
    peak = bench.peak_bytes(step)
    return statistics.median(bench.seconds(step, STEPS_AT_ONCE) for _ in range(rounds)), peak


def stage(bench: Bench) -> dict[str, Any]:
    """A pipeline stage of MT-NLG as one of its tensor ranks computes it, without optimizer."""
    shape, d = TINY_STAGE if bench.smoke else STAGE, bench.device
    peers = {
        "plain blocks": lambda: plain_stage_step(shape, d, compiled=False),
        "plain blocks, compiled": lambda: plain_stage_step(shape, d, compiled=True),
    }
    with one_of_tensor_ranks(shape, d) as mesh:
        ours = {
            "trivium": lambda: stage_step(shape, mesh),
            "trivium, blocks compiled": lambda: stage_step(shape, mesh, compiled=True),
        }
        sides = by_turns(bench, {**ours, **peers})
    for side in sides.values():
        if side["status"] == "measured":
            side |= _rates(bench, side["seconds"], shape.sequence, shape.flops)
    return {
        "sides": sides,
        "says": "collectives of the tensor axis are replaced by copies of as many bytes on the device",
        **_against_peers(sides, peers),
    }


def _rates(bench: Bench, seconds: float, tokens: int, flops: float) -> dict[str, Any]:
    ceiling = bench.found.get("ceilings", {}).get("flops_per_second")
    reached = flops / seconds
    return {
        "tokens_per_second": tokens / seconds,
        "flops_per_second": reached,
        "share_of_ceiling": reached / ceiling if ceiling else None,
    }


def _against_peers(sides: Mapping[str, Mapping[str, Any]], peers: Mapping[str, Any]) -> dict[str, Any]:
    measured = {n: s["seconds"] for n, s in sides.items() if s["status"] == "measured"}
    ours = {n: t for n, t in measured.items() if n not in peers}
    theirs = {n: t for n, t in measured.items() if n in peers}
    if not ours or not theirs:
        return {"ratio": None}
    return {
        "best": min(ours, key=ours.__getitem__),
        "fastest_peer": min(theirs, key=theirs.__getitem__),
        "ratio": min(theirs.values()) / min(ours.values()),
    }


def planner(bench: Bench) -> dict[str, Any]:
    """The machine probed; one calibration step of the first shape; then time and memory of the others and of both
    recompute modes, predicted and measured."""
    d = bench.device
    machine = probed(probe(1, _devices(d)), "here").machine
    cases = {s.name: (s, {}) for s in bench.shapes[1:]}
    last = bench.shapes[-1]
    cases |= {
        f"{last.name}, recompute {mode}": (last, {"recompute": {"mode": mode}})
        for mode in ("attention", "layer")
    }
    rows: dict[str, Any] = {}
    factor = None
    for name, (shape, more) in cases.items():
        seconds, peak = _alone(bench, lambda s=shape, m=more: trivium_step(s, d, **m), rounds=ROUNDS)
        bench.clear()
        plan = shape.plan(**more)
        predicted = estimate(plan, machine).seconds
        factor = factor or seconds / predicted
        memory = worst_rank(plan)[1].total
        rows[name] = {
            "seconds": seconds,
            "predicted_seconds": factor * predicted,
            "seconds_error": factor * predicted / seconds - 1,
            "peak_bytes": peak,
            "predicted_bytes": memory,
            "bytes_error": memory / peak - 1 if peak else None,
        }
    return {"status": "measured", "factor": factor, "calibrated_on": next(iter(cases)), "rows": rows}


def _devices(device: torch.device) -> Devices:
    if device.type == "cpu":
        return Devices("CPU core", 1, 1 << 33, is_cpu=True)
    found = torch.cuda.get_device_properties(device)
    return Devices(found.name, 1, int(found.total_memory), is_cpu=False)


def main(arguments: list[str]) -> int:
    """Measure and write; exit code 3 without an accelerator, 1 when a part of ours failed."""
    options = _options(arguments)
    if not options.cpu and not torch.cuda.is_available():
        error = MachineError(
            f"torch {torch.__version__} finds no CUDA device: this benchmark needs one accelerator; run it on such a "
            "machine, or give --cpu to run every path with tiny shapes"
        )
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    device = torch.device("cpu") if options.cpu else torch.device("cuda", 0)
    bench = Bench(device, options.cpu, time.monotonic() + 60 * options.minutes - 20)
    bench.part("ceilings", 20, lambda: ceilings(bench))
    bench.part("stage", 60, lambda: stage(bench))
    for shape in bench.shapes:
        bench.part(f"training {shape.name}", 90, lambda s=shape: training(bench, s))
    bench.part("planner", 60, lambda: planner(bench))
    bench.part("texts", 45, lambda: text_rows(bench))
    record = {
        **circumstances("benchmarks/gpu.py", arguments),
        "device": "processor, tiny shapes: a smoke run"
        if options.cpu
        else torch.cuda.get_device_name(device),
        "cuda": torch.version.cuda,
        "smoke": options.cpu,
        "targets": TARGETS,
        "parts": bench.found,
    }
    Path(options.json).write_text(json.dumps(record, indent=1))
    if options.report:
        folder = Path(options.report)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"gpu-{record['date'][:10]}.json").write_text(json.dumps(record, indent=1))
        (folder / f"gpu-{record['date'][:10]}.md").write_text(gpu_page(record))
    return int(any(part.get("status") == "failed" for part in bench.found.values()))


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", required=True, help="where the figures go")
    parser.add_argument("--report", help="folder for a dated Markdown report and the figures beside it")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help=f"most minutes (default {MINUTES:.0f})"
    )
    parser.add_argument("--cpu", action="store_true", help="tiny shapes on a processor: does every path run?")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main(sys.argv[1:]))
