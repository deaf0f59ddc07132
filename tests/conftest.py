"""Ranks of tests are forked, and autograd refuses to work in a child of a process that has threads for a device."""

import gc
import os
import subprocess
import sys

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Hide accelerators from all but the tests that are for them, and let autograd start while it sees none.

    One thread: models of tests are too small to be divided, and several tests run at a time. Compiled Python is kept,
    also where the environment says otherwise: tests start some hundred processes, and each would compile every file.
    """
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if "not gpu" not in config.option.markexpr:
        return
    os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    import torch  # reads them
    from hypothesis import settings

    # How long an example takes says what else the machine does.
    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")
    torch.ones(1, requires_grad=True).backward()


def pytest_sessionstart(session: pytest.Session) -> None:
    """In CI, begin to compile the kernels of a corpus while several processes collect tests, so that none waits."""
    option = session.config.option
    is_parallel = getattr(option, "numprocesses", None) and not hasattr(session.config, "workerinput")
    if is_parallel and "not broad" not in option.markexpr:
        code = "from trivium.corpus.kernels.warm_up import compile_once; compile_once()"
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture(scope="module", autouse=True)
def what_is_there_stays() -> None:
    """Before every fork the collector looks through what was made since: of a million objects, which some hundred tests
    and the libraries that they import leave, that takes a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def kernels() -> None:
    """The kernels of a corpus, compiled by the first process that asks: the others wait instead of doing the same,
    which takes each a minute and more on a new checkout."""
    from trivium.corpus.kernels.warm_up import warm_up

    warm_up()
