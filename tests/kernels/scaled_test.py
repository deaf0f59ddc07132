"""Laws of products of 8-bit numbers with scales."""

from itertools import product
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import ScalingType

from trivium.kernels.arithmetic import Arithmetic
from trivium.kernels.cuda import scaled
from trivium.kernels.cuda.scaled import product_by_blocks, scaled_product
from trivium.kernels.float8 import E4M3, E5M2
from trivium.kernels.operations import operations_of
from trivium.kernels.scaled import (
    GRANULARITIES,
    Earlier,
    Operand,
    Quantised,
    ScaledProducts,
    Scaling,
    Step,
    product_of_values,
    spread,
)

Tensor = torch.Tensor
RECIPES = ("tensor", "row", "block")


def products(recipe: str, gradients: Any = E5M2, **more: Any) -> ScaledProducts:
    scaling = Scaling(GRANULARITIES[recipe], (E4M3, E4M3, gradients), **{"block": 4, **more})
    return ScaledProducts(Arithmetic(), scaling, product_of_values)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("power_of_two", [False, True])
def test_rounding_errors_keep_the_bounds_of_the_format(recipe: str, power_of_two: bool) -> None:
    x = drawn(10, 11) * 2.0 ** drawn(10, 11, seed=1).mul(6).round()
    q = products(recipe, power_of_two=power_of_two).quantised(x, "activations", "TI")
    steps = spread(q.inverse, x.shape, 4)
    assert bool(((q.values() - x).abs() <= torch.maximum(x.abs() / 16, steps * E4M3.least / 2) * (1 + 1e-6)).all())
    assert bool((q.codes.float().abs() <= 448).all()) and float(q.codes.float().abs().max()) > 448 / 2 - 1
    if power_of_two:
        assert bool((torch.frexp(q.inverse).mantissa == 0.5).all())


@pytest.mark.parametrize("recipe", RECIPES)
def test_codes_do_not_change_with_a_power_of_two_and_zero_stays_zero(recipe: str) -> None:
    x, of = drawn(8, 12), products(recipe)
    codes = of.quantised(x, "activations", "TI").codes.float()
    assert torch.equal(of.quantised(x * 2.0**-9, "activations", "TI").codes.float(), codes)
    assert bool((of.quantised(torch.zeros(8, 12), "gradients", "TO").values() == 0).all())


@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize(("recipe", "bad"), product((*RECIPES, "delayed"), (torch.nan, torch.inf, -torch.inf)))
def test_numbers_that_are_not_finite_become_nan_and_are_never_clamped(
    recipe: str, bad: float, power_of_two: bool
) -> None:
    x = drawn(8, 8)
    x[3, 5] = bad
    of = products("tensor" if recipe == "delayed" else recipe, power_of_two=power_of_two)
    if recipe == "delayed":
        of = delayed(of, past=[3.0, 1.0, 1.0])
    for operand in ("activations", "gradients"):
        assert bool(of.quantised(x, operand, "TI").codes.float()[3, 5].isnan())


def test_scales_are_of_the_tensor_the_row_and_the_block() -> None:
    x = drawn(8, 12)
    shapes = {
        (recipe, operand): tuple(products(recipe).quantised(x, operand, "TI").inverse.shape)
        for recipe, operand in product(RECIPES, ("activations", "weights"))
    }
    assert shapes == {
        ("tensor", "activations"): (1, 1),
        ("tensor", "weights"): (1, 1),
        ("row", "activations"): (8, 1),
        ("row", "weights"): (8, 1),
        ("block", "activations"): (8, 3),
        ("block", "weights"): (2, 3),
    }
    blocks = products("block").quantised(x, "weights", "OI").inverse * 448
    assert torch.allclose(blocks[1, 2], x[4:8, 8:12].abs().max())
    ragged = products("block").quantised(x[:7, :10], "weights", "OI").inverse * 448
    assert torch.allclose(ragged[1, 2], x[4:7, 8:10].abs().max())


