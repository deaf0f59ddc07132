"""A product by either library is the product in fp64 as nearly as fp32 can tell, with its gradients."""

import pytest
import torch
import torch.nn.functional as F

from trivium.parallel import product as products
from trivium.parallel.product import add_gradient_of_weight, gradient_of_inputs, gradient_of_weight, product

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
    return float((found.detach().double() - exact.detach()).abs().max()) <= 2e-6 * float(
        exact.detach().abs().max()
    )


@pytest.fixture()
def always(monkeypatch) -> None:
    """The other library also where it does not pay."""
    monkeypatch.setattr(products, "LEAST", 0)
    monkeypatch.setattr(products, "mkl_is_at_home", lambda: False)


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
    assert is_near(
        gradient_of_inputs(grad.transpose(0, 1), weight), grad.transpose(0, 1).double() @ weight.double()
    )
    spread = grads[:1].expand_as(grads)
    assert is_near(gradient_of_inputs(spread, weight), spread.double() @ weight.double())
    exact = grads.double().T @ rows.double()
    assert is_near(gradient_of_weight(grads, rows), exact)
    assert is_near(gradient_of_weight(grads.T.contiguous().T, rows), exact)
    into = torch.ones_like(weight)
    add_gradient_of_weight(into, grads, rows)
    assert is_near(into, exact + 1)


def test_what_is_not_finite_stays_so(always) -> None:
    x, weight, bias, _ = data(LARGE)
    x[1, 0, 2], x[3, 1, 4] = torch.nan, torch.inf
    y = product(x, weight, bias)
    assert y[1, 0].isnan().all() and not y[3, 1].isfinite().any()
    assert y[0].isfinite().all()


def test_only_large_products_in_fp32_on_a_processor_go_to_the_other_library(monkeypatch) -> None:
    monkeypatch.setattr(products, "mkl_is_at_home", lambda: False)
    x, weight, bias, _ = (t.requires_grad_() for t in data(LARGE))
    assert "ProductBackward" in type(product(x, weight, bias).grad_fn).__name__
    assert "ProductBackward" not in type(product(x[:5], weight, bias).grad_fn).__name__
    for dtype in (torch.float64, torch.bfloat16):
        x, weight, bias, _ = (t.requires_grad_() for t in data(LARGE, dtype))
        assert "ProductBackward" not in type(product(x, weight, bias).grad_fn).__name__


def test_where_mkl_is_at_home_it_multiplies_everything(monkeypatch) -> None:
    monkeypatch.setattr(products, "mkl_is_at_home", lambda: True)
    monkeypatch.setattr(products, "_by_one_dnn", None)
    x, weight, bias, grad = data(LARGE)
    rows, grads = x.flatten(0, 1), grad.flatten(0, 1)
    assert torch.equal(product(x, weight, bias), F.linear(x, weight, bias))
    assert torch.equal(gradient_of_inputs(grad, weight), grad @ weight)
    assert torch.equal(gradient_of_weight(grads, rows), grads.T @ rows)
    into = torch.ones_like(weight)
    add_gradient_of_weight(into, grads, rows)
    assert is_near(into, grads.double().T @ rows.double() + 1)


def test_a_device_that_cannot_add_narrow_products_to_wide_sums_is_told_from_one_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A processor cannot; of one without memory nobody knows."""
    tried = products._multiplies_into_wide.__wrapped__
    assert tried(torch.device("cpu"), torch.bfloat16) is False

    def full(*matrices: torch.Tensor, first: bool) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(products, "_add_unrounded", full)
    with pytest.raises(torch.OutOfMemoryError):
        tried(torch.device("cpu"), torch.bfloat16)
