"""What one accelerator reaches: training steps beside their ceilings and beside peers, and the planner checked there.

    python benchmarks/gpu.py --json out.json [--report folder] [--minutes 9] [--only PART[,PART]] [--merge]
    python benchmarks/gpu.py --json out.json --cpu        every path with tiny shapes on a processor; no figures

Sides are measured in turn, round by round; one that fails is reported with its reason, and a part that the time does
not suffice for is skipped. What was found is written after every part, the most important first; with --merge, parts
that the file has measured stay, and the others are measured now: the same command twice has what nine minutes do not
suffice for. Where there is no network trivium need not be installed: torch, numpy, scipy, pydantic, pyarrow and PyYAML
suffice, and transformers for its rows. A copy without its repository names its commit in TRIVIUM_COMMIT.
"""

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from needed import require

require("numpy", "scipy", "pydantic", "pyarrow", "PyYAML")

# Where there is no network it is not installed: then from beside this.
if importlib.util.find_spec("trivium") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from circumstances import circumstances
from gpu_bench import ROUNDS, WARM_UP, Bench, alone, by_turns
from gpu_page import gpu_page, relative_seconds, where_it_goes, write
from gpu_sides import SHAPES, TINY_SHAPES, Shape, TriviumStep, plain_step, transformers_step
from gpu_stage import STAGE, TINY_STAGE, ReplayedStep, one_of_tensor_ranks, plain_stage_step, stage_step
from gpu_texts import Kind, text_row

from trivium.cost.compute import flops_per_token
from trivium.cost.estimate import estimate
from trivium.cost.memory import worst_rank
from trivium.errors import ConfigError, MachineError
from trivium.planner.probed import probed
from trivium.probe.probe import Devices, probe

MINUTES = 9.0
MICRO_BATCHES = 12  # of the stage's, one after the other: a step of MT-NLG has 160 to 240
TARGETS = {"stage": 0.60, "1.3B": 0.50, "ratio": 1.1, "seconds": 0.06, "memory": 0.02}


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


def training(bench: Bench, number: int, *, whole: bool = False) -> dict[str, Any]:
    """One size against its peers. whole: those that compile a whole model, which takes the compiler long."""
    d, shape = bench.device, _shapes(bench)[number]
    replayed = {"trivium, compiled and replayed": lambda: TriviumStep(shape, d, compiled=True, cuda_graphs=True)}
    if whole:
        ours, peers = (
            replayed,
            {
                "plain loop, compiled whole": lambda: plain_step(shape, d, compiled="whole"),
                "transformers, compiled whole": lambda: transformers_step(shape, d, compiled="whole"),
            },
        )
    else:
        ours, peers = (
            {
                **replayed,
                "trivium, blocks compiled": lambda: TriviumStep(shape, d, compiled=True),
                "trivium": lambda: TriviumStep(shape, d),
            },
            {
                "plain loop, blocks compiled": lambda: plain_step(shape, d, compiled="blocks"),
                "transformers, blocks compiled": lambda: transformers_step(shape, d, compiled="blocks"),
                "transformers": lambda: transformers_step(shape, d, compiled="no"),
            },
        )
    # The likely fastest first: they are in memory together where it has no room for all.
    sides = by_turns(bench, {**replayed, **peers, **ours})
    tokens = shape.sequences * shape.sequence
    flops = tokens * flops_per_token(shape.plan().model)
    for side in sides.values():
        if side["status"] == "measured":
            side |= _rates(bench, side["seconds"], tokens, flops)
    return {"sides": sides, **_against_peers(sides, peers)}


