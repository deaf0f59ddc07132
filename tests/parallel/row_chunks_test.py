"""A row-split product in chunks equals the uncut one, forward and backward, for any number of chunks, also if its input
is computed again."""

import itertools
from collections.abc import Callable

import torch

from put_off import backward
from ranks import ranks
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.kernels.arithmetic import Arithmetic
from trivium.parallel.tensor.regions import Region
from trivium.parallel.tensor.weight_gradients import WeightGradients
from trivium.plan.layout import Layout

POSITIONS, SEQUENCES, INPUTS, OUTPUTS = 12, 3, 5, 7
CHUNKS = (2, 3, 4, 5, 12, 100)


def whole_numbers(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Draw integers, whose sums of products are exact in any order."""
    return torch.randint(-9, 10, shape, generator=generator).double()


class Square:
    """An activation function that maps integers to integers."""

    def value(self, x: torch.Tensor) -> torch.Tensor:
        return x * x

    def value_again(self, x: torch.Tensor) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
        return x * x, lambda grad: 2 * x * grad


def outcome(
    region: Region, x: torch.Tensor, values: torch.Tensor, grad: torch.Tensor, *, again: bool = False
) -> list[torch.Tensor]:
    """Return the product of squares, and the gradients of the input and of the weight; the latter may be deferred."""
    x, weight = x.clone().requires_grad_(), torch.nn.Parameter(values.clone())
    y = region.row_product(x, weight, Square()) if again else region.row_product(x * x, weight)
    backward(y, grad, region.weight_gradients)
    assert x.grad is not None and weight.grad is not None
    return [y.detach(), x.grad, weight.grad]


@ranks(2, 3)
def test_any_number_of_chunks_gives_exactly_the_uncut_product(place: Place) -> None:
    group = Mesh.connect(Layout(tensor=place.world_size), place.rank, place.world_size).tensor
    mine = torch.Generator().manual_seed(place.rank)
    x, values = whole_numbers(mine, POSITIONS, SEQUENCES, INPUTS), whole_numbers(mine, OUTPUTS, INPUTS)
    for split in (False, True):
        here = POSITIONS // place.world_size if split else POSITIONS
        # If every rank has the full sum, all have the same gradient of it.
        shared = torch.Generator().manual_seed(place.rank if split else 99)
        grad = whole_numbers(shared, here, SEQUENCES, OUTPUTS)
        for separate in (False, True):

            def region(chunks: int, split: bool = split, separate: bool = separate) -> Region:
                later = WeightGradients()
                later.separate = separate
                return Region(group, split, Arithmetic(), later, row_chunks=chunks)

            uncut = outcome(region(1), x, values, grad)
            for chunks, again in itertools.product((1, *CHUNKS), (False, True)):
                found = outcome(region(chunks), x, values, grad, again=again)
                told = f"{chunks} chunks, split {split}, apart {separate}, squared again {again}"
                assert all(torch.equal(a, b) for a, b in zip(found, uncut, strict=True)), told


@ranks(2)
def test_the_bytes_handed_over_do_not_depend_on_the_number_of_chunks(place: Place) -> None:
    counted = []
    for chunks in (1, *CHUNKS):
        group = Mesh.connect(Layout(tensor=2), place.rank, 2).tensor
        region = Region(group, True, Arithmetic(), row_chunks=chunks)
        generator = torch.Generator().manual_seed(0)
        grad = torch.ones(POSITIONS // 2, SEQUENCES, OUTPUTS, dtype=torch.float64)
        outcome(
            region,
            whole_numbers(generator, POSITIONS, SEQUENCES, INPUTS),
            whole_numbers(generator, OUTPUTS, INPUTS),
            grad,
        )
        counted.append(dict(group.traffic))
    assert all(found == counted[0] for found in counted)
