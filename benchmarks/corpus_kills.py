"""Kill `trivium corpus run` at random moments, go on each time, and compare with a run that was never killed.

    python benchmarks/corpus_kills.py --work FOLDER [--kills 100] [--engine here] [--json out.json] [--set PATH=VALUE …]

A run is killed (SIGKILL, its whole process group) after a random time that is on average a tenth of what a whole
run takes, and the same command goes on; when it comes to its end its output is compared byte for byte, and the next
run begins. Ends with exit code 1 when any output differs.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from trivium.corpus.compare import differences_between
from trivium.provenance import code_commit

STATIONS = ("curated", "tokens")


def main() -> int:
    options = _options()
    command = [
        sys.executable,
        "-m",
        "trivium.cli.main",
        "corpus",
        "run",
        options.preset,
        "--engine",
        options.engine,
    ]
    for one in options.set or ():
        command += ["--set", one]
    options.work.mkdir(parents=True, exist_ok=True)
    whole = options.work / "whole"
    shutil.rmtree(whole, ignore_errors=True)
    began = time.monotonic()
    subprocess.run(
        [*command, "--out", str(whole)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    found = kill_and_compare(command, whole, options, seconds=time.monotonic() - began)
    print(json.dumps(found, indent=1))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if found["differences"] else 0


def kill_and_compare(
    command: list[str], whole: Path, options: argparse.Namespace, *, seconds: float
) -> dict[str, Any]:
    """Kills until there were enough; how many runs were completed with them, and what differed."""
    generator = np.random.default_rng(options.seed)
    out, kills, runs = options.work / "killed", 0, 0
    differences: list[str] = []
    shutil.rmtree(out, ignore_errors=True)
    stages = 0
    while kills < options.kills or out.exists():
        # the last run is let go to its end
        limit = float(generator.exponential(seconds / 10)) + 0.2 if kills < options.kills else None
        if ended(command, out, limit):
            runs += 1
            for station in STATIONS:
                differences += differences_between(whole / station, out / station)
            shutil.rmtree(out)
        else:
            kills += 1
            stages += len([name for name in STATIONS if (out / name).is_dir()])
    return {
        "commit": code_commit(),
        "command": f"trivium corpus run {options.preset} --engine {options.engine}",
        "kills": kills,
        "runs_completed": runs,
        "seconds_of_a_whole_run": round(seconds, 1),
        "kills_after_curation": stages,
        "differences": differences,
    }


def ended(command: list[str], out: Path, limit: float | None) -> bool:
    """Run, and kill after so many seconds; whether it came to its end before."""
    process = subprocess.Popen(
        [*command, "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return False
    if code:
        raise SystemExit(f"the run ended with exit code {code}; it stands in {out}")
    return True


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--preset", default="demo")
    parser.add_argument("--engine", default="here", choices=["here", "native", "ray"])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
