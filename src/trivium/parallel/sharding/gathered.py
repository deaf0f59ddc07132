"""Modules get the weights of other ranks when they need them.

At ZeRO stage 3 weights are whole only around the module that uses them, forward and backward; while one module
computes, the next one's weights are already on their way. At stages 1 and 2 the weights that other ranks have updated
arrive on accelerators while earlier modules compute the next forward.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from trivium.kernels.host_activations import AtBackward
from trivium.parallel.sharding.buckets import Bucket

Tensor = torch.Tensor


class User(NamedTuple):
    """A module and the buckets it reads; in_backward: whether its backward reads them too."""

    module: torch.nn.Module
    buckets: tuple[Bucket, ...]
    in_backward: bool


def gather_around(users: Sequence[User]) -> None:
    """Hook the modules of a stage, in the order in which they run."""
    for number, user in enumerate(users):
        following = users[number + 1].buckets if number + 1 < len(users) else ()
        before = users[number - 1] if number > 0 else None
        preceding = before.buckets if before is not None and before.in_backward else ()
        user.module.register_forward_pre_hook(_enter(user, following))
        user.module.register_forward_hook(_leave(user, preceding))


def wait_before(users: Sequence[User]) -> None:
    """Hook the modules of a stage at ZeRO stages 1 and 2."""
    for user in users:
        user.module.register_forward_pre_hook(_wait(user.buckets))


def _wait(buckets: tuple[Bucket, ...]) -> Callable[[torch.nn.Module, Any], None]:
    def wait(module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        for bucket in buckets:
            bucket.published()

    return wait


def _enter(user: User, following: tuple[Bucket, ...]) -> Callable[[torch.nn.Module, Any], Any]:
    def enter(module: torch.nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        _hold(user.buckets, following)
        if not user.in_backward:
            return arguments
        x, *rest = arguments
        return (*AtBackward.apply(lambda: _drop(user.buckets), x), *rest)

    return enter


def _leave(user: User, preceding: tuple[Bucket, ...]) -> Callable[[torch.nn.Module, Any, Any], Any]:
    def leave(module: torch.nn.Module, arguments: tuple[Any, ...], output: Tensor | dict[str, Tensor]) -> Any:
        _drop(user.buckets)
        if not user.in_backward:
            return output
        tensors = (output,) if isinstance(output, Tensor) else tuple(output.values())
        first, *others = AtBackward.apply(lambda: _hold(user.buckets, preceding), *tensors)
        return first if isinstance(output, Tensor) else dict(zip(output, (first, *others), strict=True))

    return leave


def _hold(buckets: tuple[Bucket, ...], next_ones: tuple[Bucket, ...]) -> None:
    for bucket in buckets:
        bucket.hold()
    for bucket in next_ones:
        bucket.prefetch()


def _drop(buckets: tuple[Bucket, ...]) -> None:
    for bucket in buckets:
        bucket.drop()