def float8(bench: Bench) -> dict[str, Any]:
    """Steps of the largest shape with 8-bit products in every layer, beside our own in bf16."""
    d, shape = bench.device, _shapes(bench)[0]
    fast = {} if bench.smoke else {"compiled": True, "cuda_graphs": True}

    def step(settings: Mapping[str, Any] | None) -> TriviumStep:
        scaled = None if settings is None else {"keep": [], **settings}
        return TriviumStep(shape, d, precision={"weights": "bf16", "float8": scaled}, **fast)

    in_bf16 = {"trivium in bf16": lambda: step(None)}
    ours = {
        "trivium, scales of tensors": lambda: step({"recipe": "tensor"}),
        "trivium, delayed scales": lambda: step({"recipe": "delayed"}),
        "trivium, scales of rows": lambda: step({"recipe": "row", "gradients": "e4m3", "power_of_two": True}),
        "trivium, scales of blocks": lambda: step({"recipe": "block", "gradients": "e4m3"}),
        "trivium, weight gradients in bf16": lambda: step({"recipe": "tensor", "weight_gradients": False}),
    }
    sides = by_turns(bench, {**in_bf16, **ours})
    tokens = shape.sequences * shape.sequence
    flops = tokens * flops_per_token(shape.plan().model)
    for side in sides.values():
        if side["status"] == "measured":
            side |= _rates(bench, side["seconds"], tokens, flops)
    return {"sides": sides, **_against_peers(sides, in_bf16)}


