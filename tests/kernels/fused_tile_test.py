"""Tiles of attention, joined, are attention to all keys at once; on accelerators too, where there is one."""

from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from trivium.kernels import fused_tile


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("triangle", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_two_fused_tiles_are_joined_as_one_attention(dtype: torch.dtype, triangle: bool, device: str) -> None:
    """The second tile's keys come after the first's, seen whole; gradients are given what both found."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    torch.manual_seed(0)
    q, k, v, other_k, other_v, grad = torch.randn(6, 2, 4, 32, 16, device=device, dtype=dtype).unbind(0)
    assert fused_tile.suits(q)
    parts = [fused_tile.attend(q, k, v, triangle=triangle), fused_tile.attend(q, other_k, other_v, triangle=False)]
    sums = torch.logaddexp(parts[0][1], parts[1][1])
    out = sum(p[0].float() * (p[1] - sums).exp().unsqueeze(-1) for p in parts)
    known = fused_tile.Known(out.to(dtype), sums, parts[0][2])
    first = fused_tile.gradients(grad, q, k, v, known, triangle=triangle)
    second = fused_tile.gradients(grad, q, other_k, other_v, known, triangle=False)
    ours = [out, first[0] + second[0], first[1], first[2], second[1], second[2]]
    exact = [x.double().requires_grad_() for x in (q, k, v, other_k, other_v)]
    seen = torch.ones(32, 32, device=device, dtype=torch.bool)
    mask = torch.cat([seen.tril() if triangle else seen, seen], dim=1)
    scores = exact[0] @ torch.cat([exact[1], exact[3]], 2).transpose(-1, -2) / 4
    expected = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ torch.cat([exact[2], exact[4]], 2)
    expected.backward(grad.double())
    for got, right in zip(ours, [expected.detach(), *(x.grad for x in exact)], strict=True):
        assert right is not None and (got.double() - right).norm() < 0.02 * right.norm()


@pytest.mark.parametrize(("major", "has"), [(7, False), (8, True), (9, True)])
def test_cards_before_ampere_have_no_such_kernel(major: int, has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(major=major))
    with FakeTensorMode():
        narrow, wide = (torch.empty(1, 2, 8, 16, device="cuda", dtype=d) for d in (torch.float16, torch.float32))
    assert fused_tile.suits(narrow) is has and not fused_tile.suits(wide)
