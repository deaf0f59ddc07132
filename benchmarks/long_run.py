"""Seconds, processor seconds and peak memory of the commands that read the records of a long training.

python benchmarks/long_run.py [--steps 1000000] [--json long-run.json]
"""

import argparse
import datetime
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

COMMANDS = {  # RUN and STEPS stand for the run that is written, and the number of its steps
    "metrics": "metrics RUN",
    "metrics of two runs": "metrics RUN SHORTER",
    "report": "report RUN",
    "data show --counts": "data show RUN --step STEPS --counts",
}
SHORTER = 0.9  # the share of the steps that the run has which the first is compared with
PLAN = {
    "model": {"layers": 2, "hidden": 64, "heads": 4, "sequence": 128, "vocabulary": 320},
    "batch": {"sequences": 32, "micro": 1},
}
VALIDATE_EVERY, SAVE_EVERY = 1000, 5000  # steps


def write_runs(run: Path, shorter: Path, steps: int) -> None:
    """Write the records of both trainings, as `trivium train` leaves them."""
    sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # for chaos.scene
    from chaos.scene import write_tokens

    tokens = write_tokens(run.parent)
    write_run(run, steps, tokens)
    write_run(shorter, int(SHORTER * steps), tokens)


def write_run(run: Path, steps: int, tokens: Path) -> None:
    """Write the records of a training of so many steps. There are no checkpoints, and only the hash of the last batch
    is right."""
    from trivium.config import build
    from trivium.plan.plan import Plan
    from trivium.training.config import TrainingConfig
    from trivium.training.record import Record, write_record

    training = run / "training"
    training.mkdir(parents=True)
    (run / "config.json").write_text("{}")
    plan, config = build(Plan, PLAN), build(TrainingConfig, {"steps": steps + 1})
    record_of_run = Record(training, tokens, plan, config, 1234, ())
    write_record(record_of_run)
    last_hash = str(record_of_run.data.digest(*plan.batch.at(steps - 1)))
    tokens_of_a_step = plan.batch.sequences * plan.model.sequence
    with open(training / "metrics.jsonl", "w") as metrics, open(training / "events.jsonl", "w") as events:
        for step in range(1, steps + 1):
            seen = step * tokens_of_a_step
            record: dict[str, Any] = {
                "step": step,
                "time": 1795855781.702117 + step / 8,
                "tokens": seen,
                "samples": step * 32,
                "sequences": 32,
                "loss": 2 + 4.5691975355148315 / step**0.3,
                "lr": 0.00024576,
                "gradient_norm": 1.300902134774065,
                "batch_hash": last_hash if step == steps else "966c605a676449a7",
                "seconds": 0.1303785460004292,
                "tokens_per_second": 31416.211682453617,
                "model_flops_per_second": 31945009357.492676,
            }
            metrics.write(json.dumps(record) + "\n")
            if step % VALIDATE_EVERY == 0:
                metrics.write(json.dumps({"step": step, "tokens": seen, "validation_loss": 3.1}) + "\n")
            if step % SAVE_EVERY == 0:
                events.write(json.dumps({"event": "saved", "step": step}) + "\n")


def measured(command: str, given: Mapping[str, str]) -> dict[str, Any]:
    """Seconds, processor seconds and peak resident memory of one command in a process of its own; SystemExit where it
    fails. given: what its words in capitals stand for."""
    asked = [str(Path(sys.executable).with_name("trivium")), *(given.get(w, w) for w in command.split())]
    began = time.monotonic()
    child = os.spawnv(os.P_NOWAIT, asked[0], asked)
    _, status, used = os.wait4(child, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(f"`{' '.join(asked)}` ended with {code}")
    return {
        "seconds": round(time.monotonic() - began, 2),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 2),
        "peak_mib": round(used.ru_maxrss / 1024, 1),
    }


def main() -> None:
    """Write the run, measure every command, and print or keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run, shorter = Path(folder) / "run", Path(folder) / "shorter"
        # In a process of its own: the peak of the commands counts from that of the process that starts them.
        writer = multiprocessing.get_context("spawn").Process(target=write_runs, args=(run, shorter, asked.steps))
        writer.start()
        writer.join()
        given = {"RUN": str(run), "SHORTER": str(shorter), "STEPS": str(asked.steps)}
        size = (run / "training" / "metrics.jsonl").stat().st_size
        found = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "steps": asked.steps,
            "metrics_bytes": size,
            "commands": {name: measured(command, given) for name, command in COMMANDS.items()},
        }
    text = json.dumps(found, indent=1)
    print(text)
    if asked.json:
        asked.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
