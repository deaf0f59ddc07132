"""Products in a ring equal those next to full messages, forward and backward, with weight gradients deferred or not."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from parallel.row_chunks_test import Square, whole_numbers
from put_off import backward
from ranks import ranks
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.kernels.arithmetic import Arithmetic
from trivium.parallel.tensor import ring
from trivium.parallel.tensor.regions import Region
from trivium.parallel.tensor.ring import gathered_product, scattered_product
from trivium.parallel.tensor.weight_gradients import WeightGradients
from trivium.plan.layout import Layout

POSITIONS, SEQUENCES, INPUTS, OUTPUTS = 12, 3, 5, 7


def mesh_of(place: Place) -> Mesh:
    return Mesh.connect(Layout(tensor=place.world_size), place.rank, place.world_size)


def outcome(region: Region, *, frozen: bool, again: bool, rank: int) -> list[torch.Tensor | None]:
    """Return a row-split product of the squares of a column-split one, and all gradients; weights' may be deferred."""
    mine, here = torch.Generator().manual_seed(rank), POSITIONS // region.group.size
    x = whole_numbers(mine, here, SEQUENCES, INPUTS).requires_grad_()
    up, bias, down = whole_numbers(mine, OUTPUTS, INPUTS), whole_numbers(mine, OUTPUTS), whole_numbers(mine, 4, OUTPUTS)
    weights = [torch.nn.Parameter(w, requires_grad=not frozen) for w in (up, bias, down)]
    y = region.column_product(x, weights[0], weights[1])
    y = region.row_product(y, weights[2], Square()) if again else region.row_product(y, weights[2])
    backward(y, whole_numbers(mine, here, SEQUENCES, 4), region.weight_gradients)
    return [y.detach(), x.grad, *(w.grad for w in weights)]


@ranks(2, 3, 4)
def test_products_in_a_ring_are_exactly_those_beside_whole_messages(place: Place) -> None:
    group = mesh_of(place).tensor
    for separate, frozen, again in itertools.product((False, True), repeat=3):
        found = []
        for in_ring in (False, True):
            later = WeightGradients()
            later.separate = separate
            region = Region(group, True, Arithmetic(), later, ring=in_ring)
            found.append(outcome(region, frozen=frozen, again=again, rank=place.rank))
        told = f"apart {separate}, frozen {frozen}, squared again {again}"
        for a, b in zip(*found, strict=True):
            assert (a is None) == (b is None) == (frozen and a is None), told
            assert a is None or torch.equal(a, b), told


@ranks(3)
def test_contributions_are_added_in_the_order_of_the_ring(place: Place) -> None:
    group, size = mesh_of(place).tensor, place.world_size
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        parts = [torch.randn(6, 2, generator=torch.Generator().manual_seed(r)).to(dtype) for r in range(size)]
        found = scattered_product(parts[place.rank], group, torch.clone)
        own = [part.chunk(size)[place.rank] for part in parts]
        expected = own[(place.rank + 1) % size].clone()
        for step in range(2, size + 1):
            expected = expected + own[(place.rank + step) % size]
        assert torch.equal(found, expected), dtype


@ranks(3)
def test_each_piece_but_one_travels_beside_a_product(place: Place) -> None:
    """A message starts before the product of another piece, and is awaited after it."""
    group, told = mesh_of(place).tensor, list[str]()

    def rotate_begin(tensors: Any, group: Any, into: Any = None) -> Callable[[], Any]:
        told.append("begin")
        finish = original(tensors, group, into=into)

        def wait() -> Any:
            told.append("wait")
            return finish()

        return wait

    def multiply(piece: torch.Tensor) -> torch.Tensor:
        told.append("product")
        return piece * 2

    original = ring.rotate_begin
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring, "rotate_begin", rotate_begin)
        gathered_product(torch.ones(2, 3), group, multiply)
        assert told == ["begin", "product", "wait", "begin", "product", "wait", "product"]
        told.clear()
        scattered_product(torch.ones(6, 3), group, multiply)
        assert told == ["product", "begin", "product", "wait", "begin", "product", "wait"]
    assert group.traffic == {"send": 2 * 2 * 2 * 3 * 4}
