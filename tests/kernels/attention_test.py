"""Attention of every backend equals the formula, through a window and of packed documents, and keeps as much."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from trivium.kernels.attention import Attention, Known
from trivium.kernels.cpu.attention import CpuAttention
from trivium.kernels.cpu.block_attention import BLOCK_QUERIES_IN_WINDOW as BLOCK_QUERIES
from trivium.kernels.cuda.attention import CudaAttention
from trivium.kernels.sight import Sight
from trivium.parallel.pipeline.saved_bytes import SavedBytes

SHAPES = (  # B, N, G, S, D
    (2, 3, 3, 9, 6),
    (1, 4, 2, BLOCK_QUERIES, 8),  # one block
    (2, 6, 2, 2 * BLOCK_QUERIES + 7, 16),  # the last block is short
    (1, 2, 1, 3 * BLOCK_QUERIES, 32),
)
TOLERANCE = {torch.float64: 2e-14, torch.float32: 5e-6, torch.bfloat16: 2e-2}


def windows(S: int) -> list[int]:
    return sorted({w for w in (1, 2, S // 3, BLOCK_QUERIES - 1, BLOCK_QUERIES, BLOCK_QUERIES + 1, S - 1) if w < S})


def made(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Queries, keys and values, positions first in memory as a product leaves them, and a gradient."""
    B, N, G, S, D = shape
    torch.manual_seed(S)
    given = [torch.randn(S, B, n, D, dtype=dtype).permute(1, 2, 0, 3) for n in (N, G, G)]
    return given, torch.randn(B, N, S, D, dtype=dtype)


