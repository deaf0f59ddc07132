"""What the host does for an accelerator, without one: launches, waits, and the bytes that torch's allocator hands out.

    python benchmarks/without_gpu.py --json out.json [--report folder]

For a Python whose torch is built with CUDA, on a machine that need have no GPU. torch's own allocator, dispatch and
autograd run, and inductor and Triton compile for a Hopper; the runtime below them (pretended_cuda/runtime.c, built here
with cc) promises memory and counts kernels, which do nothing. So nothing here is a speed of a GPU, and no number that a
step computes means anything. Attention is PyTorch's flash kernel's: cuDNN's asks the device itself.
"""

import importlib.util
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import pretended
from gpu_page import where_it_goes, write

HERE = Path(__file__).resolve().parent
WARM_UP, ROUNDS = 3, 11
# Of 1.3 billion parameters, 16 sequences a step; others of a layout's ranks do nothing and are not waited for.
RANKS: dict[str, dict[str, Any]] = {
    "tensor 2, pipeline 2, data 2": {"layout": {"tensor": 2, "pipeline": 2, "data": 2}},
    "the same, ZeRO 0": {"layout": {"tensor": 2, "pipeline": 2, "data": 2}, "zero": 0},
    "the same, layers recomputed": {"layout": {"tensor": 2, "pipeline": 2, "data": 2}, "recompute": {"mode": "layer"}},
    "the same, Llama blocks": {
        "layout": {"tensor": 2, "pipeline": 2, "data": 2},
        "model": {"norm": "rms_norm", "feed_forward": "gated", "positions": "rotary", "bias": "none", "kv_heads": 4},
    },
    "tensor 2, pipeline 2, data 2, replayed": {"layout": {"tensor": 2, "pipeline": 2, "data": 2}, "cuda_graphs": True},
    "tensor 2, data 4, ZeRO 2": {"layout": {"tensor": 2, "data": 4}, "zero": 2},
    "tensor 2, data 4, ZeRO 3": {"layout": {"tensor": 2, "data": 4}, "zero": 3},
    "data 8, ZeRO 3": {"layout": {"data": 8}, "zero": 3},
    "data 8, ZeRO 1, blocks compiled": {"layout": {"data": 8}, "compiled": True},
    "data 8, ZeRO 1, compiled and replayed": {"layout": {"data": 8}, "compiled": True, "cuda_graphs": True},
    "tensor 8, sequences whole": {"layout": {"tensor": 8}, "sequence_parallel": False},
    "tensor 8, replayed": {"layout": {"tensor": 8}, "sequence_parallel": False, "cuda_graphs": True},
    "tensor 4, data 2, micro-batches of 4": {
        "layout": {"tensor": 4, "data": 2},
        "batch": {"sequences": 16, "micro": 4},
    },
    "pipeline 4, data 2, ZB-H1": {"layout": {"pipeline": 4, "data": 2}, "schedule": "zb-h1"},
    "pipeline 4, data 2, ZB-H1, replayed": {
        "layout": {"pipeline": 4, "data": 2},
        "schedule": "zb-h1",
        "cuda_graphs": True,
    },
    "pipeline 4, data 2, ZB-V": {"layout": {"pipeline": 4, "data": 2, "chunks": 2}, "schedule": "zb-v"},
    "pipeline 4, data 2, heads in turns": {
        "layout": {"pipeline": 4, "data": 2, "chunks": 2},
        "schedule": "zb-turns",
        "batch": {"sequences": 64, "micro": 1},  # of eight micro-batches all would be under way at once
    },
    "pipeline 4, data 2, interleaved": {"layout": {"pipeline": 4, "data": 2, "chunks": 2}, "schedule": "interleaved"},
    "context 2, data 4, ring": {"layout": {"context": 2, "data": 4}},
    "context 2, data 4, ring, replayed": {"layout": {"context": 2, "data": 4}, "cuda_graphs": True},
}
# Forty micro-batches a replica instead of 240: the most is held once the pipeline of 35 is full.
PUBLISHED: dict[str, dict[str, Any]] = {
    "as published": {},
    "sequences split, attention recomputed": {"sequence_parallel": True, "recompute": {"mode": "attention"}},
}


def main(arguments: list[str]) -> int:
    """Build the runtime and start anew with it; under it, measure. Exit code 3 where something is lacking."""
    options = where_it_goes(__doc__).parse_args(arguments)
    if not pretended.is_in_place():
        return pretended.anew()
    record = _measured(arguments)
    write("without-gpu", record, options, page)
    print(page(record))
    return 0


