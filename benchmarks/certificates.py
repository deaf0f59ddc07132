"""Every certificate at once: generated layouts, random plans, seeded faults.

    python benchmarks/certificates.py [--max-ranks 8] [--random 150] [--seed 61] [--report FOLDER]
                                      [--parts faults --others FILE]

Runs `trivium certify --sweep`, `trivium certify --random` and the seeded faults (`make faults`), or only the named
parts: the others are taken from an earlier report's JSON of the same seed. Writes certificates-DATE.json and .md into
the folder. Takes about eight minutes on two cores. The exit code is 1 if anything failed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from circumstances import circumstances

from trivium.certify.ways import EVERY_WAY
from trivium.provenance import write_json

Found = Mapping[str, Any]
CERTIFY = ("trivium.cli.main", "certify")
ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-ranks", type=int, default=8)
    parser.add_argument("--random", type=int, default=150)
    parser.add_argument("--seed", type=int, default=61)
    parser.add_argument("--report", type=Path, default=Path())
    parser.add_argument("--parts", default="sweep,random,faults")
    parser.add_argument("--others", type=Path)
    asked = parser.parse_args()
    asked.report.mkdir(parents=True, exist_ok=True)  # before the work, not after it
    ranks = f"--max-ranks={asked.max_ranks}"
    given = {
        "sweep": [*CERTIFY, "--sweep", ranks],
        "random": [*CERTIFY, f"--random={asked.random}", ranks, "--set", f"seed={asked.seed}"],
        "faults": ["faults.run"],
    }
    wanted, others = asked.parts.split(","), json.loads(asked.others.read_text()) if asked.others else {}
    if left := [name for name in given if name not in wanted and name not in others]:
        parser.error(f"--parts leaves out {', '.join(left)}: name a report's JSON that has them with --others")
    if others and others["seed"] != asked.seed:
        parser.error(f"--others is of seed {others['seed']}, not {asked.seed}")
    found = {name: _certified(*words) if name in wanted else others[name] for name, words in given.items()}
    record = {**circumstances("benchmarks/certificates.py", sys.argv[1:]), "seed": asked.seed, **found}
    stem = asked.report / f"certificates-{record['date'][:10]}"
    write_json(stem.with_suffix(".json"), record)
    stem.with_suffix(".md").write_text(page(record, stem.name))
    print(page(record, stem.name))
    return int(found["sweep"]["failed"] + found["random"]["failed"] + _missed(found["faults"]) > 0)


def _certified(module: str, *arguments: str) -> Found:
    """Return the JSON that a module writes. Exit code 1 is a verdict; any other is an error."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        command = [sys.executable, "-m", module, *arguments, "--json", str(path)]
        paths = [str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)})
        if done.returncode not in (0, 1):
            raise SystemExit(done.returncode)
        found: Found = json.loads(path.read_text())
        return found


def page(record: Found, name: str) -> str:
    """The report as Markdown."""
    machine, sweep, random = record["machine"], record["sweep"], record["random"]
    parts = (sweep, random, record["faults"])
    commits = ", ".join(dict.fromkeys(part["versions"]["commit"][:7] for part in parts))
    changed = "+" if record["changed"] else ""
    head = "passed | worst deviation"
    lines = [
        f"# Certificates, {record['date'][:10]}",
        "",
        f"{machine['processor']}, {machine['cores']} cores; torch {record['torch']}, commit {commits}"
        f"{changed}. Tolerance {sweep['tolerance']:g}, fp64. Every plan, with its deviation: [{name}.json]({name}.json)"
        ". What is compared, and the ways through the engine: [certificate.md](../../docs/certificate.md).",
        "",
        f"| way | sweep: layouts | {head} | random, seed {record['seed']}: plans | {head} |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {way or 'all'} | {_cells(sweep['results'], way)} | {_cells(random['results'], way)} |"
            for way in (*(w.name for w in EVERY_WAY), None)
        ),
        "",
        _faults_line(record["faults"]),
        "",
        f"`{record['command']}`",
        "",
    ]
    return "\n".join(lines)


def _cells(results: Sequence[Found], way: str | None) -> str:
    """Return table cells for the plans that took one code path, or any: their number, how many passed, and the worst
    deviation."""
    mine = [r for r in results if way in (None, r["way"])]
    worst = max((float(r["worst"]) for r in mine), default=0.0)  # JSON has no infinity: it is a text there
    return f"{len(mine)} | {sum(r['passed'] for r in mine)} | {worst:.1e}"


def _faults_line(faults: Found) -> str:
    every = [by["deviation"] for fault in faults["mutants"] for by in fault["by"]]
    smallest = min((d for d in every if isinstance(d, float)), default=0.0)  # of some there are no numbers
    caught = f"{faults['caught']} of {faults['total']} caught"
    return f"Seeded faults: {caught}; the smallest deviation of one is {smallest:.1e}."


def _missed(faults: Found) -> int:
    missed: int = faults["total"] - faults["caught"]
    return missed


if __name__ == "__main__":
    sys.exit(main())
