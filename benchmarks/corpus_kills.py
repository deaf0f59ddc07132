"""Kill `trivium corpus run` at random moments, go on each time, and compare with a run that was never killed.

    python benchmarks/corpus_kills.py --work FOLDER [--kills 100] [--engine here] [--json out.json] [--set PATH=VALUE …]

A run is killed (SIGKILL, its whole process group) at a random moment of the time that it takes, and the same
command goes on; when it comes to its end its output is compared byte for byte, and the next run begins. Runs begin
with a finished harvest: a harvest that is killed only begins anew. Ends with exit code 1 when any output differs.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trivium.corpus.publish.views import differences_between
from trivium.provenance import code_commit

HARVEST, STATIONS = "harvest", ("curated", "tokens")


def main() -> int:
    options = _options()
    found = killed_runs(
        options.work,
        preset=options.preset,
        engine=options.engine,
        sets=options.set or (),
        kills=options.kills,
        seed=options.seed,
    )
    print(json.dumps(found, indent=1))
    if options.json:
        options.json.write_text(json.dumps({"commit": code_commit(), **found}, indent=1) + "\n")
    return 1 if found["differences"] else 0


def killed_runs(
    work: Path, *, preset: str = "demo", engine: str = "here", sets: Sequence[str] = (), kills: int = 100, seed: int = 1
) -> dict[str, Any]:
    """Kill runs `kills` times. Return the number of runs that were completed, and the differences between outputs."""
    words = ["corpus", "run", preset, "--engine", engine, *(word for one in sets for word in ("--set", one))]
    command = [sys.executable, "-m", "trivium.cli.main", *words]
    whole, out = work / "whole", work / "killed"
    work.mkdir(parents=True, exist_ok=True)
    for folder in (whole, out):
        shutil.rmtree(folder, ignore_errors=True)
    ended(command, whole, None)
    shutil.copytree(whole / HARVEST, out / HARVEST)
    began = time.monotonic()
    ended(command, out, None)
    seconds = time.monotonic() - began
    generator = np.random.default_rng(seed)
    done = runs = 0
    differences = _differences(whole, out)
    reached: Counter[str] = Counter()
    shutil.rmtree(out)
    while done < kills or out.exists():
        if not out.exists():
            shutil.copytree(whole / HARVEST, out / HARVEST)
        # the last run is let go to its end
        limit = float(generator.uniform(0, seconds)) if done < kills else None
        if ended(command, out, limit):
            runs += 1
            differences += _differences(whole, out)
            shutil.rmtree(out)
        else:
            done += 1
            reached[_reached(out)] += 1
    return {
        "run": f"trivium {' '.join(words)}",
        "kills": done,
        "runs_completed": runs,
        "seconds_after_the_harvest": round(seconds, 1),
        **reached,
        "differences": differences,
    }


def _differences(whole: Path, out: Path) -> list[str]:
    return [one for name in STATIONS for one in differences_between(whole / name, out / name)]


def _reached(out: Path) -> str:
    """Return the name of the stage in which a run was killed, by the folders that it left."""
    if (out / "curated").is_dir():
        return "kills_after_curation"
    parts = (out / ".curated.work").glob("*/parts")  # in the folder of the job
    return "kills_within_curation" if any(parts) else "kills_before_curation"


def ended(command: list[str], out: Path, limit: float | None) -> bool:
    """Run, and kill after `limit` seconds. Return whether the run ended before."""
    process = subprocess.Popen(
        [*command, "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
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