def stage(bench: Bench) -> dict[str, Any]:
    """A pipeline stage of MT-NLG as one of its tensor ranks computes it, without optimizer: forward and backward of
    many micro-batches, one after the other. Peers are those that have copies for collectives, too."""
    shape, d = TINY_STAGE if bench.smoke else STAGE, bench.device
    peers = {
        "plain blocks": lambda: plain_stage_step(shape, d, compiled=False),
        "plain blocks, compiled": lambda: plain_stage_step(shape, d, compiled=True),
    }
    bare = {
        "plain blocks, compiled, no collectives": lambda: plain_stage_step(shape, d, compiled=True, collectives=False)
    }
    in_bf16 = {"precision": {"weights": "bf16", "gradients": "bf16"}}
    with one_of_tensor_ranks(shape, d) as (mesh, copies):
        ours = {
            "trivium": lambda: stage_step(shape, mesh, copies),
            "trivium, blocks compiled": lambda: stage_step(shape, mesh, copies, compiled=True),
            "trivium, blocks compiled, sums in bf16": lambda: stage_step(shape, mesh, copies, compiled=True, **in_bf16),
        }
        if not bench.smoke:  # a processor records nothing
            ours["trivium, compiled and replayed, sums in bf16"] = lambda: ReplayedStep(
                stage_step(shape, mesh, copies, compiled=True, **in_bf16)
            )
        sides = by_turns(bench, {**ours, **peers, **bare}, at_once=MICRO_BATCHES)
    for side in sides.values():
        if side["status"] == "measured":
            side |= _rates(bench, side["seconds"], shape.sequence, shape.flops)
    without = _against_peers({n: s for n, s in sides.items() if n not in peers}, bare)["ratio"]
    return {
        "sides": sides,
        "says": "collectives of the tensor axis are replaced by copies of as many bytes on the device, ours on a "
        f"stream of their own as NCCL's are: {copies.of_a_step:,} a micro-batch; peers have all-reduces, without "
        "sequence parallelism" + (f"; {without:.2f} x the compiled blocks that have none" if without else ""),
        **_against_peers({n: s for n, s in sides.items() if n not in bare}, peers),
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
    """Compare our fastest step with the fastest peer."""
    measured = relative_seconds(sides)
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
    """The machine probed; one calibration step of the largest shape; then time and memory of the others and of both
    recompute modes, predicted and measured: memory of the step's own tensors, as the planner means it. Steps are
    compiled and replayed, as predictions are of the device's time, not of its host's."""
    d = bench.device
    measured = probe(1, _devices(d))
    machine = probed(measured, "here").machine
    shapes = _shapes(bench)
    last = shapes[-1]
    cases = {s.name: (s, {}) for s in shapes}
    cases |= {
        f"{last.name}, recompute {mode}": (last, {"recompute": {"mode": mode}}) for mode in ("attention", "layer")
    }
    fast = {"compiled": True, "cuda_graphs": True}
    rows: dict[str, Any] = {}
    factor = None
    for name, (shape, more) in cases.items():
        seconds, peak = alone(bench, lambda s=shape, m=more: TriviumStep(s, d, **m, **fast), rounds=ROUNDS)
        bench.clear()
        plan = shape.plan(**more, **fast)
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
    return {
        "status": "measured",
        "factor": factor,
        "calibrated_on": next(iter(cases)),
        "rows": rows,
        "constants": machine.constants,
        "probe": measured.tree(),
    }


def _devices(device: torch.device) -> Devices:
    if device.type == "cpu":
        return Devices("CPU core", 1, 1 << 33, is_cpu=True)
    found = torch.cuda.get_device_properties(device)
    return Devices(found.name, 1, int(found.total_memory), is_cpu=False)


def _shapes(bench: Bench) -> tuple[Shape, ...]:
    return TINY_SHAPES if bench.smoke else SHAPES


def texts(bench: Bench, kind: Kind) -> dict[str, Any]:
    """Evaluation or generation with the second shape."""
    return text_row(bench, _shapes(bench)[1], kind)


class Part(NamedTuple):
    """A part of the report. needs_seconds: what it took on an H200 whose compiler's cache was warm; with fewer left it
    is not begun, and where the compiler has to work its last sides may be skipped."""

    name: str
    needs_seconds: float
    measure: Callable[[Bench], dict[str, Any]]


# The most important first: the last are skipped where the time is short.
PARTS = (
    Part("ceilings", 10, ceilings),
    Part("stage", 30, stage),
    Part("training 1.3B", 60, partial(training, number=0)),
    Part("8-bit products 1.3B", 110, float8),
    Part("planner", 50, planner),
    Part("training 125M", 25, partial(training, number=1)),
    Part("training 350M", 25, partial(training, number=2)),
    Part("evaluation", 10, partial(texts, kind="scored")),
    Part("generation", 15, partial(texts, kind="generated")),
    Part("whole models compiled", 90, partial(training, number=1, whole=True)),
)


def main(arguments: list[str]) -> int:
    """Measure, and write after every part; exit code 3 without an accelerator, 1 when a part failed."""
    options = _options(arguments)
    if options.cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the ranks of a probe look for accelerators themselves
    if not options.cpu and not torch.cuda.is_available():
        error = MachineError(
            f"torch {torch.__version__} finds no CUDA device: this benchmark needs one accelerator; run it on such a "
            "machine, or give --cpu to run every path with tiny shapes"
        )
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    device = torch.device("cpu") if options.cpu else torch.device("cuda", 0)
    bench = Bench(device, options.cpu, time.monotonic() + 60 * options.minutes - 20)
    record = {
        **circumstances("benchmarks/gpu.py", arguments),
        "device": "processor, tiny shapes: a smoke run" if options.cpu else torch.cuda.get_device_name(device),
        "cuda": torch.version.cuda,
        "smoke": options.cpu,
        "targets": TARGETS,
        "workspace_bytes": bench.workspace_bytes(),
        "parts": bench.found,
    }
    if options.merge and Path(options.json).exists():
        bench.found |= _measured_before(record, json.loads(Path(options.json).read_text()))
    write("gpu", record, options, gpu_page)
    for part in PARTS:
        if part.name in (options.only or part.name) and part.name not in bench.found:
            bench.part(part.name, part.needs_seconds, partial(part.measure, bench))
            write("gpu", record, options, gpu_page)
    return int(any(part.get("status") == "failed" for part in bench.found.values()))


def _measured_before(record: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a file that are measured; ConfigError when they are of another device or other code."""
    for field in ("device", "torch", "commit", "changed"):
        if record[field] != earlier[field]:
            raise ConfigError(
                f"--merge: the file's {field} is {earlier[field]!r}, and now it is {record[field]!r}; figures of both "
                "in one report would be compared: name another file with --json"
            )
    return {n: part for n, part in earlier["parts"].items() if part.get("status") not in ("failed", "skipped")}


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = where_it_goes(__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"most minutes (default {MINUTES:.0f})")
    parser.add_argument("--only", type=_named, metavar="PART[,PART]", help=f"of: {', '.join(_parted())}")
    parser.add_argument("--merge", action="store_true", help="keep what the file of --json has measured")
    parser.add_argument("--cpu", action="store_true", help="tiny shapes on a processor: does every path run?")
    return parser.parse_args(arguments)


def _parted() -> list[str]:
    return [part.name for part in PARTS]


def _named(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(_parted()):
        raise argparse.ArgumentTypeError(f"there is no part {', '.join(sorted(unknown))}")
    return names


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main(sys.argv[1:]))
