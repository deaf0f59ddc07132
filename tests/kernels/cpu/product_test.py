"""A product by either library is the product in fp64 as nearly as fp32 can tell, with its gradients; of bf16 numbers as
nearly as one rounding leaves it."""

import pytest
import torch
import torch.nn.functional as F

from trivium.kernels.cpu import product as products
from trivium.kernels.cpu.product import add_gradient_of_weight, gradient_of_inputs, gradient_of_weight, product

SMALL, LARGE = (3, 5, 7, 11), (2, 700, 96, 80)  # sequences, positions, inputs, outputs
# Gradients that are transposed some columns at a time, or whose inputs are in their place.
MANY = ((2, 700, 900, 400), (4, 700, 24, 900))


def data(shape: tuple[int, int, int, int], dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """x, weight, bias, and a gradient of the output."""
    draw = torch.Generator().manual_seed(sum(shape))
    B, S, inputs, outputs = shape
    sizes = ((S, B, inputs), (outputs, inputs), (outputs,), (S, B, outputs))
    return tuple(torch.randn(size, generator=draw, dtype=dtype) for size in sizes)


def is_near(found: torch.Tensor, exact: torch.Tensor) -> bool:
    return float((found.detach().double() - exact.detach()).abs().max()) <= 2e-6 * float(exact.detach().abs().max())


def is_rounded_once(found: torch.Tensor, exact: torch.Tensor) -> bool:
    """Return whether the error is that of one rounding to bf16, which has eight significant bits."""
    exact, error = exact.detach(), (found.detach().double() - exact.detach()).abs()
    return bool((error <= 2**-8 * exact.abs() + 2e-6 * exact.abs().max()).all())


@pytest.fixture()
def slowly(monkeypatch) -> None:
    """Simulate a CPU that multiplies bf16 numbers faster in fp32, with some rows of a weight at a time."""
    monkeypatch.setattr(products, "multiplies_bf16_slowly", lambda: True)
    monkeypatch.setattr(products, "MIN_MULTIPLICATIONS", 0)
    monkeypatch.setattr(products, "MIN_WIDENED", 24)
    monkeypatch.setattr(products, "WIDENED_BLOCK_ELEMENTS", 1)


@pytest.fixture()
def always(monkeypatch) -> None:
    """Use the other library even if it is not faster."""
    monkeypatch.setattr(products, "MIN_MULTIPLICATIONS", 0)
    monkeypatch.setattr(products, "mkl_multiplies_faster", lambda: False)


@pytest.mark.parametrize("shape", [SMALL, LARGE])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_product_and_its_gradients_are_those_of_fp64(shape, has_bias, always) -> None:
    x, weight, bias, grad = (t.requires_grad_() for t in data(shape))
    y = product(x, weight, bias if has_bias else None)
    y.backward(grad)
    exact = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    wanted = F.linear(exact[0], exact[1], exact[2] if has_bias else None)
    wanted.backward(grad.double())
    assert is_near(y, wanted)
    for found, other in zip((x, weight, bias)[: 2 + has_bias], exact, strict=False):
        assert is_near(found.grad, other.grad)


@pytest.mark.parametrize("shape", [SMALL, LARGE, *MANY])
def test_the_parts_of_the_backward_are_those_of_fp64_whatever_the_strides(shape, always) -> None:
    x, weight, _, grad = data(shape)
    rows, grads = x.flatten(0, 1), grad.flatten(0, 1)
    assert is_near(gradient_of_inputs(grad.transpose(0, 1), weight), grad.transpose(0, 1).double() @ weight.double())
    spread = grads[:1].expand_as(grads)
    assert is_near(gradient_of_inputs(spread, weight), spread.double() @ weight.double())
    exact = grads.double().T @ rows.double()
    assert is_near(gradient_of_weight(grads, rows), exact)
    assert is_near(gradient_of_weight(grads.T.contiguous().T, rows), exact)
    into = torch.ones_like(weight)
    add_gradient_of_weight(into, grads, rows)
    assert is_near(into, exact + 1)


@pytest.mark.parametrize("home", [True, False])
@pytest.mark.parametrize("shape", [SMALL, LARGE, *MANY])
def test_the_first_gradient_is_written_where_the_sum_is_and_nowhere_else(shape, home, monkeypatch) -> None:
    monkeypatch.setattr(products, "mkl_multiplies_faster", lambda: home)
    x, weight, _, grad = data(shape)
    rows, grads = x.flatten(0, 1), grad.flatten(0, 1)
    outputs, inputs = weight.shape
    around = torch.full((outputs, inputs + 3), torch.nan)
    for into in (torch.full_like(weight, torch.nan), around[:, 2:-1]):
        add_gradient_of_weight(into, grads, rows, first=True)
        assert is_near(into, grads.double().T @ rows.double())
    assert around[:, [0, 1, -1]].isnan().all()


def test_what_is_not_finite_stays_so(always) -> None:
    x, weight, bias, _ = data(LARGE)
    x[1, 0, 2], x[3, 1, 4] = torch.nan, torch.inf
    y = product(x, weight, bias)
    assert y[1, 0].isnan().all() and not y[3, 1].isfinite().any()
    assert y[0].isfinite().all()


def test_only_large_products_in_fp32_on_a_processor_go_to_the_other_library(monkeypatch) -> None:
    monkeypatch.setattr(products, "mkl_multiplies_faster", lambda: False)
    monkeypatch.setattr(products, "multiplies_bf16_slowly", lambda: False)
    x, weight, bias, _ = (t.requires_grad_() for t in data(LARGE))
    assert "ProductBackward" in type(product(x, weight, bias).grad_fn).__name__
    assert "ProductBackward" not in type(product(x[:5], weight, bias).grad_fn).__name__
    for dtype in (torch.float64, torch.bfloat16):
        x, weight, bias, _ = (t.requires_grad_() for t in data(LARGE, dtype))
        assert "ProductBackward" not in type(product(x, weight, bias).grad_fn).__name__


def test_where_mkl_is_the_faster_it_multiplies_everything(monkeypatch) -> None:
    monkeypatch.setattr(products, "mkl_multiplies_faster", lambda: True)
    monkeypatch.setattr(products, "_by_one_dnn", None)
    x, weight, bias, grad = data(LARGE)
    rows, grads = x.flatten(0, 1), grad.flatten(0, 1)
    assert torch.equal(product(x, weight, bias), F.linear(x, weight, bias))
    assert torch.equal(gradient_of_inputs(grad, weight), grad @ weight)
    assert torch.equal(gradient_of_weight(grads, rows), grads.T @ rows)
    into = torch.ones_like(weight)
    add_gradient_of_weight(into, grads, rows)
    assert is_near(into, grads.double().T @ rows.double() + 1)


@pytest.mark.parametrize("home", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("shape", [LARGE, *MANY])
def test_a_product_of_bf16_numbers_in_fp32_and_its_gradients_are_rounded_once(
    shape, has_bias, home, slowly, monkeypatch
) -> None:
    monkeypatch.setattr(products, "mkl_multiplies_faster", lambda: home)
    x, weight, bias, grad = (t.requires_grad_() for t in data(shape, torch.bfloat16))
    y = product(x, weight, bias if has_bias else None)
    assert "ProductBackward" in type(y.grad_fn).__name__
    y.backward(grad)
    exact = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    wanted = F.linear(exact[0], exact[1], exact[2] if has_bias else None)
    wanted.backward(grad.double())
    assert y.dtype == x.grad.dtype == weight.grad.dtype == torch.bfloat16
    assert is_rounded_once(y, wanted)
    assert is_rounded_once(x.grad, exact[0].grad) and is_rounded_once(weight.grad, exact[1].grad)


@pytest.mark.parametrize("home", [True, False])
@pytest.mark.parametrize("shape", [SMALL, LARGE, *MANY])
def test_products_of_bf16_numbers_are_not_rounded_where_they_are_added_to_an_fp32_sum(
    shape, home, slowly, monkeypatch
) -> None:
    monkeypatch.setattr(products, "mkl_multiplies_faster", lambda: home)
    x, weight, _, grad = data(shape, torch.bfloat16)
    rows, grads = x.flatten(0, 1), grad.flatten(0, 1)
    exact = grads.double().T @ rows.double()
    assert products.widens(grads, torch.float32) and not products.widens(grads, torch.bfloat16)
    into = torch.full_like(weight, torch.nan, dtype=torch.float32)
    add_gradient_of_weight(into, grads, rows, first=True)
    assert is_near(into, exact)
    add_gradient_of_weight(into, grads.T.contiguous().T, rows)
    assert is_near(into, 2 * exact)


def test_few_tokens_are_no_reason_to_widen_a_weight(slowly) -> None:
    x, weight, _, _ = data(LARGE, torch.bfloat16)
    few, many = x[: products.MIN_WIDENED_TOKENS // 2 - 1], x[: products.MIN_WIDENED_TOKENS // 2]
    assert "ProductBackward" not in type(product(few, weight.requires_grad_()).grad_fn).__name__
    assert "ProductBackward" in type(product(many, weight).grad_fn).__name__


@pytest.mark.parametrize("how", ["plain", "always", "slowly"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_that_is_written_in_place_is_the_same(request, dtype, how) -> None:
    if how != "plain":
        request.getfixturevalue(how)
    x, weight, _, grad = (t.flatten(0, -2) if t.dim() > 1 else t for t in data(LARGE, dtype))
    y, d_x = torch.empty_like(grad), torch.empty_like(x)
    assert product(x, weight, into=y) is y and torch.equal(y, product(x, weight))
    assert gradient_of_inputs(grad, weight, into=d_x) is d_x and torch.equal(d_x, gradient_of_inputs(grad, weight))
