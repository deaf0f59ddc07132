"""GELU by a sigmoid is PyTorch's by a hyperbolic tangent."""

import pytest
import torch
import torch.nn.functional as F

from trivium.kernels.cpu.gelu import MIN_ELEMENTS, PIECE_ELEMENTS, CpuGelu

gelu = CpuGelu()
# In units of a number's own rounding, for arguments whose derivative is a difference of large numbers too.
ROUNDING = {torch.float64: 1e-13, torch.float32: 3e-5, torch.bfloat16: 2**-7}


def test_few_elements_and_compiled_blocks_have_pytorchs_own(monkeypatch) -> None:
    def node() -> str:
        return type(gelu(torch.randn(MIN_ELEMENTS).requires_grad_() * 1).grad_fn).__name__

    assert "GeluBackward0" not in node()
    assert type(gelu(torch.randn(MIN_ELEMENTS - 1).requires_grad_()).grad_fn).__name__ == "GeluBackward0"
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert node() == "GeluBackward0"


def test_no_memory_but_the_values_is_taken_where_gradients_are_wanted() -> None:
    x = torch.randn(MIN_ELEMENTS).requires_grad_() * 1
    place = x.data_ptr()
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.data_ptr()) or t, lambda t: t):
        gelu(x)
    assert kept == [place]


def test_what_is_found_again_is_to_the_bit_what_was_found() -> None:
    for elements in (MIN_ELEMENTS - 1, MIN_ELEMENTS):
        x = 4 * torch.randn(elements)
        value = gelu.value(x)
        again, _ = gelu.value_again(x.clone())
        assert torch.equal(value, again)


@pytest.mark.parametrize("elements", (MIN_ELEMENTS - 1, MIN_ELEMENTS, PIECE_ELEMENTS + 3))
@pytest.mark.parametrize("dtype", ROUNDING)
def test_values_and_gradients_are_pytorchs(elements: int, dtype: torch.dtype) -> None:
    torch.manual_seed(elements)
    x = (4 * torch.randn(elements)).to(dtype)
    grad = torch.randn(elements).to(dtype)
    found = []
    for function, given in ((gelu, x), (lambda t: F.gelu(t, approximate="tanh"), x.double())):
        given = given.clone().requires_grad_()
        y = function(given)
        found.append((y.detach().double(), *torch.autograd.grad(y, given, grad.to(given.dtype))))
    for ours, exact in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=ROUNDING[dtype], atol=2 * ROUNDING[dtype])


def test_far_from_zero_it_is_the_identity_or_nothing() -> None:
    x = torch.tensor([-1e4, -60.0, 0.0, 60.0, 1e4]).repeat(MIN_ELEMENTS).requires_grad_()
    y = gelu(x)
    y.sum().backward()
    assert torch.equal(y.detach()[:5], torch.tensor([0.0, 0.0, 0.0, 60.0, 1e4]))
    assert torch.equal(x.grad[:5], torch.tensor([0.0, 0.0, 0.5, 1.0, 1.0]))


def test_without_gradients_the_values_are_the_same() -> None:
    x = torch.randn(2, MIN_ELEMENTS)
    kept = gelu(x.clone().requires_grad_()).detach()
    with torch.no_grad():
        assert torch.equal(gelu(x), kept)


def test_a_transposed_argument_is_taken_as_it_reads() -> None:
    x = torch.randn(300, 200).T
    torch.testing.assert_close(gelu(x), F.gelu(x, approximate="tanh"), rtol=1e-5, atol=1e-6)
