"""Nearly every test of this folder runs kernels."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def with_kernels(kernels: None) -> None:
    """Before the first test, and before the time of any."""
