"""Whether the requests that ranks make of NCCL meet, without a GPU: layouts of the certificate's sweep, and everything
that each of their ranks asks of torch's process group for NCCL, in order.

    python benchmarks/nccl_order.py --json out.json [--report folder] [--max-ranks 8] [--plans 0]

For a Python whose torch is built with CUDA. The trainer, torch's streams and its ProcessGroupNCCL run as on GPUs, one
process a rank; the runtime and the NCCL below them (pretended_cuda/) write down what they are asked and do nothing. By
streams.py the ranks' traces must then come to their end, by every message and sum meeting its counterpart, and every
message of the pipeline must be taken for the same at both ends: NCCL pairs messages by their order alone. Faults put
into each trace must be found. What the messages hold is not looked at: the certificate does that, on processors.
"""

import ctypes
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pretended
from gpu_page import where_it_goes, write
from streams import Apart, faults, meet

STEPS = 3
LIMIT_SECONDS = 120.0


def main(arguments: list[str]) -> int:
    """Build the runtime and start anew with it; under it, go through the plans. Exit code 1 where one does not meet."""
    parser = where_it_goes(__doc__)
    parser.add_argument("--max-ranks", type=int, default=8)
    parser.add_argument("--plans", type=int, default=0, help="of the sweep, evenly chosen; 0: all")
    options = parser.parse_args(arguments)
    if not pretended.is_in_place():
        return pretended.anew()
    record = _measured(arguments, options.max_ranks, options.plans)
    write("nccl-order", record, options, page)
    print(page(record))
    return 0 if all(_is_right(row) for row in record["rows"]) else 1


