"""Attention by batched products in bf16 is as exact as PyTorch's fused kernel, and as blind to what follows."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from trivium.kernels.cpu import narrow_attention
from trivium.kernels.cpu.attention import CpuAttention
from trivium.kernels.cpu.narrow_attention import BLOCK_QUERIES, MAX_SHORT_POSITIONS, MIN_SCORES, attend, suits
from trivium.kernels.sight import Sight

SHAPES = (
    (2, 4, BLOCK_QUERIES, 32),  # one block
    (1, 5, 2 * BLOCK_QUERIES + 7, 16),  # the last block is short
    (2, 40, 130, 8),  # heads in several groups
    (1, 1, MAX_SHORT_POSITIONS + 70, 64),
)


def made(B: int, N: int, S: int, D: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[3, B, N, S, D] as a product leaves it in memory, and a gradient."""
    torch.manual_seed(S)
    qkv = torch.randn(S, B, N, 3, D).bfloat16().permute(3, 1, 2, 0, 4)
    return qkv, torch.randn(B, N, S, D).bfloat16()


def fused(qkv: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(*qkv.unbind(0), is_causal=True)


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float(((found.double() - exact).norm() / exact.norm()).detach())


HAS_BF16 = hasattr(torch.backends.mkldnn, "matmul") and torch.ops.mkldnn._is_mkldnn_bf16_supported()
needs_bf16 = pytest.mark.skipif(not HAS_BF16, reason="no bf16 products on this processor")


@needs_bf16
@pytest.mark.parametrize("tiles", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_as_near_the_exact_ones_as_the_fused_kernels(
    shape: tuple[int, int, int, int], tiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(narrow_attention, "multiplies_tiles", lambda: tiles)
    qkv, grad = made(*shape)
    exact_in = qkv.double().requires_grad_()
    exact = fused(exact_in)
    (exact_grad,) = torch.autograd.grad(exact, exact_in, grad.double())
    errors = []
    for attention in (attend, fused):
        x = qkv.detach().requires_grad_()
        y = attention(x)
        (d_x,) = torch.autograd.grad(y, x, grad)
        errors.append((error(y, exact), *(error(d_x[n], exact_grad[n]) for n in range(3))))
    for ours, theirs in zip(*errors, strict=True):
        assert ours < max(1.3 * theirs, 2**-8)


@needs_bf16
def test_products_of_fp32_elsewhere_stay_as_exact_as_they_were() -> None:
    qkv, grad = made(*SHAPES[0])
    wide = torch.randn(64, 300), torch.randn(300, 64)
    before, precision = wide[0] @ wide[1], torch.backends.mkldnn.matmul.fp32_precision
    assert precision != "bf16"
    y = attend(qkv.requires_grad_())
    assert torch.backends.mkldnn.matmul.fp32_precision == precision
    y.backward(grad)
    assert torch.backends.mkldnn.matmul.fp32_precision == precision
    assert torch.equal(wide[0] @ wide[1], before)


@needs_bf16
def test_scores_are_never_rounded_to_bf16() -> None:
    qkv, _ = made(1, 2, 200, 32)
    qkv = qkv * torch.tensor([12.0, 12.0, 1.0]).bfloat16().view(3, 1, 1, 1, 1)
    q, k, v = qkv.unbind(0)
    exact = fused(qkv.double())
    later = torch.full((200, 200), -torch.inf).triu_(1)
    rounded = torch.softmax((q @ k.transpose(2, 3) / 32**0.5).float() + later, -1).bfloat16() @ v
    assert error(rounded, exact) > 2**-6
    assert error(attend(qkv), exact) < 2**-9


@needs_bf16
def test_nothing_comes_from_later_positions_and_no_gradient_goes_there() -> None:
    qkv, grad = made(1, 2, 2 * BLOCK_QUERIES, 16)
    changed = qkv.clone()
    changed[:, :, :, 150:] += 100
    assert torch.equal(attend(qkv)[:, :, :150], attend(changed)[:, :, :150])
    grad[:, :, 150:] = 0
    x = qkv.requires_grad_()
    (d_x,) = torch.autograd.grad(attend(x), x, grad)
    assert not d_x[:, :, :, 150:].any()
    assert d_x[:, :, :, :150].any()


@needs_bf16
def test_products_of_fp32_are_as_exact_as_before_also_when_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.backends.mkldnn.matmul.fp32_precision
    attend(made(1, 2, 64, 16)[0])
    assert torch.backends.mkldnn.matmul.fp32_precision == before
    with pytest.raises(ZeroDivisionError), narrow_attention._exact_scores():
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
        raise ZeroDivisionError
    assert torch.backends.mkldnn.matmul.fp32_precision == before


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_wider_numbers_and_small_models_are_not_for_it(dtype: torch.dtype) -> None:
    large = torch.zeros(3, 4, 8, 256, 8)
    assert large[0, ..., 0].numel() * 256 >= MIN_SCORES
    assert not suits(large.to(dtype))
    assert not suits(torch.zeros(3, 1, 2, 64, 8, dtype=torch.bfloat16))


def test_it_is_for_slow_mkl_and_for_short_sequences_where_tiles_are_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    long, short = (
        torch.zeros(3, 4, 8, S, 8, dtype=torch.bfloat16) for S in (MAX_SHORT_POSITIONS, MAX_SHORT_POSITIONS - 1)
    )
    monkeypatch.setattr(narrow_attention, "multiplies_bf16_slowly", lambda: False)
    for tiles, fast_mkl, expected in (
        (True, True, (False, HAS_BF16)),
        (False, False, (HAS_BF16, HAS_BF16)),
        (False, True, (False, False)),
    ):
        monkeypatch.setattr(narrow_attention, "multiplies_tiles", lambda tiles=tiles: tiles)
        monkeypatch.setattr(narrow_attention, "mkl_multiplies_faster", lambda fast=fast_mkl: fast)
        assert (suits(long), suits(short)) == expected


def test_packed_documents_are_attended_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(narrow_attention, "suits", lambda qkv: asked.append(1) is None)
    monkeypatch.setattr(narrow_attention, "attend", fused)
    qkv, _ = made(2, 1, 6, 4)
    context = CpuAttention()
    found = context.attend_joined(qkv, Sight((), np.array([[0, 0, 0, 3, 3, 3]] * 2).T))
    assert not asked and error(found[:, :, 3:], fused(qkv[:, :, :, 3:].double())) < 2**-7
    assert torch.equal(context.attend_joined(qkv, Sight((), None)), fused(qkv))
    assert asked