class Events:
    """What the runtime noted during a step, by name."""

    def __init__(self) -> None:
        import ctypes

        self._library = ctypes.CDLL(os.environ["LD_PRELOAD"])
        self._library.pretended_count.restype = ctypes.c_long
        self._library.pretended_name.restype = ctypes.c_char_p
        self._library.pretended_name.argtypes = [ctypes.c_long]

    def of(self, step: Callable[[], None]) -> Counter[str]:
        """Return the launches in one more step, by kernel."""
        self._library.pretended_begin()
        step()
        names = (self._library.pretended_name(i) for i in range(self._library.pretended_count()))
        return Counter((name or b"").decode(errors="replace") for name in names)


def _measured(arguments: list[str]) -> dict[str, Any]:
    import torch
    from circumstances import circumstances
    from gpu_bench import Bench

    bench = Bench(torch.device("cuda", 0), False, time.monotonic() + 3600)
    workspace = bench.workspace_bytes()
    rows = {}
    for name, sides in _cases(bench.device).items():
        rows[name] = _turns(bench, sides)
        print(f"{name}: {json.dumps(rows[name])[:200]}", file=sys.stderr, flush=True)
        bench.clear()
    rows["1.3B, the rank that holds most"] = {n: _rank_row(bench, partial(_ranks_plan, m)) for n, m in RANKS.items()}
    rows["MT-NLG 530B, a rank of 2,240"] = {n: _rank_row(bench, partial(_published, m)) for n, m in PUBLISHED.items()}
    return {
        **circumstances("benchmarks/without_gpu.py", arguments),
        "device": torch.cuda.get_device_name(0),
        "cuda": torch.version.cuda,
        "workspace_bytes": workspace,
        "rows": rows,
    }


def _cases(device: Any) -> dict[str, dict[str, tuple[Callable[[], Any], Any]]]:
    """By shape, each side's builder, and the plan whose memory is predicted, or None."""
    from gpu_sides import SHAPES, TriviumStep, plain_step, transformers_step

    llama = {"norm": "rms_norm", "feed_forward": "gated", "positions": "rotary", "bias": "none", "kv_heads": 4}
    variants: dict[str, dict[str, Any]] = {
        "trivium": {},
        "trivium, blocks compiled": {"compiled": True},
        "trivium, compiled and replayed": {"compiled": True, "cuda_graphs": True},
        "trivium, attention recomputed": {"recompute": {"mode": "attention"}},
        "trivium, layers recomputed": {"recompute": {"mode": "layer"}},
        "trivium, four micro-batches": {"batch": {"sequences": 16, "micro": 4}},
        "trivium, fp32": {"precision": {"weights": "fp32"}},
        "trivium, Llama blocks": {"model": llama},
        "trivium, Llama blocks compiled": {"model": llama, "compiled": True},
    }
    cases: dict[str, dict[str, tuple[Callable[[], Any], Any]]] = {}
    for shape in sorted(SHAPES, key=lambda s: s.hidden):
        few = dict(list(variants.items())[: len(variants) if shape.name == "125M" else 5])
        sides = {n: (partial(TriviumStep, shape, device, **v), shape.plan(**v)) for n, v in few.items()}
        sides["plain loop, blocks compiled"] = (partial(plain_step, shape, device, compiled="blocks"), None)
        if importlib.util.find_spec("transformers"):
            sides["transformers, blocks compiled"] = (
                partial(transformers_step, shape, device, compiled="blocks"),
                None,
            )
        cases[shape.name] = sides
    return cases


def _ranks_plan(more: Mapping[str, Any]) -> Any:
    from gpu_sides import SHAPES

    shape = max(SHAPES, key=lambda s: s.hidden)
    return shape.plan(**{"batch": {"sequences": 16, "micro": 1}, "sequence_parallel": True, "zero": 1, **more})


def _published(more: Mapping[str, Any]) -> Any:
    import yaml

    from trivium.plan.plan import Plan

    preset = yaml.safe_load((resources.files("trivium.presets") / "mt-nlg-530b.yaml").read_text())
    return Plan.model_validate({**preset["plan"], "batch": {"sequences": 320, "micro": 1}, **more}).checked()


