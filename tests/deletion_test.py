"""Everything works without any one part that only adds something: its file is deleted from a copy of the package.

For each row nothing else imports the part, and without it `trivium --help` and the tests of the row pass. To protect
another part, add a row: what is deleted, and a few quick tests that do not concern it.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import NamedTuple

import pytest

from architecture_test import ROOT, imports, source

TESTS = Path(__file__).parent
# Quick tests that concern one observer each; those of the others have to pass without it.
OBSERVERS = {
    "corruption": "corruption_test.py::test_the_majority_is_right_and_without_one_nobody_is",
    "measured_step": "measured_step_test.py",
    "profile": "profile_test.py::test_what_is_named_for_a_trace_is_as_it_was_afterwards_also_when_a_step_fails",
    "saves": "saves_test.py",
    "slow": "slow_test.py::test_link_is_slow_if_all_members_wait",
}


class Row(NamedTuple):
    """A file or folder below src/trivium, and tests that pass without it."""

    deleted: str
    tests: tuple[str, ...]


def rows() -> Iterator[Row]:
    for path in sorted((ROOT / "training/observers").glob("[a-z]*.py")):
        others = [f"training/observers/{test}" for name, test in OBSERVERS.items() if name != path.stem]
        yield Row(f"training/observers/{path.name}", ("training/loop_test.py", *others))
    rules = set((ROOT / "optim/rules").glob("[a-z]*.py")) - {ROOT / "optim/rules/adamw.py"}
    terms = set((ROOT / "objectives/terms").glob("[a-z]*.py"))
    trained = ("training/loop_test.py", "training/same_work_test.py")
    of_rules = (
        "optim/groups_test.py::test_groups_that_contradict_the_model_are_refused",
        "kernels/adamw_test.py::test_calls_are_of_several_slices_or_of_one",
    )
    for path in sorted([*rules, *terms, *(ROOT / "families").glob("[a-z]*.py")]):
        yield Row(str(path.relative_to(ROOT)), (*trained, *of_rules) if path in rules else trained)
    engine = (
        "model/generation_test.py",
        "model/oracle_test.py",
        "parallel/tensor/tensor_test.py",
        "optim/groups_test.py",
        "certify/certificate_test.py",
    )
    for folder in ("adapters", "kernels/cpu", "kernels/cuda", "comms/host_memory"):
        yield Row(folder, engine)


# What the tests import of others, which takes longer than the tests.
LIBRARIES = ["hypothesis", "pydantic", "pytest", "scipy.optimize", "scipy.stats", "torch._dynamo", "typer", "yaml"]


def run_without(copy: Path, tests: list[str], log: Path) -> None:
    """`trivium --help` and the tests, in a process that has imported nothing of the package."""
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ["PYTHONPATH"] = str(copy.parent)
    sys.path.insert(0, str(copy.parent))
    import trivium
    from trivium.cli.main import main

    assert trivium.__file__.startswith(str(copy)), trivium.__file__
    sys.argv[1:] = ["--help"]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
    sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests]))


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """Starts processes that have the libraries already."""
    context = get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    return context


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy") / "trivium"
    return shutil.copytree(ROOT, folder)  # with compiled files, whose times of modification stay valid


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.deleted)
def test_deletable_modules_are_not_imported_elsewhere(row: Row) -> None:
    gone = "trivium." + row.deleted.removesuffix(".py").replace("/", ".")
    found = [
        f"{m.path}:{node.lineno}"
        for m in source()
        if not m.path.startswith(row.deleted)
        for node, name in imports(m)
        if f"{name}.".startswith(f"{gone}.")
    ]
    assert found == []


@pytest.mark.broad
@pytest.mark.parametrize("row", rows(), ids=lambda row: row.deleted)
def test_remaining_modules_work_after_deletion(
    row: Row, processes: ForkServerContext, copy: Path, tmp_path: Path
) -> None:
    part, log = copy / row.deleted, tmp_path / "log"
    hidden = part.rename(tmp_path / "hidden")
    try:
        done = processes.Process(target=run_without, args=(copy, [str(TESTS / test) for test in row.tests], log))
        done.start()
        done.join()
    finally:
        hidden.rename(part)
    assert done.exitcode == 0, log.read_text()[-6000:]
