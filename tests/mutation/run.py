"""Try a random sample of mutants: which are caught by the certificate, and which by `make test`?

    make mutation [SAMPLE=300] [JSON=mutation.json]
    PYTHONPATH=tests python -m mutation.run --json FILE [--sample 300] [--seed 1] [--seconds 240] [--merge]

Each mutant is tried in a copy of the repository, as many at a time as there are workers. First the certificate's
central tests run, then the files of `make test` that execute the mutated line, fastest first, until one fails. A mutant
that outlives `--seconds` of tests counts as not caught, so that the share is a lower bound; one that never ends counts
as caught, since the time limit of the tests ends it. `coverage` says which file executes which line.
"""

import argparse
import contextlib
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mutation.mutants import Mutant, mutants_of

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("kernels", "comms", "parallel", "model", "training", "checkpoint")
TESTED_BY = (
    *PACKAGES,
    "optim",
    "laws",
    "certify",
    "faults",
    "interchange",
    "serving",
)  # folders of tests that are mapped
CERTIFICATE = ("tests/laws/layouts_agree_test.py", "tests/certify/courses_test.py", "tests/certify/rules_test.py")
COPIED = ("src", "tests", "docs", "pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile")
COVERAGE_SETTINGS = """[run]
source = {source}
concurrency = multiprocessing, thread
patch = _exit
parallel = true
data_file = {data}
"""
FILE_SECONDS = 900  # for the tests of one file, at most
HANGS_SECONDS = "90"  # that one test may take: a mutant that never ends is caught


class Covered(NamedTuple):
    """The code that one test file executes: lines by path below src/trivium, and the seconds it takes."""

    seconds: float
    lines: Mapping[str, Sequence[int]]


