"""Attention some queries at a time, or of a copy, equals the formula, and is as blind to what follows."""

import pytest
import torch
import torch.nn.functional as F

from trivium.parallel import wide_attention
from trivium.parallel.context import Context
from trivium.parallel.mesh import Mesh
from trivium.parallel.sight import Sight
from trivium.parallel.wide_attention import FAR_APART, LEAST_POSITIONS, MOST_POSITIONS, QUERIES, attend, suits

SHAPES = (
    (2, 3, QUERIES, 32),  # one block
    (1, 5, 2 * QUERIES + 7, 16),  # the last block is short
    (1, 1, MOST_POSITIONS, 64),
    (2, 11, 2 * QUERIES, 24),  # positions far apart
)
TOLERANCE = {torch.float32: 2e-6, torch.float64: 2e-15}


def made(B: int, N: int, S: int, D: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """[3, B, N, S, D] as a product leaves it in memory, and a gradient of what is attended."""
    torch.manual_seed(S)
    return torch.randn(S, B, N, 3, D, dtype=dtype).permute(3, 1, 2, 0, 4), torch.randn(
        B, N, S, D, dtype=dtype
    )


def plainly(qkv: torch.Tensor) -> torch.Tensor:
    """By the formula, every score at once."""
    q, k, v = qkv.unbind(0)
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -torch.inf).softmax(-1) @ v


@pytest.fixture(params=[False, True], ids=["in blocks", "whole"], autouse=True)
def whole(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether all queries are one block."""
    monkeypatch.setattr(wide_attention, "mkl_is_at_home", lambda: request.param)
    return request.param


def test_queries_are_one_block_where_mkl_is_at_home(whole: bool) -> None:
    qkv, _ = made(1, 2, 2 * QUERIES, 16, torch.float32)
    way = attend(qkv.requires_grad_()).grad_fn
    assert type(way).__name__ == ("_WholeBackward" if whole else "_InBlocksBackward")


def test_one_block_is_of_a_copy_where_positions_lie_far_apart(whole: bool) -> None:
    for D, far in ((16, False), (32, True)):
        qkv, _ = made(1, 11, 2 * QUERIES, D, torch.float32)
        assert (4 * qkv.stride(3) >= FAR_APART) == far
        y = attend(qkv.requires_grad_())
        saved, *_ = y.grad_fn.saved_tensors
        assert saved.is_contiguous() == (whole and far)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_those_of_the_formula(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    qkv, grad = made(*shape, dtype)
    found = []
    for attention, given in ((attend, qkv), (plainly, qkv.double())):
        x = given.detach().requires_grad_()
        y = attention(x)
        found.append((y, *torch.autograd.grad(y, x, grad.to(y.dtype))))
    for ours, exact in zip(*found, strict=True):
        assert (ours - exact).norm() < TOLERANCE[dtype] * exact.norm()


def test_nothing_comes_from_later_positions_and_no_gradient_goes_there() -> None:
    qkv, grad = made(1, 2, 3 * QUERIES, 16, torch.float32)
    changed = qkv.clone()
    changed[:, :, :, 150:] += 100
    assert torch.equal(attend(qkv)[:, :, :150], attend(changed)[:, :, :150])
    grad[:, :, 150:] = 0
    x = qkv.requires_grad_()
    (d_x,) = torch.autograd.grad(attend(x), x, grad)
    assert not d_x[:, :, :, 150:].any()
    assert d_x[:, :, :, :150].any()


def test_what_goes_on_and_what_goes_back_lie_in_memory_as_the_products_want_them() -> None:
    for B, N in ((1, 4), (3, 4), (1, 22), (3, 22)):  # 22 heads: positions lie far apart
        qkv, grad = made(B, N, 2 * QUERIES, 16, torch.float32)
        x = qkv.requires_grad_()
        y = attend(x)
        assert y.permute(2, 0, 1, 3).is_contiguous()
        (d_x,) = torch.autograd.grad(y, x, grad)
        assert d_x.permute(3, 1, 2, 0, 4).is_contiguous()


def test_it_is_asked_where_it_is_faster_and_nowhere_else(whole: bool) -> None:
    """Measured: fewer scores are not worth the calls; in blocks, neither are fewer positions, and from 2,048 on the
    kernel leaves out as much."""
    assert suits(torch.zeros(3, 1, 8, 256, 32)) and suits(torch.zeros(3, 1, 8, 256, 32, dtype=torch.float64))
    assert not suits(torch.zeros(3, 1, 8, 256, 32, dtype=torch.bfloat16))
    assert not suits(torch.zeros(3, 1, 8, 256, 32, device="meta"))
    assert suits(torch.zeros(3, 64, 8, LEAST_POSITIONS - 1, 32)) == whole
    assert suits(torch.zeros(3, 1, 8, 2 * MOST_POSITIONS, 4)) == whole
    assert not suits(torch.zeros(3, 1, 2, 256, 32))


def test_packed_documents_keep_the_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_attention, "suits", lambda qkv: True)
    qkv, _ = made(2, 1, 6, 4, torch.float64)
    context, order = Context(Mesh.single().context, "ring"), (torch.arange(6),)
    apart = torch.tensor([[0, 0, 0, 1, 1, 1]] * 2).T
    second = context.attend_joined(qkv, Sight(order, apart))[:, :, 3:]
    assert torch.allclose(second, plainly(qkv[:, :, :, 3:]), rtol=0, atol=1e-14)
    asked = []
    monkeypatch.setattr(wide_attention, "attend", lambda qkv: asked.append(1) or plainly(qkv))
    whole = F.scaled_dot_product_attention(*qkv.unbind(0), is_causal=True)
    assert torch.allclose(context.attend_joined(qkv, Sight(order, None)), whole, rtol=0, atol=1e-14) and asked
