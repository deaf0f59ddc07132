"""Ranks of tests are forked, and autograd refuses to work in a child of a process that has threads for a device."""

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Hide accelerators from all but the tests that are for them, and let autograd start while it sees none."""
    if "not gpu" not in config.option.markexpr:
        return
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch  # reads it

    torch.ones(1, requires_grad=True).backward()
