"""Run a test on several forked gloo processes: `@ranks(2, 4) def test_x(mesh_place): ...`."""

import functools
import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch._dynamo  # noqa: F401  # by every rank that recomputes, otherwise: seconds each

from trivium.comms.launch import Place, connected, run_ranks


def ranks(*sizes: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run the decorated function once on every rank of a job of each size, with its `place` as first argument."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @pytest.mark.parametrize("world_size", sizes)
        def test(world_size: int) -> None:
            on_ranks(world_size, function)

        # Not functools.wraps: pytest would look for the wrapped function's parameters as fixtures.
        functools.update_wrapper(test, function, assigned=("__name__", "__doc__", "__module__"), updated=())
        del test.__wrapped__
        return test

    return decorate


def on_ranks(world_size: int, function: Callable[..., None], *arguments: Any) -> None:
    """Run `function(place, *arguments)` on connected ranks.

    How long that takes depends on what else the machine does. A hang ends with the time limit of a collective, or with
    the test's own limit, which is pytest-timeout's.
    """
    run_ranks(_connect_and_call, world_size, function, *arguments)


def free_port() -> int:
    """Return a free port for the rendezvous of externally started ranks."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _connect_and_call(place: Place, function: Callable[..., None], *arguments: Any) -> None:
    with connected(place):
        function(place, *arguments)
