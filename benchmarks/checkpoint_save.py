"""How long training stands still for a checkpoint, and how much memory reading one takes; one process.

    python benchmarks/checkpoint_save.py [--json FILE]

stall: seconds until training may go on; `waiting` writes first, `background` copies first. extra memory of a read:
what the process holds while it restores, beyond what it held (anonymous pages, /proc/self/status).
"""

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path

import torch

from trivium.checkpoint.load import Checkpoint
from trivium.checkpoint.save import Saving, copies
from trivium.comms.mesh import Mesh
from trivium.config import to_tree
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.provenance import code_commit
from trivium.training.state import fragments, restore
from trivium.training.trainer import Trainer

MODEL = {"layers": 8, "hidden": 512, "heads": 8, "vocabulary": 8192, "sequence": 256}
TIMES = 3


def anonymous_bytes() -> int:
    """Memory of this process that is not a mapped file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def stalls(trainer: Trainer, root: Path, first_step: int) -> dict[str, float]:
    """Seconds until training may go on, and until the checkpoint is durable."""
    found: dict[str, list[float]] = {"waiting": [], "background": [], "background until durable": []}
    step = first_step
    for _ in range(TIMES):
        step += 1
        began = time.perf_counter()
        Saving(root, step, fragments(trainer), Mesh.single(), {}).advance(wait=True)
        found["waiting"].append(time.perf_counter() - began)
        step += 1
        began = time.perf_counter()
        saving = Saving(root, step, copies(fragments(trainer)), Mesh.single(), {})
        found["background"].append(time.perf_counter() - began)
        saving.advance(wait=True)
        found["background until durable"].append(time.perf_counter() - began)
    return {name: sorted(seconds)[TIMES // 2] for name, seconds in found.items()}


def reading(trainer: Trainer, path: Path) -> dict[str, float]:
    """Bytes read, and the most that was held beyond what the trainer holds."""
    checkpoint = Checkpoint.open(path)
    before, peak, done = anonymous_bytes(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.001):
            peak[0] = max(peak[0], anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    restore(trainer, checkpoint)
    seconds = time.perf_counter() - began
    done.set()
    watcher.join()
    return {
        "read_bytes": sum(checkpoint.traffic.values()),
        "extra_peak_bytes": max(0, peak[0] - before),
        "largest_tensor_bytes": 4 * max(s.row.elements for b in trainer.buckets for s in b.slots),
        "seconds": seconds,
    }


def main(arguments: list[str] | None = None, model: dict[str, int] = MODEL) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    plan = Plan.model_validate({"model": model, "batch": {"sequences": 1}})
    trainer = Trainer(plan, Mesh.single(), seed=1, rule=AdamRule())
    with tempfile.TemporaryDirectory(prefix="trivium-bench-") as folder:
        root = Path(folder)
        seconds = stalls(trainer, root, 0)
        read = reading(trainer, sorted(root.iterdir())[-1])
    found = {
        "commit": code_commit(),
        "threads": torch.get_num_threads(),
        "model": to_tree(plan.model),
        "checkpoint_bytes": sum(f.values.nbytes for f in fragments(trainer)),
        "stall_seconds": seconds,
        "reading": read,
    }
    print(json.dumps(found, indent=1))
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
