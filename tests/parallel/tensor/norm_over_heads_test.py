"""The norm over all heads is torch's RMSNorm of each position's heads side by side, and rounds once."""

import pytest
import torch
import torch.nn.functional as F

from ranks import ranks
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.parallel.tensor import norm_over_heads as module
from trivium.parallel.tensor.norm_over_heads import norm_over_heads
from trivium.plan.layout import Layout

EPSILON = 1e-3
B, S, N, G, D = 2, 5, 4, 2, 6


def plain(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    side_by_side = x.permute(2, 0, 1, 3).flatten(2)
    return F.rms_norm(side_by_side, weight.shape, weight, EPSILON).view(S, B, -1, D).permute(1, 2, 0, 3)


@pytest.mark.parametrize("at_once", [1, 100, 1 << 17])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_values_and_gradients_are_torchs_and_rounded_once(
    dtype: torch.dtype, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", at_once)
    # As attention has them: columns of one tensor, the value's between them.
    whole = torch.randn(S, B, G, N // G + 2, D).to(dtype)
    q = whole[:, :, :, : N // G].reshape(S, B, N, D).permute(1, 2, 0, 3).detach().requires_grad_()
    k = whole[:, :, :, N // G].permute(1, 2, 0, 3).detach().requires_grad_()
    weights = [torch.randn(n * D).to(dtype).requires_grad_() for n in (N, G)]
    ours = norm_over_heads(q, k, *weights, epsilon=EPSILON, group=Mesh.single().tensor)
    grads = [torch.randn(y.shape).to(dtype) for y in ours]
    given = [q, k, *weights]
    exact = [t.detach().double().requires_grad_() for t in given]
    theirs = [plain(exact[0], exact[2]), plain(exact[1], exact[3])]
    found = [*ours, *torch.autograd.grad(ours, given, grads)]
    right = [*theirs, *torch.autograd.grad(theirs, exact, [g.double() for g in grads])]
    half_a_unit = torch.finfo(dtype).eps * (0.51 if dtype.itemsize == 2 else 8)
    for a, b in zip(found, right, strict=True):
        assert a.dtype == dtype and a.shape == b.shape
        assert ((a.double() - b).abs() <= half_a_unit * b.abs() + 1e-6).all()
    assert all(y.permute(2, 0, 1, 3).is_contiguous() for y in found[:4])


@ranks(2)
def test_tensor_ranks_norm_over_the_heads_of_all(place: Place) -> None:
    torch.manual_seed(0)
    q, k, grad_q, grad_k = (torch.randn(B, n, S, D, dtype=torch.float64) for n in (N, G, N, G))
    whole = [q, k, *(torch.randn(n * D, dtype=torch.float64) for n in (N, G))]
    group = Mesh.connect(Layout(tensor=2), place.rank, place.world_size).tensor
    heads = [x.chunk(2, dim=1)[place.rank] for x in (q, k, grad_q, grad_k)]
    mine = [x.clone().requires_grad_() for x in (*heads[:2], *(w.chunk(2)[place.rank] for w in whole[2:]))]
    ours = norm_over_heads(*mine, epsilon=EPSILON, group=group)
    every = [x.requires_grad_() for x in whole]
    theirs = [plain(every[0], every[2]), plain(every[1], every[3])]
    found = [*ours, *torch.autograd.grad(ours, mine, heads[2:])]
    right = [*theirs, *torch.autograd.grad(theirs, every, [grad_q, grad_k])]
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b.chunk(2, dim=0 if b.ndim == 1 else 1)[place.rank], rtol=1e-12, atol=1e-14)
