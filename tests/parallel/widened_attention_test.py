"""Attention of bf16 activations in fp32 is nearer the exact one than in bf16, and keeps no more."""

import pytest
import torch
import torch.nn.functional as F

from trivium.model.kv_cache import KVCache
from trivium.parallel import processor, processor_kernel, widened_attention, window_attention
from trivium.parallel.context import Context
from trivium.parallel.measure import SavedBytes
from trivium.parallel.mesh import Mesh
from trivium.parallel.processor_kernel import LEAST_WIDENED
from trivium.parallel.sight import Sight
from trivium.parallel.widened_attention import attend, attend_joined, suits

SHAPES = (  # B, N, G, S, D
    (2, 4, 4, 40, 32),
    (3, 6, 2, 70, 16),
    (1, 2, 1, 300, 8),
    (5, 2, 2, LEAST_WIDENED, 8),
)
HERE = Context(Mesh.single().context, "ring")


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "_SLOW_BF16", True)


@pytest.fixture(params=[1, 3000, 1 << 17])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(widened_attention, "AT_ONCE", request.param)
    return request.param


def made(shape: tuple[int, ...]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Queries, keys and values, positions first in memory as a product leaves them, and a gradient."""
    B, N, G, S, D = shape
    torch.manual_seed(S)
    given = [torch.randn(S, B, n, D).bfloat16().permute(1, 2, 0, 3) for n in (N, G, G)]
    return given, torch.randn(B, N, S, D).bfloat16()


def packed(B: int, S: int) -> torch.Tensor:
    """[B, 1, S, S], true where a query sees a key: documents of several lengths, others in each sequence."""
    numbers = torch.stack([torch.arange(S) // (7 + 5 * b) for b in range(B)])
    return (numbers[:, None, :, None] == numbers[:, None, None, :]).tril()


def by_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)


def all_of(attention, given: list[torch.Tensor], grad: torch.Tensor, *more) -> list[torch.Tensor]:
    """The result, and the gradients of what is given."""
    given = [x.detach().requires_grad_() for x in given]
    y = attention(*given, *more)
    return [y, *torch.autograd.grad(y, given, grad.to(y.dtype))]


def errors(found: list[torch.Tensor], exact: list[torch.Tensor]) -> list[float]:
    return [float(((x.double() - e).norm() / e.norm()).detach()) for x, e in zip(found, exact, strict=True)]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_the_exact_ones_rounded_once(
    shape: tuple[int, ...], masked: bool, at_once: int
) -> None:
    """bf16 has 8 bits: a rounding is off by 2⁻⁹ at most; what was rounded before, of the result, is in gradients."""
    given, grad = made(shape)
    mask = packed(shape[0], shape[3]) if masked else None
    exact = all_of(by_torch, [x.double() for x in given], grad, mask)
    found = all_of(attend, given, grad, mask)
    assert all(x.dtype == torch.bfloat16 and x.shape == e.shape for x, e in zip(found, exact, strict=True))
    assert max(errors(found, exact)) < 2**-8
    one_mask = None if mask is None else mask[:1]
    assert (
        one_mask is None
        or max(
            errors(
                all_of(attend, given, grad, one_mask),
                all_of(by_torch, [x.double() for x in given], grad, one_mask),
            )
        )
        < 2**-8
    )


def test_joined_ones_are_as_those_apart_and_lie_in_memory_as_products_want_them(at_once: int) -> None:
    S, B, N, D = 70, 3, 4, 16
    torch.manual_seed(0)
    qkv = torch.randn(S, B, N, 3, D).bfloat16().permute(3, 1, 2, 0, 4).requires_grad_()
    grad = torch.randn(B, N, S, D).bfloat16()
    y = attend_joined(qkv)
    (d_qkv,) = torch.autograd.grad(y, qkv, grad)
    apart = all_of(attend, list(qkv.detach().unbind(0)), grad)
    assert torch.equal(y, apart[0]) and all(map(torch.equal, d_qkv, apart[1:]))
    assert y.permute(2, 0, 1, 3).is_contiguous() and d_qkv.permute(3, 1, 2, 0, 4).is_contiguous()
    assert apart[0].permute(2, 0, 1, 3).is_contiguous()


def test_nothing_comes_from_later_positions_and_no_gradient_goes_there(at_once: int) -> None:
    given, grad = made(SHAPES[1])
    changed = [x.clone() for x in given]
    for x in changed:
        x[:, :, 50:] += 100
    assert torch.equal(attend(*given)[:, :, :50], attend(*changed)[:, :, :50])
    grad[:, :, 50:] = 0
    for d_x in all_of(attend, given, grad)[1:]:
        assert d_x[:, :, :50].any() and not d_x[:, :, 50:].any()


@pytest.mark.parametrize("masked", [False, True])
def test_what_is_kept_is_what_torchs_attention_keeps(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a layer takes the memory that is predicted for it on any processor."""
    (B, N, G, S, D) = SHAPES[0]
    documents = (torch.arange(S)[:, None] // 9).expand(S, B) if masked else None
    kept = []
    for slow in (False, True):
        monkeypatch.setattr(processor, "_SLOW_BF16", slow)
        given = [x.requires_grad_() for x in made(SHAPES[0])[0]]
        with SavedBytes(()).counting() as found:
            HERE.attend(*given, Sight((torch.arange(S),), documents))
        kept.append(found.bytes)
    assert kept[0] == kept[1]


def test_of_all_heads_only_some_are_wide_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    B, N, G, S, D = 3, 4, 2, 64, 8
    given, grad = made((B, N, G, S, D))
    widened = []
    monkeypatch.setattr(widened_attention, "AT_ONCE", 2 * S * D)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    original = processor_kernel.wide
    monkeypatch.setattr(processor_kernel, "wide", lambda x: widened.append(x.numel()) or original(x))
    all_of(attend, given, grad)
    assert max(widened) == 2 * S * D and len(widened) == B * G * (3 + 5)
    widened.clear()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)  # of which each has as much to do
    all_of(attend, given, grad)
    assert max(widened) == 2 * N * S * D


def test_every_road_of_bf16_is_in_fp32_where_bf16_is_slow_and_none_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    B, N, G, S, D = 2, 4, 4, 40, 8
    q, k, v = made((B, N, G, S, D))[0]
    order = (torch.arange(S),)
    apart = (torch.arange(S)[:, None] // 9).expand(S, B)
    roads = {
        "joined": lambda: HERE.attend_joined(torch.stack((q, k, v)), Sight(order, None)),
        "apart": lambda: HERE.attend(q, k, v, Sight(order, None)),
        "documents": lambda: HERE.attend(q, k, v, Sight(order, apart)),
        "window": lambda: window_attention.attend(q, k, v, 9),
        "ring": lambda: processor_kernel.attend(q, k, v, causal=True)[0],
        "first reading": lambda: KVCache(S).attend(0, q, k, v),
    }
    calls: list[int] = []
    original = processor_kernel.wide
    monkeypatch.setattr(processor_kernel, "wide", lambda x: calls.append(1) or original(x))
    for name, road in roads.items():
        monkeypatch.setattr(processor, "_SLOW_BF16", True)
        calls.clear()
        found = road()
        assert calls, name
        monkeypatch.setattr(processor, "_SLOW_BF16", False)
        calls.clear()
        other = road()
        assert not calls and found.shape == other.shape, name
        assert float((found.double() - other.double()).norm() / other.double().norm()) < 2**-7, name


def test_wide_numbers_few_queries_and_accelerators_are_not_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.zeros(1, 2, LEAST_WIDENED, 8, dtype=torch.bfloat16)
    assert suits(q)
    assert not suits(q[:, :, 1:]) and not suits(q.float()) and not suits(q.half()) and not suits(q.to("meta"))
    monkeypatch.setattr(processor, "_SLOW_BF16", False)
    assert not suits(q)


@pytest.mark.parametrize("masked", [False, True])
def test_a_compiled_block_holds_it_whole(masked: bool, at_once: int) -> None:
    given, grad = made(SHAPES[0])
    mask = packed(SHAPES[0][0], SHAPES[0][3]) if masked else None
    torch.compiler.reset()
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    exact = all_of(attend, given, grad, mask)
    assert max(errors(all_of(compiled, given, grad, mask), [x.double() for x in exact])) < 2**-8
