"""Attention through a window equals the formula, whatever computes it, and keeps what attention to all keeps."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from trivium.parallel import context, window_attention
from trivium.parallel.block_attention import QUERIES_IN_WINDOW as QUERIES
from trivium.parallel.context import Context
from trivium.parallel.measure import SavedBytes
from trivium.parallel.mesh import Mesh
from trivium.parallel.sight import Sight
from trivium.parallel.window_attention import attend

SHAPES = (  # B, N, G, S, D
    (2, 3, 3, 9, 6),
    (1, 4, 2, QUERIES, 8),  # one block
    (2, 6, 2, 2 * QUERIES + 7, 16),  # the last block is short
    (1, 2, 1, 3 * QUERIES, 32),
)
TOLERANCE = {torch.float64: 2e-14, torch.float32: 5e-6, torch.bfloat16: 2e-2}


def windows(S: int) -> list[int]:
    return sorted({w for w in (1, 2, S // 3, QUERIES - 1, QUERIES, QUERIES + 1, S - 1) if w < S})


def made(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Queries, keys and values, positions first in memory as a product leaves them, and a gradient."""
    B, N, G, S, D = shape
    torch.manual_seed(S)
    given = [torch.randn(S, B, n, D, dtype=dtype).permute(1, 2, 0, 3) for n in (N, G, G)]
    return given, torch.randn(B, N, S, D, dtype=dtype)


def plainly(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    """By the formula in fp64, every score at once; who sees whom is asked of each pair."""
    q, k, v = q.double(), *(x.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    S = q.shape[2]
    seen = torch.tensor([[query - window < key <= query for key in range(S)] for query in range(S)])
    scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~seen, -math.inf)
    return scores.softmax(-1) @ v


@pytest.fixture(params=["in blocks", "behind a mask"])
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As on a processor, or as on an accelerator without a kernel for the numbers."""
    if request.param == "behind a mask":
        monkeypatch.setattr(window_attention, "suits", lambda q: False)
        monkeypatch.setattr(window_attention.fused_tile, "suits", lambda q: False)
    return request.param


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_the_formulas(shape: tuple[int, ...], dtype: torch.dtype, road: str) -> None:
    given, grad = made(shape, dtype)
    for window in windows(shape[3]):
        ours, theirs = ([x.clone().requires_grad_() for x in given] for _ in range(2))
        found, expected = attend(*ours, window), plainly(*theirs, window)
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


def test_a_window_changes_nothing_of_what_is_kept_or_where_it_lies() -> None:
    """So that a layer takes the memory that is predicted for it, with a window or without."""
    here = Context(Mesh.single().context, "ring")
    for shape in SHAPES:
        kept, laid = [], []
        for window in (None, shape[3] // 2):
            q, k, v = (x.requires_grad_() for x in made(shape, torch.float32)[0])
            with SavedBytes(()).counting() as found:
                y = here.attend(q, k, v, Sight((), None).within(window))
            kept.append(found.elements)
            laid.append(y.stride())
        assert kept[0] == kept[1] and laid[0] == laid[1]


def test_a_window_as_long_as_what_is_read_is_no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    (q, k, v), _ = made(SHAPES[0], torch.float64)
    monkeypatch.setattr(context, "window_attention", None)
    here = Context(Mesh.single().context, "ring")
    whole = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    for window in (9, 10):
        assert torch.equal(here.attend(q, k, v, Sight((), None, window)), whole)


def test_an_accelerators_kernel_is_asked_for_the_window() -> None:
    """It counts the positions to the left of a query without the query itself. Here only shapes can be seen."""
    asked: list[tuple[int, int, bool]] = []

    class Spying(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, given=(), more=None):
            if func is torch.ops.aten._flash_attention_forward.default:
                asked.append((more["window_size_left"], more["window_size_right"], given[8]))
            return func(*given, **(more or {}))

    with FakeTensorMode(), Spying():
        q, k = (torch.empty(2, n, 8, 16, device="cuda", dtype=torch.bfloat16) for n in (4, 2))
        found = attend(q, k, k, 3)
    assert asked == [(2, 0, False)] and found.shape == q.shape
    assert torch._C._dispatch_has_kernel_for_dispatch_key("aten::_flash_attention_forward", "Autograd")
