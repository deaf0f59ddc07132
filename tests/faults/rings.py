"""Faults of products in a ring of tensor ranks."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from faults.mutant import fault, plan
from trivium.comms.group import Group
from trivium.parallel.tensor import column_product, ring, row_product

Tensor = torch.Tensor
THREE = {"heads": 3, "hidden": 12, "sequence": 9}
RING = plan(tensor=3, sequence_parallel=True, overlap_tensor=True, model=THREE)
PUT_OFF = plan(tensor=3, sequence_parallel=True, overlap_tensor=True, schedule="1f1b-split", model=THREE)


@fault(ring, "_arriving", RING)
def pieces_in_each_others_place(original, mesh):
    """The pieces of two other ranks are gathered into each other's place."""

    def arriving(whole: Tensor, group: Group) -> Iterator[slice]:
        own, one, other = original(whole, group)
        whole[one], whole[other] = whole[other].clone(), whole[one].clone()
        yield from (own, one, other)

    return arriving


@fault(ring, "rotate_begin", RING)
def arrived_sum_added_twice(original, mesh):
    """What has arrived for a piece of a sum is added to it twice."""

    def rotate_begin(tensors: Any, group: Group, into: Any = None) -> Callable[[], Any]:
        finish = original(tensors, group, into=into)
        return finish if into is not None else lambda: tuple(2 * x for x in finish())

    return rotate_begin


@fault(row_product, "scattered_product", RING)
def own_piece_left_out(original, mesh):
    """A rank passes on the sums of others, and forgets its own contribution to its own positions."""

    def scattered_product(x: Tensor, group: Group, multiply: ring.Multiply) -> Tensor:
        x = x.clone()
        x.chunk(group.size)[group.index].zero_()
        return original(x, group, multiply)

    return scattered_product


@fault(ring, "rotate_begin", RING)
def piece_multiplied_before_it_has_arrived(original, mesh):
    """The wait for a piece is missing, so that the product reads what was in the buffer before."""

    def rotate_begin(tensors: Any, group: Group, into: Any = None) -> Callable[[], Any]:
        def finish() -> Any:
            arrived = wait()
            return arrived if into is None else tuple(x.zero_() for x in arrived)

        wait = original(tensors, group, into=into)
        return finish

    return rotate_begin


@fault(ring, "rotate_begin", PUT_OFF)
def sum_passed_on_before_it_has_arrived(original, mesh):
    """The wait for a sum is missing, so that each rank keeps its own contribution and that of nobody else."""

    def rotate_begin(tensors: Any, group: Group, into: Any = None) -> Callable[[], Any]:
        finish = original(tensors, group, into=into)
        return finish if into is not None else lambda: tuple(x.zero_() for x in finish())

    return rotate_begin


@fault(column_product, "scattered_product", PUT_OFF)
def put_off_entry_not_reduced(original, mesh):
    """Where weight gradients are actions of their own, the gradient of the inputs of a column-split product is not
    summed over the ring."""
    return lambda x, group, multiply: multiply(x.chunk(group.size)[group.index])


@fault(row_product, "gathered_product", RING)
def gradient_of_own_positions_only(original, mesh):
    """The weight gradient of a row-split product takes the gradients of this rank's positions, and zeros for those that
    came round the ring."""

    def gathered_product(x: Tensor, group: Group, multiply: ring.Multiply) -> tuple[Tensor, Tensor]:
        product, whole = original(x, group, multiply)
        own = torch.zeros_like(whole)
        own.chunk(group.size)[group.index].copy_(x)
        return product, own

    return gathered_product