def copy_of_repository(folder: Path) -> Path:
    """Copy what tests read; return the root of the copy."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".venvs"))
        elif source.exists():
            shutil.copy2(source, folder / name)
    return folder


def failing(copy: Path, files: Sequence[str], seconds: float, prefix: Sequence[str] = ()) -> str | None:
    """Return the first test of these files that fails, or None. Ends every process that they started.

    subprocess.TimeoutExpired where they take longer than the seconds.
    """
    command = [
        sys.executable,
        *prefix,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "--timeout",
        HANGS_SECONDS,
        *files,
    ]
    paths = [str(copy / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            command, cwd=copy, env=environment, stdout=said, stderr=subprocess.DEVNULL, start_new_session=True
        ) as tests,
    ):
        try:
            if tests.wait(seconds) == 0:
                return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(tests.pid, signal.SIGKILL)
        said.seek(0)
        found = re.search(rb"^(?:FAILED|ERROR) (\S+)", said.read(), re.MULTILINE)
        return found[1].decode(errors="replace") if found else f"{files[0]} (the process ended)"


def coverage_of(copy: Path, test_file: str) -> Covered:
    """Run one file of tests under coverage, ranks that it forks included; no lines if it does not pass."""
    from coverage import Coverage

    with tempfile.TemporaryDirectory() as folder:
        data, settings = Path(folder) / "data", Path(folder) / "settings"
        settings.write_text(COVERAGE_SETTINGS.format(source=copy / "src" / "trivium", data=data))
        start = time.monotonic()
        prefix = ("-m", "coverage", "run", f"--rcfile={settings}")
        try:
            passed = failing(copy, [test_file], FILE_SECONDS, prefix) is None
        except subprocess.TimeoutExpired:
            return Covered(FILE_SECONDS, {})
        seconds = time.monotonic() - start
        measured = Coverage(data_file=str(data), config_file=str(settings))
        measured.combine()
        found = measured.get_data()
        package = copy / "src" / "trivium"
        lines = {
            str(Path(f).relative_to(package)): sorted(found.lines(f) or ())
            for f in found.measured_files()
            if Path(f).is_relative_to(package)
        }
        return Covered(seconds, lines if passed else {})


def test_files() -> list[str]:
    """Return the files of tests that are mapped."""
    return sorted(str(p.relative_to(ROOT)) for part in TESTED_BY for p in (ROOT / "tests" / part).rglob("*_test.py"))


def sample(count: int, seed: int) -> list[Mutant]:
    """Return a random sample of all mutants of the four packages, the same for the same code and seed."""
    package = ROOT / "src" / "trivium"
    files = sorted(p for name in PACKAGES for p in (package / name).rglob("*.py"))
    every = [m for f in files for m in mutants_of(str(f.relative_to(package)), f.read_bytes())]
    return random.Random(seed).sample(every, min(count, len(every)))


def try_mutant(copy: Path, mutant: Mutant, tests: Mapping[str, Covered], seconds: float) -> dict[str, Any]:
    """Return who caught the mutant: `certificate` and `tests` are the failing test, or None."""
    path = copy / "src" / "trivium" / mutant.path
    original = path.read_bytes()
    covering = sorted((c.seconds, name) for name, c in tests.items() if mutant.line in c.lines.get(mutant.path, ()))
    record: dict[str, Any] = {**mutant._asdict(), "certificate": None, "tests": None, "covering": len(covering)}
    path.write_bytes(mutant.apply(original))
    try:
        deadline = time.monotonic() + seconds
        central = [name for _, name in covering if name in CERTIFICATE]
        others = [name for _, name in covering if name not in CERTIFICATE]
        for kind, files in (("certificate", central), ("tests", others)):
            left = deadline - time.monotonic()
            if files and left > 0 and not record["certificate"]:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    record[kind] = failing(copy, files, left)
        return record
    finally:
        path.write_bytes(original)


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the shares as Markdown, by package, and the mutants that nothing caught."""
    by_package: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        by_package[record["path"].split("/")[0]].append(record)
    lines = ["| package | mutants | certificate | certificate or tests |", "| --- | ---: | ---: | ---: |"]
    for name, group in [*sorted(by_package.items()), ("all", list(records))]:
        certificate = sum(r["certificate"] is not None for r in group)
        either = sum(r["certificate"] is not None or r["tests"] is not None for r in group)
        share = [f"{n} ({n / max(1, len(group)):.0%})" for n in (certificate, either)]
        lines.append(f"| {name} | {len(group)} | {' | '.join(share)} |")
    survivors = [r for r in records if r["certificate"] is None and r["tests"] is None]
    lines += ["", "Not caught:", ""]
    lines += [f"- `{r['path']}:{r['line']}` `{r['before']}` -> `{r['after']}`" for r in survivors]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Measure coverage, try the sample, and print the table; the file is complete after each mutant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="where the records go")
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=240.0, help="of tests for one mutant")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--merge", action="store_true", help="continue with the file's map and records")
    asked = parser.parse_args(arguments)
    record: dict[str, Any] = {"seed": asked.seed, "coverage": {}, "mutants": []}
    if asked.merge and asked.json.exists():
        record = json.loads(asked.json.read_text())
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(asked.workers) as workers:
        copies = queue.SimpleQueue[Path]()
        for number in range(asked.workers):
            copies.put(copy_of_repository(Path(folder) / str(number)))
        saving = threading.Lock()

        def in_a_copy(do: Callable[[Path], str]) -> None:
            copy = copies.get()
            try:
                print(do(copy), flush=True)
                with saving:
                    asked.json.write_text(json.dumps(record) + "\n")
            finally:
                copies.put(copy)

        def measure(name: str, copy: Path) -> str:
            record["coverage"][name] = coverage_of(copy, name)._asdict()
            return f"coverage of {name}"

        def attempt(mutant: Mutant, copy: Path) -> str:
            verdict = try_mutant(copy, mutant, tests, asked.seconds)
            record["mutants"].append(verdict)
            return f"{mutant}: {verdict['certificate'] or verdict['tests'] or 'NOT CAUGHT'}"

        unknown = [name for name in test_files() if name not in record["coverage"]]
        list(workers.map(in_a_copy, [partial(measure, name) for name in unknown]))
        tests = {name: Covered(**entry) for name, entry in record["coverage"].items()}
        done = {(r["path"], r["start"], r["after"]) for r in record["mutants"]}
        mutants = [m for m in sample(asked.sample, asked.seed) if (m.path, m.start, m.after) not in done]
        list(workers.map(in_a_copy, [partial(attempt, mutant) for mutant in mutants]))
    print(table(record["mutants"]))


if __name__ == "__main__":
    main(sys.argv[1:])
