"""Ranks of tests are forked, and autograd refuses to work in a child of a process that has threads for a device."""

import os
from collections.abc import Iterator

import pytest

SMALL_MODELS = ("bias", "evaluation", "serving")  # folders of tests whose models are too small to share


def pytest_configure(config: pytest.Config) -> None:
    """Hide accelerators from all but the tests that are for them, and let autograd start while it sees none."""
    if "not gpu" not in config.option.markexpr:
        return
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch  # reads it

    torch.ones(1, requires_grad=True).backward()


@pytest.fixture(autouse=True)
def _on_one_thread(request: pytest.FixtureRequest) -> None:
    """Every test of those folders."""
    if request.path.relative_to(request.config.rootpath).parts[1] in SMALL_MODELS:
        request.getfixturevalue("one_thread")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For models that are too small to be divided among threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
