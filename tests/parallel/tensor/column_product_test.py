"""A column-split product is the whole one, cut; it keeps this rank's positions; its backward talks beside products."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from put_off import backward
from ranks import ranks
from trivium.comms.group import PendingResult
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.kernels.arithmetic import Arithmetic
from trivium.kernels.operations import operations_of
from trivium.parallel.tensor import column_product, weight_gradients
from trivium.parallel.tensor.regions import Region
from trivium.parallel.tensor.weight_gradients import WeightGradients
from trivium.plan.layout import Layout

POSITIONS, SEQUENCES, INPUTS, OUTPUTS = 12, 3, 5, 7

PRODUCTS = operations_of("cpu").products


def whole_numbers(seed: int, *shape: int) -> torch.Tensor:
    """Sums of products of such numbers are exact, whatever their order."""
    return torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(seed)).double()


def region_of(place: Place, *, split: bool, separate: bool = False, arithmetic: Arithmetic = PRODUCTS) -> Region:
    later = WeightGradients()
    later.separate = separate
    group = Mesh.connect(Layout(tensor=place.world_size), place.rank, place.world_size).tensor
    return Region(group, split, arithmetic, later)


@ranks(2, 3)
def test_results_and_gradients_are_those_of_the_whole_product(place: Place) -> None:
    size, rank = place.world_size, place.rank
    x = whole_numbers(0, POSITIONS, SEQUENCES, INPUTS)
    bias = whole_numbers(1, OUTPUTS)
    for split, separate, stacked in itertools.product((False, True), repeat=3):
        shape = (2, OUTPUTS, INPUTS) if stacked else (OUTPUTS, INPUTS)
        every = [whole_numbers(10 + r, *shape).flatten(0, -2) for r in range(size)]
        grads = [whole_numbers(20 + r, POSITIONS, SEQUENCES, len(every[r])) for r in range(size)]
        expected = sum(grads[r] @ every[r] for r in range(size))
        region = region_of(place, split=split, separate=separate)

        mine = x.chunk(size)[rank] if split else x
        mine = mine.clone().requires_grad_()
        weight = torch.nn.Parameter(every[rank].view(shape).clone())
        added = None if stacked else torch.nn.Parameter(bias.clone())
        y = region.column_product(mine, weight, added)
        assert torch.equal(y, x @ every[rank].T + (0 if added is None else bias))
        backward(y, grads[rank], region.weight_gradients)

        told = f"split {split}, apart {separate}, stacked {stacked}"
        assert torch.equal(mine.grad, expected.chunk(size)[rank] if split else expected), told
        of_weight = torch.einsum("sbo,sbi->oi", grads[rank], x)
        assert weight.grad is not None and torch.equal(weight.grad, of_weight.view(shape)), told
        assert added is None or torch.equal(added.grad, grads[rank].sum((0, 1))), told


@ranks(2)
def test_only_the_ranks_own_positions_are_kept(place: Place) -> None:
    for separate in (False, True):
        region = region_of(place, split=True, separate=separate)
        x = whole_numbers(0, POSITIONS // 2, SEQUENCES, INPUTS).requires_grad_()
        weight = torch.nn.Parameter(whole_numbers(1, OUTPUTS, INPUTS))
        kept: list[int] = []

        def pack(t: torch.Tensor, kept: list[int] = kept) -> torch.Tensor:
            kept.append(t.numel())
            return t

        with saved_tensors_hooks(pack, lambda t: t):
            y = region.column_product(x, weight)
        assert sorted(kept) == sorted([x.numel(), weight.numel()])
        if separate:
            inputs = [getattr(node, "variable", None) for node, _ in y.grad_fn.next_functions]
            assert not any(t is weight for t in inputs)  # else every backward would report its gradient
            with region.weight_gradients.put_off("key"):
                y.backward(torch.ones_like(y))
            assert region.weight_gradients.bytes == 8 * (y.numel() + x.numel())
            assert not any(p.x.requires_grad for p in region.weight_gradients._waiting["key"])
            region.weight_gradients.finish("key", lambda parameter: None)


@ranks(2)
def test_messages_are_under_way_beside_the_products(place: Place) -> None:
    with pytest.MonkeyPatch.context() as patch:
        said, arithmetic = recorded(patch)
        region = region_of(place, split=True, arithmetic=arithmetic)
        x = whole_numbers(0, POSITIONS // 2, SEQUENCES, INPUTS).requires_grad_()
        y = region.column_product(x, torch.nn.Parameter(whole_numbers(1, OUTPUTS, INPUTS)))
        y.backward(torch.ones_like(y))
    assert said == [
        "begin all_gather",
        "gradient_of_inputs",
        "begin reduce_scatter",
        "wait all_gather",
        "gradient_of_weight",
        "wait reduce_scatter",
    ]


@ranks(2)
def test_of_put_off_products_the_next_is_gathered_beside_this_one(place: Place) -> None:
    with pytest.MonkeyPatch.context() as patch:
        said, arithmetic = recorded(patch)
        region = region_of(place, split=True, separate=True, arithmetic=arithmetic)
        x = whole_numbers(0, POSITIONS // 2, SEQUENCES, INPUTS).requires_grad_()
        for seed in (1, 2):
            y = region.column_product(x, torch.nn.Parameter(whole_numbers(seed, OUTPUTS, INPUTS)))
            with region.weight_gradients.put_off(seed):
                y.backward(torch.ones_like(y))
        both = [product for seed in (1, 2) for product in region.weight_gradients._waiting.pop(seed)]
        region.weight_gradients._waiting["both"] = both
        said.clear()
        region.weight_gradients.finish("both", lambda parameter: None)
    begin, wait, product = "begin all_gather", "wait all_gather", "gradient_of_weight"
    assert said == [begin, begin, wait, product, wait, product]


def recorded(patch: pytest.MonkeyPatch) -> tuple[list[str], Arithmetic]:
    """Return a log of messages that begin and end and of products, in order, and the arithmetic that writes to it."""
    said: list[str] = []

    def saying(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            said.append(name)
            return original(*arguments)

        return call

    def beginning(name: str, original: Callable[..., PendingResult]) -> Callable[..., PendingResult]:
        def begin(*arguments: Any) -> PendingResult:
            said.append(f"begin {name}")
            pending = original(*arguments)
            pending.wait = saying(f"wait {name}", pending.wait)
            return pending

        return begin

    for module in (column_product, weight_gradients):
        for name in ("all_gather", "reduce_scatter"):
            if hasattr(module, f"{name}_begin"):
                patch.setattr(module, f"{name}_begin", beginning(name, getattr(module, f"{name}_begin")))
    noted = {name: saying(name, getattr(PRODUCTS, name)) for name in ("gradient_of_inputs", "gradient_of_weight")}
    return said, PRODUCTS._replace(**noted)
