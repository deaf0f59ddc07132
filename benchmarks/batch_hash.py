"""What hashing every batch costs: seconds of the hash over seconds of the step that reads the batch.

    python benchmarks/batch_hash.py [--steps N] [--json FILE]

The step is a real one of the demo's model on one process; the hash is that of the same rows, as a rank of the first
tensor, pipeline and context index computes it. Medians over the steps.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from trivium.certify.reference import random_rows
from trivium.comms.mesh import Mesh
from trivium.config import build, read_preset
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.tokens.rows import digest
from trivium.training.trainer import Samples, Trainer


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    tree = read_preset("demo")["plan"]
    tree = {k: v for k, v in tree.items() if k in ("model", "batch", "precision")}
    plan = build(Plan, tree | {"zero": 0}).checked()
    trainer = Trainer(plan, Mesh.single(), seed=1, rule=AdamRule())
    read, sequences = random_rows(plan), plan.batch.sequences
    rows = read(0, sequences)
    trainer.train_step(0, Samples(0, sequences, read), 1e-4)
    steps = [_seconds(lambda: trainer.train_step(1, Samples(0, sequences, read), 1e-4)) for _ in range(given.steps)]
    hashes = [_seconds(lambda: digest(range(sequences), rows)) for _ in range(50)]
    step, hashing = statistics.median(steps), statistics.median(hashes)
    found = {
        "rows": sequences,
        "positions": plan.model.sequence,
        "threads": torch.get_num_threads(),
        "step_seconds": step,
        "hash_seconds": hashing,
        "percent": 100 * hashing / step,
    }
    print(json.dumps(found, indent=1))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _seconds(work) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
