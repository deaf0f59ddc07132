"""Count what start, save, resume and failure of large jobs cost, from the formulas of the code; runs nothing.

    python benchmarks/scale.py

docs/site.py makes a page of it.
"""

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from trivium.checkpoint.format import boxes_of_range
from trivium.comms.meeting import POLLS_OF_THE_FIRST, pause_seconds
from trivium.cost.hardware import Machine, machine_named
from trivium.cost.saving import near_copy, saved_bytes
from trivium.plan.batch import Batch
from trivium.plan.buckets import BucketRow, bucket_table, slices_of
from trivium.plan.layout import Layout
from trivium.plan.parameters import Box, local_shape, parameters, shard_box
from trivium.plan.plan import Plan
from trivium.planner.published import mt_nlg_plan
from trivium.units import format_bytes, format_seconds

STORE_BYTES_PER_SECOND_OF_A_HOST, STORE_BYTES_PER_SECOND = 2e9, 500e9  # to the shared file system: assumed
HASH_BYTES_PER_SECOND = 1e9  # of one rank: assumed
MANIFEST_BYTES_PER_SECOND = 50e6  # that the first rank writes or reads, as JSON: assumed
ROUND_SECONDS = 3.0  # supervision/neighbours.py: each rank writes a heartbeat that often
CONNECTIONS_OF_A_RANK = 2
FILE = "pieces-00000.safetensors"
OBJECTS = 5  # memory of the parsed entries of a manifest, as a multiple of their text: measured


class Scale(NamedTuple):
    """A job by name, its plan and its machine."""

    name: str
    plan: Plan
    machine: Machine


def jobs() -> list[Scale]:
    """Return the two jobs: MT-NLG's largest, and the same model with twice the layers on 16,384 GPUs."""
    mt = mt_nlg_plan(16)
    wider = mt.model.model_copy(update={"layers": 128})
    layout = Layout(tensor=8, pipeline=32, data=64)
    changes = {"model": wider, "layout": layout, "batch": Batch(sequences=3840, micro=1)}
    return [
        Scale("MT-NLG 530B", mt, machine_named("selene")),
        Scale("128 layers of it", mt.model_copy(update=changes), machine_named("dgx-h100").with_nodes(2048)),
    ]


def pieces_of(plan: Plan, row: BucketRow, tensor: int, part: int) -> Iterator[tuple[str, Box]]:
    """Yield name and box of each piece that a tensor rank writes of its slice of a bucket, once for each kind."""
    size, start = row.padded // slices_of(plan, row), 0
    own = range(part * size, (part + 1) * size)
    for item in row.items:
        p, first, stop = item.parameter, max(own.start, start), min(own.stop, start + item.elements)
        is_written = first < stop and not item.borrowed and (p.split is not None or tensor == 0)
        shard = shard_box(p, plan.model, plan.layout, tensor, 0)
        real = Box(tuple(0 for _ in shard.shape), shard.shape)
        shape = local_shape(p, plan.model, plan.layout)
        for _, local in boxes_of_range(first - start, stop - start, shape) if is_written else ():
            if (box := local.intersect(real)) is not None:
                yield p.name, Box(tuple(a + b for a, b in zip(box.start, shard.start, strict=True)), box.shape)
        start += item.room


def manifest(plan: Plan, tensors: Sequence[int]) -> tuple[int, int]:
    """Return the number of pieces in the manifest of a checkpoint, and the bytes of their entries.

    tensors: the tensor ranks that are counted: all, or the first two, of which the second stands for all others.
    """
    kinds = 3 + plan.precision.has_master
    found: list[tuple[int, int]] = []
    for tensor in tensors:
        pieces = size = 0
        for pipeline in range(plan.layout.pipeline):
            for row in bucket_table(plan, pipeline):
                for part in range(slices_of(plan, row)):
                    for name, box in pieces_of(plan, row, tensor, part):
                        pieces += 1
                        entry = {"file": FILE, "key": f"000:weights/{name}", "start": box.start, "shape": box.shape}
                        size += len(json.dumps(entry)) + len(", ")
        found.append((pieces * kinds, size * kinds))
    found += [found[-1]] * (plan.layout.tensor - len(tensors))
    tensor = {"dtype": "BF16", "shape": [1024, 1024], "pieces": []}
    named = sum(len(json.dumps({f"weights/{row.name}": tensor})) for row in parameters(plan.model)) * kinds
    return sum(pieces for pieces, _ in found), sum(size for _, size in found) + named


def counts(job: Scale) -> dict[str, str]:
    """Return the figures of a job, by what they are."""
    plan, machine = job.plan, job.machine
    ranks, hosts = plan.layout.world_size, plan.layout.world_size // machine.devices_per_node
    saved, (pieces, listing), near = saved_bytes(plan), manifest(plan, (0, 1)), near_copy(plan, machine)
    store = max(
        saved.largest * machine.devices_per_node / STORE_BYTES_PER_SECOND_OF_A_HOST,
        saved.total / STORE_BYTES_PER_SECOND,
    )
    polls = POLLS_OF_THE_FIRST / pause_seconds(0, ranks) + (ranks - 1) / pause_seconds(1, ranks)
    listed = 2 * listing / MANIFEST_BYTES_PER_SECOND
    return {
        "ranks, hosts": f"{ranks:,}, {hosts:,}",
        "start: connections of the store; requests per second while ranks meet": (
            f"{CONNECTIONS_OF_A_RANK * ranks:,}; {polls:,.0f}"
        ),
        "training: heartbeats per second": f"{ranks / ROUND_SECONDS:,.0f}",
        "save: bytes; largest file": f"{format_bytes(saved.total)}; {format_bytes(saved.largest)}",
        "save: pieces; manifest": f"{pieces:,}; {format_bytes(listing)}",
        "save: memory of the first rank": format_bytes((1 + OBJECTS) * listing),
        "save: in the background": format_seconds(saved.largest / HASH_BYTES_PER_SECOND + store + listed),
        "near copy: training stops; sent": (
            f"{format_seconds(near.stops_seconds)}; {format_seconds(near.sends_seconds)}"
        ),
        "resume: manifest, verification, reading": format_seconds(
            listed / 2 + saved.total / ranks / HASH_BYTES_PER_SECOND + 2 * store
        ),
        "failure: named within; hosts meet again": "30 s; 15 s lease + 3 s",
    }


def page() -> str:
    """Return the table as Markdown."""
    columns = [counts(job) for job in jobs()]
    lines = [
        "# Large jobs, counted",
        "",
        "Counted by `benchmarks/scale.py` from the layouts, buckets and the format of checkpoints; nothing ran at this "
        "size. Times assume 2 GB/s from each host to the shared folder and 500 GB/s in all, 1 GB/s of hashing and "
        "50 MB/s of JSON.",
        "",
        f"| | {' | '.join(job.name for job in jobs())} |",
        f"| --- {'| --- ' * len(columns)}|",
        *(f"| {name} | {' | '.join(column[name] for column in columns)} |" for name in columns[0]),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
