"""Seconds and peak memory of the commands that read the records of a long training.

python benchmarks/long_run.py [--steps 1000000] [--json long-run.json]
"""

import argparse
import datetime
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

COMMANDS = ("metrics", "report")
TOKENS_OF_A_STEP = 4096
VALIDATE_EVERY, SAVE_EVERY = 1000, 5000  # steps


def write_run(run: Path, steps: int) -> None:
    """Write the records of a training of so many steps, as `trivium train` leaves them; there are no checkpoints."""
    training = run / "training"
    training.mkdir(parents=True)
    (run / "config.json").write_text("{}")
    begun = {"plan": {"layout": {}, "schedule": "1f1b"}, "training": {"steps": steps + 1}}
    (training / "run.json").write_text(json.dumps(begun))
    with open(training / "metrics.jsonl", "w") as metrics, open(training / "events.jsonl", "w") as events:
        for step in range(1, steps + 1):
            tokens = step * TOKENS_OF_A_STEP
            record: dict[str, Any] = {
                "step": step,
                "time": 1795855781.702117 + step / 8,
                "tokens": tokens,
                "samples": step * 32,
                "sequences": 32,
                "loss": 2 + 4.5691975355148315 / step**0.3,
                "lr": 0.00024576,
                "gradient_norm": 1.300902134774065,
                "batch_hash": "966c605a676449a7",
                "seconds": 0.1303785460004292,
                "tokens_per_second": 31416.211682453617,
                "model_flops_per_second": 31945009357.492676,
            }
            metrics.write(json.dumps(record) + "\n")
            if step % VALIDATE_EVERY == 0:
                metrics.write(json.dumps({"step": step, "tokens": tokens, "validation_loss": 3.1}) + "\n")
            if step % SAVE_EVERY == 0:
                events.write(json.dumps({"event": "saved", "step": step}) + "\n")


def measured(command: str, run: Path) -> dict[str, Any]:
    """Seconds and peak resident memory of one command in a process of its own; SystemExit where it fails."""
    asked = [str(Path(sys.executable).with_name("trivium")), command, str(run)]
    began = time.monotonic()
    child = os.spawnv(os.P_NOWAIT, asked[0], asked)
    _, status, used = os.wait4(child, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(f"`{' '.join(asked)}` ended with {code}")
    return {"seconds": round(time.monotonic() - began, 2), "peak_mib": round(used.ru_maxrss / 1024, 1)}


def main() -> None:
    """Write the run, measure every command, and print or keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        write_run(run, asked.steps)
        size = (run / "training" / "metrics.jsonl").stat().st_size
        found = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "steps": asked.steps,
            "metrics_bytes": size,
            "commands": {command: measured(command, run) for command in COMMANDS},
        }
    text = json.dumps(found, indent=1)
    print(text)
    if asked.json:
        asked.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
