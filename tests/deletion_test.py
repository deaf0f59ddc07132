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
    "energy": "energy_test.py::test_a_counter_that_wraps_goes_on_from_its_range",
    "measured_step": "measured_step_test.py",
    "profile": "profile_test.py::test_what_is_named_for_a_trace_is_as_it_was_afterwards_also_when_a_step_fails",
    "saves": "saves_test.py",
    "slow": "slow_test.py::test_link_is_slow_if_all_members_wait",
}


class Row(NamedTuple):
    """Files or folders below src/trivium, and tests that pass without them."""

    deleted: tuple[str, ...]
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.deleted)


LOOP, SAME_WORK = "training/loop_test.py", "training/same_work_test.py"
OF_RULES = (
    "optim/groups_test.py::test_groups_that_contradict_the_model_are_refused",
    "kernels/adamw_test.py::test_calls_are_of_several_slices_or_of_one",
)
ENGINE = (
    "model/generation_test.py",
    "model/oracle_test.py",
    "parallel/tensor/tensor_test.py",
    "optim/groups_test.py",
    "certify/certificate_test.py",
)
FOLDERS = ("adapters", "kernels/cpu", "kernels/cuda", "comms/host_memory")


def files_in(folder: str) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in sorted((ROOT / folder).glob("[a-z]*.py"))]


RULES = [path for path in files_in("optim/rules") if not path.endswith("adamw.py")]
OTHERS = [*files_in("objectives/terms"), *files_in("families")]


def without(*observers: str) -> Row:
    left = [f"training/observers/{test}" for name, test in OBSERVERS.items() if not _named(name, observers)]
    return Row(observers, (LOOP, *left))


def _named(name: str, observers: tuple[str, ...]) -> bool:
    return any(path.endswith(f"/{name}.py") for path in observers)


def rows() -> Iterator[Row]:
    """Each part alone."""
    yield from map(without, files_in("training/observers"))
    yield from (Row((path,), (LOOP, SAME_WORK, *OF_RULES)) for path in RULES)
    yield from (Row((path,), (LOOP, SAME_WORK)) for path in OTHERS)
    yield from (Row((folder,), ENGINE) for folder in FOLDERS)


def rows_together() -> Iterator[Row]:
    """All parts of a kind at once, and either half of the observers, which are tested without the other half."""
    observers = files_in("training/observers")
    yield without(*observers[::2])
    yield without(*observers[1::2])
    yield Row((*RULES, *OTHERS), (LOOP, SAME_WORK, *OF_RULES))
    yield Row(FOLDERS, ENGINE)


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


@pytest.mark.parametrize("row", rows(), ids=str)
def test_deletable_modules_are_not_imported_elsewhere(row: Row) -> None:
    (deleted,) = row.deleted
    gone = "trivium." + deleted.removesuffix(".py").replace("/", ".")
    found = [
        f"{m.path}:{node.lineno}"
        for m in source()
        if not m.path.startswith(deleted)
        for node, name in imports(m)
        if f"{name}.".startswith(f"{gone}.")
    ]
    assert found == []


@pytest.mark.parametrize(
    "row",
    [
        *(pytest.param(row, marks=pytest.mark.broad) for row in rows_together()),
        *(pytest.param(row, marks=pytest.mark.slow) for row in rows()),
    ],
    ids=str,
)
def test_remaining_modules_work_after_deletion(
    row: Row, processes: ForkServerContext, copy: Path, tmp_path: Path
) -> None:
    log, hidden = tmp_path / "log", []
    try:
        for number, deleted in enumerate(row.deleted):
            hidden.append(((copy / deleted).rename(tmp_path / str(number)), copy / deleted))
        done = processes.Process(target=run_without, args=(copy, [str(TESTS / test) for test in row.tests], log))
        done.start()
        done.join()
    finally:
        for moved, place in hidden:
            moved.rename(place)
    assert done.exitcode == 0, log.read_text()[-6000:]