def sights(B: int, S: int) -> list[Sight]:
    """Windows, documents, and both."""
    packed = starts(B, S)
    return [Sight((), None, w) for w in windows(S)] + [Sight((), packed, w) for w in (None, 1, S // 3)]


def starts(B: int, S: int) -> np.ndarray:
    """[S, B], of documents of many lengths, others in each sequence; some begin where a block does."""
    begins = np.random.default_rng(S).random((S, B)) < 3 / S
    begins[0] = True
    begins[BLOCK_QUERIES::BLOCK_QUERIES, -1] = True
    return np.maximum.accumulate(begins * np.arange(S)[:, None])


def plainly(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sight: Sight) -> torch.Tensor:
    """Return attention by the formula in fp64, with all scores at once; visibility is decided for each pair."""
    q, k, v = q.double(), *(x.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    (B, _, S, _), window = q.shape, sight.window or q.shape[2]
    first = np.zeros((S, B), int) if sight.starts is None else sight.starts
    near = torch.tensor([[query - window < key <= query for key in range(S)] for query in range(S)])
    seen = near & (torch.arange(S) >= torch.from_numpy(first).T[:, :, None])
    scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~seen[:, None], -math.inf)
    return scores.softmax(-1) @ v


@pytest.mark.broad
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("attention", [Attention(), CpuAttention()])
def test_values_and_gradients_are_the_formulas(
    shape: tuple[int, ...], dtype: torch.dtype, attention: Attention
) -> None:
    given, grad = made(shape, dtype)
    for sight in sights(shape[0], shape[3]):
        ours, theirs = ([x.clone().requires_grad_() for x in given] for _ in range(2))
        found, expected = attention.attend(*ours, sight), plainly(*theirs, sight)
        assert found.dtype == dtype
        found.backward(grad)
        expected.backward(grad.double())
        off = TOLERANCE[dtype]
        torch.testing.assert_close(found.double(), expected, rtol=off, atol=off)
        for mine, right in zip(ours, theirs, strict=True):
            assert mine.grad is not None and right.grad is not None
            scale = float(right.grad.abs().max())
            torch.testing.assert_close(
                mine.grad.double(), right.grad.double(), rtol=4 * off, atol=4 * off * max(scale, 1)
            )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("columns", [4, 9])  # of values, where queries and keys have 6
@pytest.mark.parametrize("attention", [Attention(), CpuAttention()])
def test_values_may_have_another_width_than_queries(attention: Attention, columns: int, dtype: torch.dtype) -> None:
    """Through a window, of packed documents, with a mask, and as a tile of a ring."""
    (q, k, _), _ = made((2, 3, 3, 9, 6), dtype)
    v, grad = torch.randn(9, 2, 3, columns, dtype=dtype).permute(1, 2, 0, 3), torch.randn(2, 3, 9, columns, dtype=dtype)
    within = {"rtol": TOLERANCE[dtype], "atol": 2 * TOLERANCE[dtype]}
    for sight in (Sight((), None), *sights(2, 9)):
        ours, theirs = ([x.clone().requires_grad_() for x in (q, k, v)] for _ in range(2))
        found, expected = attention.attend(*ours, sight), plainly(*theirs, sight)
        found.backward(grad)
        expected.backward(grad.double())
        torch.testing.assert_close(found.double(), expected, **within)
        for mine, right in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine.grad, right.grad, rtol=4 * within["rtol"], atol=8 * within["atol"])
    seen = torch.ones(1, 1, 9, 9, dtype=torch.bool).tril()
    masked = attention.attend_masked(q, k, v, q.new_zeros(seen.shape).masked_fill_(~seen, -math.inf))
    torch.testing.assert_close(masked.double(), plainly(q, k, v, Sight((), None)), **within)
    out, sums, about = attention.tile(q, k, v, mask=seen)
    torch.testing.assert_close(out.double(), plainly(q, k, v, Sight((), None)), **within)
    known = Known(out.to(dtype), out, sums, about)
    given = [x.clone().requires_grad_() for x in (q, k, v)]
    plainly(*given, Sight((), None)).backward(grad.double())
    for mine, right in zip(
        attention.tile_gradients(grad, (q, k, v), known, triangle=False, mask=seen), given, strict=True
    ):
        torch.testing.assert_close(mine.to(dtype), right.grad, rtol=8 * within["rtol"], atol=8 * within["atol"])


@pytest.mark.parametrize("columns", [16, 48])  # of values, where queries and keys have 32
def test_an_accelerators_kernels_are_given_one_width(columns: int) -> None:
    """Here only shapes can be seen."""
    with FakeTensorMode():
        q, k, v, grad = (
            torch.empty(2, 4, 8, width, device="cuda", dtype=torch.bfloat16) for width in (32, 32, columns, columns)
        )
        attention = CudaAttention()
        for sight in (Sight((), None), Sight((), None, 3)):
            assert attention.attend(q, k, v, sight).shape == v.shape
        out, sums, about = attention.tile(q, k, v, triangle=True)
        given = grad, (q, k, v), Known(out, out, sums, about)
        found = attention.tile_gradients(*given, triangle=True, mask=None)
        assert out.shape == v.shape and [x.shape for x in found] == [q.shape, k.shape, v.shape]


def test_a_reach_changes_nothing_of_what_is_kept_or_where_it_lies() -> None:
    """A layer therefore uses the predicted memory, with a window and documents or without."""
    for shape in SHAPES:
        kept, laid = [], []
        B, S = shape[0], shape[3]
        for sight in (Sight((), None), *(Sight((), packed, S // 2) for packed in (None, starts(B, S)))):
            q, k, v = (x.requires_grad_() for x in made(shape, torch.float32)[0])
            with SavedBytes(()).counting() as found:
                y = CpuAttention().attend(q, k, v, sight)
            kept.append(found.elements)
            laid.append(y.stride())
        assert len(set(map(str, kept))) == 1 and len(set(laid)) == 1


def test_a_window_as_long_as_what_is_read_is_no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    (q, k, v), _ = made(SHAPES[0], torch.float64)
    monkeypatch.setattr(CpuAttention, "attend_within", None)
    whole = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    for window in (9, 10):
        assert torch.equal(CpuAttention().attend(q, k, v, Sight((), None, window)), whole)


class Spying(TorchDispatchMode):
    """Notes what an accelerator's kernel is given: edges, the longest, whether causal by itself, the window."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[torch.Size] = []
        self.given: list[tuple[object, ...]] = []

    def __torch_dispatch__(self, func, types, given=(), more=None):
        more = more or {}
        if func is torch.ops.aten._flash_attention_forward.default:
            self.shapes.append(given[0].shape)
            window = more.get("window_size_left"), more.get("window_size_right")
            self.given.append((*given[3:9], *window))
        return func(*given, **more)


def test_an_accelerators_kernel_is_asked_for_the_window() -> None:
    """It counts the positions to the left of a query without the query itself. Here only shapes can be seen."""
    with FakeTensorMode(), Spying() as spy:
        q, k = (torch.empty(2, n, 8, 16, device="cuda", dtype=torch.bfloat16) for n in (4, 2))
        found = CudaAttention().attend(q, k, k, Sight((), None, 3))
    assert spy.given == [(None, None, 8, 8, 0.0, False, 2, 0)] and found.shape == q.shape
    assert torch._C._dispatch_has_kernel_for_dispatch_key("aten::_flash_attention_forward", "Autograd")


@pytest.mark.parametrize("window", [None, 3])
def test_an_accelerators_kernel_is_told_where_documents_start(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The starts are positions in the concatenated sequences."""
    sent: list[list[int]] = []
    monkeypatch.setattr(
        "trivium.kernels.sight.sent",
        lambda x, device, dtype: sent.append(x.tolist()) or torch.empty(x.shape, device=device, dtype=dtype),
    )
    packed = Sight((), np.array([[0, 0, 0, 3, 4, 4, 4, 4], [0] * 5 + [5] * 3]).T).within(window)
    with FakeTensorMode(), Spying() as spy:
        q, k = (torch.empty(8, 2, n, 16, device="cuda", dtype=torch.bfloat16) for n in (4, 2))
        q, k = (x.permute(1, 2, 0, 3) for x in (q, k))
        for _ in range(2):  # layers
            assert CudaAttention().attend(q, k, k, packed).shape == q.shape
    assert sent == [[0, 3, 4, 8, 13, 16]] and spy.shapes == [(16, 4, 16)] * 2
    for edges, same, *rest in spy.given:
        assert edges is same and edges.dtype == torch.int32 and edges.shape == (6,)
        assert rest == ([5, 5, 0.0, True, None, None] if window is None else [5, 5, 0.0, False, 2, 0])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("triangle", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_two_fused_tiles_are_joined_as_one_attention(dtype: torch.dtype, triangle: bool, device: str) -> None:
    """The second tile's keys come after the first's, seen whole; gradients are given what both found."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    attention = CpuAttention() if device == "cpu" else CudaAttention()
    torch.manual_seed(0)
    q, k, v, other_k, other_v, grad = torch.randn(6, 2, 4, 32, 16, device=device, dtype=dtype).unbind(0)
    assert attention.fuses(q)
    parts = [attention.tile(q, k, v, triangle=triangle), attention.tile(q, other_k, other_v)]
    sums = torch.logaddexp(parts[0][1], parts[1][1])
    out = sum(p[0].float() * (p[1] - sums).exp().unsqueeze(-1) for p in parts)
    known = Known(out.to(dtype), out, sums, parts[0][2])
    first = attention.tile_gradients(grad, (q, k, v), known, triangle=triangle, mask=None)
    second = attention.tile_gradients(grad, (q, other_k, other_v), known, triangle=False, mask=None)
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
def test_cards_before_ampere_have_no_fused_kernel(major: int, has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(major=major))
    with FakeTensorMode():
        narrow, wide = (torch.empty(1, 2, 8, 16, device="cuda", dtype=d) for d in (torch.float16, torch.float32))
    assert CudaAttention().fuses(narrow) is has and not CudaAttention().fuses(wide)


@pytest.mark.parametrize(("width", "has"), [(8, True), (256, True), (12, False), (264, False)])
def test_fused_kernels_take_heads_by_their_width_whatever_the_number_of_positions(width: int, has: bool) -> None:
    with FakeTensorMode():
        for positions in (5, 8, 300):
            q = torch.empty(1, 2, positions, width, device="cuda", dtype=torch.bfloat16)
            assert CudaAttention().fuses(q) is has


@pytest.mark.parametrize("attention", [Attention(), CpuAttention(), CudaAttention()])
@pytest.mark.parametrize("positions", (1, 3))
@pytest.mark.parametrize("masks", (1, 2))
def test_cached_keys_are_shared_by_the_heads_of_a_group(attention: Attention, positions: int, masks: int) -> None:
    torch.manual_seed(positions)
    q, k, v = (torch.randn(2, n, s, 8, dtype=torch.float64) for n, s in ((6, positions), (2, 5), (2, 5)))
    mask = torch.zeros(masks, 1, positions, 5, dtype=torch.float64)
    mask[0, 0, 0, 4] = mask[-1, 0, -1, 1] = -torch.inf
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(attention.attend_masked(q, k, v, mask), expected)