@pytest.mark.parametrize(("recipe", "gradients"), product(RECIPES, (E4M3, E5M2)))
def test_three_products_are_those_of_each_operand_rounded_along_its_sum(recipe: str, gradients: Any) -> None:
    of = products(recipe, gradients)
    x, w, g = (drawn(*shape, seed=n, dtype=torch.float64) for n, shape in enumerate([(3, 2, 8), (12, 8), (3, 2, 12)]))
    a, b, bias = x.clone().requires_grad_(), w.clone().requires_grad_(), drawn(12, seed=5).double().requires_grad_()
    y = of.product(a, b, bias)
    y.backward(g)

    def values(t: Tensor, operand: Operand) -> Tensor:
        return of.quantised(t, operand, "TI").values()

    rows, grads = x.flatten(0, 1), g.flatten(0, 1)
    expected = values(rows, "activations") @ values(w, "weights").T + bias
    assert torch.allclose(y.flatten(0, 1), expected, rtol=1e-14, atol=1e-14)
    assert torch.allclose(a.grad.flatten(0, 1), values(grads, "gradients") @ values(w.T, "weights").T, rtol=1e-13)
    by_weight = values(grads.T, "gradients") @ values(rows.T, "activations").T
    assert torch.allclose(b.grad, by_weight, rtol=1e-13, atol=1e-14) and torch.allclose(bias.grad, grads.sum(0))
    if recipe == "row":  # a scale of each column is not one of each row
        assert not torch.equal(values(w.T, "weights"), values(w, "weights").T)


@pytest.mark.parametrize("recipe", RECIPES)
def test_gradients_are_added_to_wider_sums_without_being_rounded(recipe: str) -> None:
    of = products(recipe).arithmetic()
    grad, x = drawn(6, 4, dtype=torch.bfloat16), drawn(6, 8, seed=1, dtype=torch.bfloat16)
    into = drawn(4, 8, seed=2)
    exact = products(recipe)._of_weight(grad, x, torch.float32)
    expected = into + exact
    of.add_gradient_of_weight(into, grad, x)
    assert torch.equal(into, expected) and of.widens(grad, torch.float32)
    of.add_gradient_of_weight(into, grad, x, first=True)
    assert torch.equal(into, exact)
    assert torch.equal(of.gradient_of_weight(grad, x), exact.bfloat16())


@pytest.mark.parametrize(("recipe", "shape"), product(("tensor", "row"), ((32, 48, 64), (5, 3, 7), (33, 17, 20))))
def test_torchs_kernel_of_codes_equals_the_product_of_their_values(recipe: str, shape: tuple[int, int, int]) -> None:
    M, N, K = shape
    of = products(recipe)
    for operand in ("activations", "gradients"):
        a = of.quantised(drawn(M, K), operand, "TI")
        b = of.quantised(drawn(N, K, seed=1), "weights", "OI")
        expected = product_of_values(a, b, torch.float32)
        rows = recipe == "row"
        inverses = (a.inverse, b.inverse.T.contiguous()) if rows else (a.inverse.view(()), b.inverse.view(()))
        kernel = torch._scaled_mm(a.codes, b.codes.T, *inverses, out_dtype=torch.float32)
        assert torch.allclose(kernel, expected, rtol=1e-5, atol=1e-5)
        # With its padding, and the only dtype that the kernel of GPUs has for rows.
        padded = scaled_product(a, b, torch.bfloat16)
        assert torch.allclose(padded.float(), expected, rtol=2e-2, atol=2e-2)
        assert torch.allclose(operations_of("cpu").scaled_product(a, b, torch.float32), expected, rtol=1e-5, atol=1e-5)