def _rank_row(bench: Any, plan_of: Callable[[], Any]) -> dict[str, Any]:
    """One rank of a layout by itself: the others' messages never come, and nobody waits for them."""
    from gpu_bench import failure

    from trivium.cost.memory import worst_rank

    try:
        plan = plan_of()
        at, predicted = worst_rank(plan)
        return {**_of_rank(bench, plan, plan.layout.rank(at), predicted.total), "processor_seconds": None}
    except Exception as error:
        return failure(error)
    finally:
        bench.clear()


def _of_rank(bench: Any, plan: Any, rank: int, predicted: int) -> dict[str, Any]:
    import numpy as np

    from trivium.comms.pretend import pretended
    from trivium.parallel.sharding.zero import AdamRule
    from trivium.tokens.rows import Rows
    from trivium.training.trainer import Samples, Trainer

    before = bench.held_bytes()
    ids = np.zeros((plan.batch.sequences, plan.model.sequence + 1), dtype=np.int64)
    with pretended(plan.layout, rank=rank, ends=plan.ends, device=bench.device) as mesh:
        trainer = Trainer(plan, mesh, seed=0, rule=AdamRule(), initial=False)

        def step() -> None:
            read = Samples(0, len(ids), lambda n, k: Rows.of_text(ids[n : n + k]))
            trainer.train_step(0, read, 1e-4)

        def anew() -> None:
            trainer.forget_recording()  # of a replay torch counts no memory
            step()

        for _ in range(2):
            step()
        peak = bench.peak_bytes(anew) - before
        return _row(Events().of(step), peak, predicted)


def _row(seen: Counter[str], peak: int, predicted: int | None) -> dict[str, Any]:
    waits = {n: c for n, c in seen.items() if n.startswith("wait")}
    return {
        "status": "measured",
        "launches": seen.total() - sum(waits.values()),
        "waits": waits,
        "peak_bytes": peak,
        "predicted_bytes": predicted,
        "bytes_error": None if predicted is None else predicted / peak - 1,
    }


def _turns(bench: Any, sides: Mapping[str, tuple[Callable[[], Any], Any]]) -> dict[str, Any]:
    """One side after the other, alone: a peak is then its own."""
    from gpu_bench import failure

    from trivium.cost.memory import worst_rank

    rows: dict[str, Any] = {}
    events = Events()
    for name, (build_step, plan) in sides.items():
        try:
            before = bench.held_bytes()
            step = build_step()
            for _ in range(WARM_UP):
                step()
            peak = bench.peak_bytes(step) - before
            seen = events.of(step)
            seconds = statistics.median(_processor_seconds(step) for _ in range(ROUNDS))
        except Exception as error:
            rows[name] = failure(error)
            continue
        predicted = None if plan is None else worst_rank(plan)[1].total
        rows[name] = {**_row(seen, peak, predicted), "processor_seconds": seconds}
        del step
        bench.clear()
    return rows


def _processor_seconds(step: Callable[[], None]) -> float:
    begin = time.process_time()
    step()
    return time.process_time() - begin


def page(record: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    lines = [
        f"# An accelerator's host, without the accelerator, {record['date'][:10]}",
        "",
        "No GPU was there: the CUDA runtime was a pretended one, kernels did nothing. Launches, waits and bytes are "
        "those of torch's own dispatch, compiler and allocator; processor time is this machine's.",
        "",
        f"- torch {record['torch']}, CUDA {record['cuda']}, Python {record['python']}",
        f"- {record['machine']['processor']}",
        f"- commit {record['commit']}{' with uncommitted changes' if record['changed'] else ''}",
        f"- command: `{record['command']}`",
        "",
        "| size | side | launches | waits | processor ms | peak bytes | predicted | error |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for shape, rows in record["rows"].items():
        lines += [_line(shape, name, row) for name, row in rows.items()]
    lines += ["", f"Peaks are without cuBLAS's workspaces, {record['workspace_bytes']:,} bytes here.", ""]
    return "\n".join(lines)


def _line(shape: str, name: str, row: Mapping[str, Any]) -> str:
    if row["status"] != "measured":
        return f"| {shape} | {name} | {row['status']}: {row['reason']} | | | | | |"
    predicted = row["predicted_bytes"]
    told = "| |" if predicted is None else f"{predicted:,} | {row['bytes_error']:+.2%} |"
    waits, seconds = sum(row["waits"].values()), row["processor_seconds"]
    return (
        f"| {shape} | {name} | {row['launches']:,} | {waits} | "
        f"{'' if seconds is None else f'{1000 * seconds:.1f}'} | "
        f"{row['peak_bytes']:,} | {told}"
    )


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.exit(main(sys.argv[1:]))