def _measured(arguments: list[str], max_ranks: int, plans: int) -> dict[str, Any]:
    import torch._dynamo  # noqa: F401  # before ranks are forked, which would each take seconds for it
    from circumstances import circumstances

    import trivium.certify.reference
    import trivium.training.trainer  # noqa: F401
    from trivium.certify.layouts import generated_plans

    # How many rows an expert has depends on what is computed, and nothing is computed here.
    every = [plan for plan in generated_plans(max_ranks) if not plan.model.experts_by_layer]
    found = [plan for plan in every if plan.layout.world_size > 1]
    chosen = found[:: max(1, len(found) // plans)][:plans] if plans else found
    rows = []
    for number, plan in enumerate(chosen):
        rows.append(_row(_on_gpus(plan, "bf16" if number % 2 else "fp32", records=number % 4 < 2)))
        print(f"{number + 1} of {len(chosen)}: {rows[-1]['layout']}: {rows[-1]['status']}", file=sys.stderr, flush=True)
    return {**circumstances("benchmarks/nccl_order.py", arguments), "generated": len(found), "rows": rows}


def _on_gpus(plan: Any, weights: str, *, records: bool) -> Any:
    """The plan, where it records without what cannot be recorded of its model, if that makes it one that can. In fp32
    accelerators have no fused attention, and other code runs."""
    precise = plan.model_copy(update={"precision": plan.precision.model_copy(update={"weights": weights})})
    same_work = plan.model.model_copy(update={"dropout": 0.0, "documents": "joined"})
    recorded = precise.model_copy(update={"model": same_work, "cuda_graphs": True})
    return recorded if records and not recorded.check() else precise


def _row(plan: Any) -> dict[str, Any]:
    from trivium.comms.launch import run_ranks
    from trivium.config import to_tree
    from trivium.errors import TriviumError

    layout = plan.layout.model_dump(exclude_defaults=True)
    told = {"layout": layout, "schedule": plan.schedule, "zero": plan.zero, "weights": plan.precision.weights}
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            run_ranks(_trained, plan.layout.world_size, plan, folder, timeout_seconds=LIMIT_SECONDS)
        except TriviumError as error:
            return {**told, "status": "failed", "reason": str(error)[-2000:], "plan": to_tree(plan)}
        traces = [(Path(folder) / str(n)).read_text().splitlines() for n in range(plan.layout.world_size)]
    return {**told, **_judged(traces), "seconds": round(time.monotonic() - begin, 1)}


def _judged(traces: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Whether the traces meet, also one request at a time; and whether faults in them are found."""
    try:
        found = meet(traces)
    except Apart as apart:
        return {"status": "apart", "reason": str(apart)[:4000]}
    seeded = faults(traces, len(traces) // 2)
    missed = [name for name, changed in seeded.items() if not _is_found(changed)]
    return {
        "status": "meets",
        "communicators": found.communicators,
        "parts": dict(found.parts),
        "replays": sum(line.startswith("replay") for trace in traces for line in trace),
        "one_at_a_time": not _is_found(traces, one_at_a_time=True),
        "faults": len(seeded),
        "faults_missed": missed,
    }


def _is_found(traces: Sequence[Sequence[str]], *, one_at_a_time: bool = False) -> bool:
    try:
        meet(traces, one_at_a_time=one_at_a_time)
    except Apart:
        return True
    return False


def _is_right(row: Mapping[str, Any]) -> bool:
    return row["status"] == "meets" and not row["faults_missed"]


def _trained(place: Any, plan: Any, folder: str) -> None:
    """A rank: some steps and a validation, every request written down."""
    import torch
    import torch.distributed as dist

    from trivium.certify.reference import random_rows
    from trivium.comms.launch import connected
    from trivium.comms.mesh import Mesh
    from trivium.parallel.sharding import zero
    from trivium.training.trainer import Samples, Trainer

    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    assert library.trace_to(str(Path(folder) / str(place.rank)).encode()) == 0, f"no trace in {folder}"
    begin = dist.batch_isend_irecv

    def tagged(operations: Sequence[Any]) -> Any:
        for operation in operations:
            library.trace_tag(operation.tag)
        return begin(operations)

    dist.batch_isend_irecv = tagged
    # What was summed means nothing.
    zero._totals = lambda names, numbers: zero.Totals(0.0, dict.fromkeys(names, 0.0), 0, (0, 0))
    device = torch.device("cuda", 0)
    with connected(place, device=device):
        mesh = Mesh.connect(plan.layout, place.rank, place.world_size, device, ends=plan.ends)
        trainer = Trainer(plan, mesh, seed=0, rule=zero.AdamRule())
        for step in range(STEPS):
            at = plan.batch.at(step)
            trainer.train_step(step, Samples(at.first_sample, at.sequences, random_rows(plan)), 1e-3)
        trainer.validate(Samples(0, plan.validation_unit, random_rows(plan)))


def page(record: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    rows, world = record["rows"], Counter[int]()
    parts = Counter[str]()
    for row in rows:
        world[_ranks(row)] += 1
        parts.update(row.get("parts", {}))
    met = [row for row in rows if row["status"] == "meets"]
    seeded = sum(row["faults"] for row in met)
    found = seeded - sum(len(row["faults_missed"]) for row in met)
    recorded = [row for row in met if row["replays"]]
    return "\n".join(
        [
            f"# What ranks ask of NCCL, without a GPU, {record['date'][:10]}",
            "",
            "No GPU was there, and NCCL exchanged nothing: what each rank asked of it, by torch's process group, was "
            "written down and followed by NCCL's rules (`benchmarks/streams.py`): requests of a communicator one after "
            "the other, messages paired by their order alone and never buffered.",
            "",
            f"- torch {record['torch']}, Python {record['python']}",
            f"- {record['machine']['processor']}",
            f"- commit {record['commit']}{' with uncommitted changes' if record['changed'] else ''}",
            f"- command: `{record['command']}`",
            "",
            f"- plans: {len(rows)} of {record['generated']} of the certificate's sweep with several ranks and without "
            f"experts (how many rows these have depends on what is computed, and nothing was), in fp32 and "
            f"bf16 in turns ({', '.join(f'{n} of {size} ranks' for size, n in sorted(world.items()))})",
            f"- come to their end: {len(met)}; one request at a time in the order asked: "
            f"{sum(row['one_at_a_time'] for row in met)}",
            f"- with recorded steps: {len(recorded)}, replayed {sum(row['replays'] for row in recorded):,} times, each "
            "by the rules of what may be recorded; messages in a recording count at its replays",
            f"- requests: {', '.join(f'{n:,} {what}' for what, n in sorted(parts.items()))}",
            f"- faults put into the traces: {seeded}, found {found}",
            "",
            *_troubles(rows),
        ]
    )


def _ranks(row: Mapping[str, Any]) -> int:
    from trivium.plan.layout import Layout

    return Layout(**row["layout"]).world_size


def _troubles(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        name = f"{row['layout']}, {row['schedule']}, ZeRO {row['zero']}, {row['weights']}"
        if row["status"] != "meets":
            yield f"- **{row['status']}**: {name}\n\n```\n{row['reason']}\n```\n"
        elif row["faults_missed"]:
            yield f"- **not found**: {', '.join(row['faults_missed'])}: {name}"
        elif not row["one_at_a_time"]:
            yield f"- not one at a time: {name}"


if __name__ == "__main__":
    sys.path.insert(0, str(pretended.HERE))
    sys.exit(main(sys.argv[1:]))