def multiplied(a: Tensor, b: Tensor, of_a: Any, by_a: Any, _: Any, of_b: Any, by_b: Any, *more: Any) -> Tensor:
    """The kernel of cuBLAS for blocks, by its documented shapes and strides."""

    def fake(x: Tensor) -> Tensor:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")

    with FakeTensorMode():  # torch's own check of the shapes
        given = fake(a), fake(b), [fake(of_a[0])], by_a, [], [fake(of_b[0])], by_b, *more
        assert torch.ops.aten._scaled_mm_v2(*given).dtype == more[-1]
    (of_a,), (of_b,), (recipe_a,), (recipe_b,) = of_a, of_b, map(ScalingType, by_a), map(ScalingType, by_b)
    (M, K), (_, N), one = a.shape, b.shape, ScalingType.BlockWise1x128
    columns = K // 128
    assert recipe_a == one and M % 16 == 0 and b.stride(0) == 1
    assert (of_a.shape, of_a.stride()) == ((M, columns), (1, M))
    wide = -(-columns // 4) * 4
    assert (of_b.shape, of_b.stride()) == (((N, columns), (1, N)) if recipe_b == one else ((wide, N // 128), (1, wide)))
    right = of_b if recipe_b == one else of_b[:columns].T.repeat_interleave(128, 0)
    left = a.float() * of_a.repeat_interleave(128, 1)
    return (left @ (b.float().T * right.repeat_interleave(128, 1)).T).to(more[-1])


@pytest.mark.parametrize("shape", [(128, 256, 512), (5, 384, 640), (17, 128, 256)])
@pytest.mark.parametrize("operand", ["weights", "activations"])
def test_blocks_reach_the_kernel_of_hopper_as_it_wants_them(monkeypatch, shape: Any, operand: Operand) -> None:
    M, N, K = shape
    of = products("block", E4M3, block=128)
    a, b = of.quantised(drawn(M, K), "gradients", "TO"), of.quantised(drawn(N, K, seed=1), operand, "IO")
    expected = product_of_values(a, b, torch.float32)
    monkeypatch.setattr(scaled, "multiply", multiplied)
    assert torch.allclose(product_by_blocks(a, b, torch.float32), expected, rtol=1e-5, atol=1e-4)
    monkeypatch.setattr(scaled, "_takes_blocks", lambda *_: False)  # an earlier or later GPU
    assert torch.equal(scaled_product(a, b, torch.float32), expected)


def test_blocks_of_several_rows_are_no_scales_of_rows() -> None:
    of = products("block")
    a, b = of.quantised(drawn(6, 4), "activations", "TI"), of.quantised(drawn(8, 4), "weights", "OI")
    assert b.inverse.shape == (2, 1)
    assert torch.equal(scaled_product(a, b, torch.float32), product_of_values(a, b, torch.float32))


@pytest.mark.gpu
@pytest.mark.parametrize(("recipe", "gradients"), product(RECIPES, (E4M3, E5M2)))
@pytest.mark.parametrize("shape", [(48, 256, 384), (300, 128, 128), (33, 17, 20)])
def test_a_gpu_multiplies_codes_as_what_they_stand_for(recipe: str, gradients: Any, shape: Any) -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no GPU with 8-bit units on this machine")
    M, N, K = shape
    of = products(recipe, gradients, block=128)
    a = of.quantised(drawn(M, K).cuda(), "gradients", "TO")
    for operand in ("weights", "activations"):
        b = of.quantised(drawn(N, K, seed=1).cuda(), operand, "IO")
        expected = product_of_values(a, b, torch.float64)
        found = scaled_product(a, b, torch.bfloat16).double()
        assert torch.allclose(found, expected, rtol=1e-2, atol=1e-2 * float(expected.std()))


@pytest.mark.parametrize("recipe", RECIPES)
def test_products_of_no_rows_are_empty_or_zero(recipe: str) -> None:
    of = products(recipe)
    x, w, g = drawn(0, 8), drawn(4, 8), drawn(0, 4)
    assert of.product(x, w).shape == (0, 4) and of.gradient_of_inputs(g, w).shape == (0, 8)
    assert torch.equal(of.gradient_of_weight(g, x), torch.zeros(4, 8))


def delayed(of: ScaledProducts, past: list[float] | None = None) -> ScaledProducts:
    step = Step(has_past=past is not None, collects=True)
    earlier = Earlier(torch.tensor(past or [0.0] * 3), torch.zeros(3), step)
    return ScaledProducts(of.own, of.scaling, of.multiply, earlier=earlier)


def test_a_planted_outlier_reaches_a_delayed_scale_one_step_later() -> None:
    x = drawn(16, 16).clamp(-3, 3)
    planted = x.clone()
    planted[:, 7] *= 100
    now, later = products("tensor"), delayed(products("tensor"), past=[3.0, 1.0, 1.0])

    def error(q: Quantised) -> float:
        return float((q.values() - planted).abs().max() / planted.abs().max())

    assert error(now.quantised(planted, "activations", "TI")) < 1 / 16
    assert error(later.quantised(planted, "activations", "TI")) > 0.9, "it is clamped in the step in which it appears"
    assert later.earlier is not None and float(later.earlier.seen[0]) == float(planted.abs().max())
    later.earlier.past.copy_(later.earlier.seen)
    assert error(later.quantised(planted, "activations", "TI")) < 1 / 16


def test_delayed_scales_are_current_in_the_first_step_and_one_where_all_was_zero() -> None:
    x = drawn(8, 8)
    first, current = delayed(products("tensor")), products("tensor").quantised(x, "activations", "TI")
    assert torch.equal(first.quantised(x, "activations", "TI").inverse, current.inverse)
    assert first.earlier is not None and float(first.earlier.seen[0]) == float(x.abs().max())
    none = delayed(products("tensor"), past=[0.0, 0.0, 0.0])
    assert float(none.quantised(x, "activations", "TI").inverse) == 1
    none.earlier.step.collects = False
    none.quantised(2 * x, "activations", "TI")
    assert float(none.earlier.seen[0]) == float(x.abs().max()), "evaluation is not remembered"
