"""RMSNorm by rows is torch's, keeps its input and a number a row, and rounds once."""

import pytest
import torch
import torch.nn.functional as F

from trivium.kernels.cpu import rms_norm as module
from trivium.kernels.cpu.rms_norm import rms_norm

EPSILON = 1e-3


def values(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape).to(dtype).requires_grad_()


@pytest.mark.parametrize("at_once", [1, 24, 1 << 17])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 2, 0, 3), (2, 0, 1, 3)])
def test_values_gradients_and_order_in_memory_are_torchs(
    at_once: int, order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", at_once)
    x, weight, grad = values(3, 5, 2, 8), values(8), torch.randn(3, 5, 2, 8).double().permute(order)
    found = []
    for norm in (rms_norm, lambda x, w, e: F.rms_norm(x, w.shape, w, e)):
        y = norm(x.permute(order), weight, EPSILON)
        found.append((y, *torch.autograd.grad(y, (x, weight), grad)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    assert found[0][0].stride() == x.permute(order).stride()


def test_rows_that_lie_apart_are_as_any_others() -> None:
    whole, weight = values(4, 3, 24), values(8)
    y = rms_norm(whole[..., 8:16], weight, EPSILON)
    expected = F.rms_norm(whole[..., 8:16], (8,), weight, EPSILON)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-13)
    ours, theirs = (torch.autograd.grad(each.square().sum(), whole)[0] for each in (y, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("at_once", [64, 1 << 17])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_kept_are_the_input_and_a_number_a_row_and_all_is_rounded_once(
    dtype: torch.dtype, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", at_once)
    x, weight, grad = values(6, 64, dtype=dtype), values(64, dtype=dtype), torch.randn(6, 64).to(dtype)
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
        y = rms_norm(x, weight, EPSILON)
    others = [t for t in kept if t.data_ptr() not in (x.data_ptr(), weight.data_ptr())]
    assert [(tuple(t.shape), t.dtype) for t in others] == [((6, 1), torch.float32)]
    wide, w = (t.detach().double().requires_grad_() for t in (x, weight))
    exact = F.rms_norm(wide, (64,), w, EPSILON)
    ours = (y, *torch.autograd.grad(y, (x, weight), grad))
    theirs = (exact, *torch.autograd.grad(exact, (wide, w), grad.double()))
    half_a_unit = torch.finfo(dtype).eps * (0.51 if dtype.itemsize == 2 else 8)
    for a, b in zip(ours, theirs, strict=True):
        assert ((a.double() - b).abs() <= half_a_unit * b.abs() + 1e-6).all()
