"""Attention of a block of queries at a time equals the formula, ignores masked keys, and saves what torch's saves. So
does attention of bf16 activations that copies some heads at a time to fp32."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from trivium.kernels.cpu import block_attention, processor
from trivium.kernels.cpu import fused_attention as processor_kernel
from trivium.kernels.cpu.attention import CpuAttention
from trivium.kernels.cpu.block_attention import (
    ALL_BEFORE,
    BLOCK_QUERIES,
    BLOCK_QUERIES_IN_WINDOW,
    BLOCK_QUERIES_ON_INTEL,
    MAX_POSITIONS,
    MAX_POSITIONS_ON_INTEL,
    MAX_POSITIONS_WITHOUT_AVX512,
    MAX_WIDENED_POSITIONS,
    MIN_FAR_STRIDE_BYTES,
    MIN_POSITIONS,
    MIN_SCORES,
    attend,
    attend_joined,
    suits,
)
from trivium.kernels.cpu.fused_attention import MIN_WIDENED
from trivium.kernels.sight import Sight
from trivium.model.kv_cache import KVCache
from trivium.parallel.pipeline.saved_bytes import SavedBytes

Tensor = torch.Tensor

SHAPES = (  # B, N, G, S, D
    (2, 3, 3, BLOCK_QUERIES, 8),  # one block
    (1, 5, 5, 2 * BLOCK_QUERIES_ON_INTEL + 7, 16),  # the last block is short
    (1, 2, 1, MAX_POSITIONS, 8),
    (3, 6, 2, 2 * BLOCK_QUERIES_ON_INTEL, 24),  # positions far apart
    (5, 2, 2, MIN_WIDENED, 8),
)
JOINED = [shape for shape in SHAPES if shape[1] == shape[2]] + [(3, 11, 11, MIN_POSITIONS, 16)]
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
HERE = CpuAttention()


def tolerance(dtype: torch.dtype) -> float:
    """Return the error allowed, relative to the norm. A rounding to bf16, of 8 bits, is off by 2⁻⁹ at most, and the
    result was rounded before it is used in gradients."""
    return {torch.float64: 2e-15, torch.float32: 2e-6, torch.bfloat16: 2**-8}[dtype]


@pytest.fixture(params=["away", "at home", "without AVX-512"], autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Simulate one kind of CPU, and return its name."""
    monkeypatch.setattr(processor, "_IS_INTEL", request.param == "at home")
    monkeypatch.setattr(processor, "_WITHOUT_AVX512", request.param == "without AVX-512")
    monkeypatch.setattr(processor, "_SLOW_BF16", True)
    return request.param


@pytest.fixture(params=[1, 3000, 1 << 17])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(block_attention, "BLOCK_ELEMENTS", request.param)
    return request.param


def made(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """Return queries, keys and values with positions first in memory, as a product leaves them, and a gradient."""
    B, N, G, S, D = shape
    torch.manual_seed(S)
    given = [torch.randn(S, B, n, D, dtype=dtype).permute(1, 2, 0, 3) for n in (N, G, G)]
    return given, torch.randn(B, N, S, D, dtype=dtype)


def made_joined(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    B, N, _, S, D = shape
    torch.manual_seed(S)
    qkv = torch.randn(S, B, N, 3, D, dtype=dtype).permute(3, 1, 2, 0, 4)
    return qkv, torch.randn(B, N, S, D, dtype=dtype)


def packed(B: int, S: int) -> Sight:
    """Return documents of several lengths, different in each sequence."""
    return Sight((), np.stack([np.arange(S) // (7 + 50 * b) * (7 + 50 * b) for b in range(B)], axis=1))


def shown(sight: Sight) -> Tensor:
    """Return [B, 1, S, S], true where a query attends to a key of the same document that is not later."""
    numbers = torch.from_numpy(sight.starts).T
    return (numbers[:, None, :, None] == numbers[:, None, None, :]).tril()


def plainly(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return attention by the formula, with all scores at once."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril() if mask is None else mask
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v


def all_of(attention, given: list[Tensor], grad: Tensor, **more) -> list[Tensor]:
    """Return the result, and the gradients of the inputs."""
    given = [x.detach().requires_grad_() for x in given]
    y = attention(*given, **more)
    return [y.detach(), *torch.autograd.grad(y, given, grad.to(y.dtype))]


def errors(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [float((x.double() - e).norm() / e.norm()) for x, e in zip(found, exact, strict=True)]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_those_of_the_formula(
    shape: tuple[int, ...], dtype: torch.dtype, masked: bool
) -> None:
    given, grad = made(shape, dtype)
    sight = packed(shape[0], shape[3]) if masked else ALL_BEFORE
    exact = all_of(plainly, [x.double() for x in given], grad, mask=shown(sight) if masked else None)
    found = all_of(attend, given, grad, sight=sight)
    assert all(x.dtype == dtype and x.shape == e.shape for x, e in zip(found, exact, strict=True))
    assert max(errors(found, exact)) < tolerance(dtype)


@pytest.mark.parametrize("sight", [ALL_BEFORE, Sight((), None, 40), packed(2, 300)])
@pytest.mark.parametrize("tiles", [False, True])
def test_only_the_backward_is_in_fp32_where_its_bf16_is_slow(
    sight: Sight, tiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "_SLOW_BF16", False)
    monkeypatch.setattr(processor, "_TILES", tiles)
    widened = []
    original = processor_kernel.wide
    monkeypatch.setattr(processor_kernel, "wide", lambda x: widened.append(1) or original(x))
    given, grad = made((2, 4, 2, 300, 8), torch.bfloat16)
    given = [x.requires_grad_() for x in given]
    y = attend(*given, sight)
    assert not widened
    gradients = torch.autograd.grad(y, given, grad)
    assert bool(widened) != tiles
    with monkeypatch.context() as patch:
        patch.setattr(processor, "_SLOW_BF16", True)
        exact = all_of(attend, [x.detach().double() for x in given], grad.double(), sight=sight)
    found = errors([y.detach(), *gradients], exact)
    assert max(found) < tolerance(torch.bfloat16) * (2 if tiles else 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", JOINED)
def test_joined_ones_are_as_those_apart_and_lie_in_memory_as_products_want_them(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    qkv, grad = made_joined(shape, dtype)
    qkv.requires_grad_()
    y = attend_joined(qkv)
    (d_qkv,) = torch.autograd.grad(y, qkv, grad)
    apart = all_of(attend, list(qkv.detach().unbind(0)), grad)
    exact = [apart[0].double(), torch.stack(apart[1:]).double()]
    assert max(errors([y.detach(), d_qkv], exact)) < tolerance(dtype)
    assert y.permute(2, 0, 1, 3).is_contiguous() and d_qkv.permute(3, 1, 2, 0, 4).is_contiguous()
    assert apart[0].permute(2, 0, 1, 3).is_contiguous()


@pytest.mark.parametrize("masked", [False, True])
def test_heads_that_are_widened_some_at_a_time_are_those_of_the_formula(masked: bool, at_once: int) -> None:
    for shape in ((3, 6, 2, 70, 16), (2, 4, 4, MIN_POSITIONS, 8)):
        given, grad = made(shape, torch.bfloat16)
        sight = packed(shape[0], shape[3]) if masked else ALL_BEFORE
        exact = all_of(plainly, [x.double() for x in given], grad, mask=shown(sight) if masked else None)
        assert max(errors(all_of(attend, given, grad, sight=sight), exact)) < tolerance(torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_comes_from_later_positions_and_no_gradient_goes_there(dtype: torch.dtype) -> None:
    given, grad = made((1, 4, 2, 3 * BLOCK_QUERIES_ON_INTEL, 16), dtype)
    changed = [x.clone() for x in given]
    for x in changed:
        x[:, :, 150:] += 100
    assert torch.equal(attend(*given)[:, :, :150], attend(*changed)[:, :, :150])
    grad[:, :, 150:] = 0
    for d_x in all_of(attend, given, grad)[1:]:
        assert d_x[:, :, :150].any() and not d_x[:, :, 150:].any()


def test_a_block_is_given_the_keys_in_its_reach_and_no_others(kind: str) -> None:
    rows = BLOCK_QUERIES_ON_INTEL if kind == "at home" else BLOCK_QUERIES
    most = {"at home": MAX_POSITIONS_ON_INTEL, "away": MAX_POSITIONS, "without AVX-512": MAX_POSITIONS_WITHOUT_AVX512}[
        kind
    ]
    longer = BLOCK_QUERIES if kind == "away" else BLOCK_QUERIES_ON_INTEL
    for S, window, apart, expected in (
        (MIN_POSITIONS - 1, None, False, MIN_POSITIONS - 1),
        (MIN_POSITIONS - 1, 5, True, MIN_POSITIONS - 1),
        (MIN_POSITIONS + 1, None, False, rows),
        (most, None, False, longer),
        (most + 1, None, False, most + 1),
        (most + 1, None, True, rows),
        (most + 1, rows + 9, True, rows),
        (5 * BLOCK_QUERIES_IN_WINDOW, BLOCK_QUERIES_IN_WINDOW // 2, False, BLOCK_QUERIES_IN_WINDOW),
    ):
        sight = packed(2, S).within(window) if apart else Sight((), None, window)
        blocks = block_attention._blocks(S, sight)
        assert [b.queries.start for b in blocks] == list(range(0, S, expected)), (S, window)
        assert blocks[-1].queries.stop == S
        for here, there, triangle, masked in blocks:
            first = sight.first_seen(np.arange(S)[here])
            assert there.stop == here.stop and there.start == max(0, first.min())
            assert triangle == (there.start == here.start and first.max() <= there.start)
            assert masked == (apart and first.max() > there.start)
    assert sum(b.keys.stop - b.keys.start for b in blocks) < 2 * S  # because of the window


def test_a_block_within_one_document_needs_no_mask_of_its_own() -> None:
    S = 4 * BLOCK_QUERIES_ON_INTEL
    starts = np.repeat(np.array([0, S // 2]), S // 2)[:, None]
    blocks = block_attention._blocks(S, Sight((), starts))
    assert [b.masked for b in blocks] == [b.keys.start < S // 2 < b.queries.stop for b in blocks]
    assert [b.queries.start for b in blocks if b.triangle] == [0, S // 2]


def test_one_block_of_joined_ones_is_of_a_copy_where_positions_lie_far_apart(kind: str) -> None:
    for D, far in ((16, False), (32, True)):
        qkv, _ = made_joined((1, 11, 11, 2 * BLOCK_QUERIES, D), torch.float32)
        assert (4 * qkv.stride(3) >= MIN_FAR_STRIDE_BYTES) == far
        attended = attend_joined(qkv.requires_grad_())  # held: older torch frees what is saved with it
        saved, *_ = attended.grad_fn.saved_tensors
        assert saved.is_contiguous() == (kind != "away" and far)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("masked", [False, True])
def test_what_is_kept_is_what_torchs_attention_keeps(
    masked: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer therefore uses the predicted memory on any CPU."""
    B, N, G, S, D = shape = (2, 4, 2, MIN_POSITIONS, 32)
    kept = []
    for ours in (False, True):
        monkeypatch.setattr(block_attention, "suits", lambda q, ours=ours: ours)
        given = [x.requires_grad_() for x in made(shape, dtype)[0]]
        with SavedBytes(()).counting() as found:
            y = HERE.attend(*given, packed(B, S) if masked and ours else ALL_BEFORE)
        kept.append((found.bytes, y.stride()))
    assert kept[0] == kept[1]


def test_of_all_heads_only_some_are_wide_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    B, N, G, S, D = 3, 4, 2, 64, 8
    given, grad = made((B, N, G, S, D), torch.bfloat16)
    widened = []
    monkeypatch.setattr(block_attention, "BLOCK_ELEMENTS", 2 * S * D)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    original = processor_kernel.wide
    monkeypatch.setattr(processor_kernel, "wide", lambda x: widened.append(x.numel()) or original(x))
    all_of(attend, given, grad)
    assert max(widened) == 2 * S * D and len(widened) == B * G * (3 + 5)
    widened.clear()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)  # with an equal share of the work
    all_of(attend, given, grad)
    assert max(widened) == 2 * N * S * D


def test_every_road_of_bf16_is_in_fp32_where_bf16_is_slow_and_none_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    S, B = 40, 2
    (q, k, v), _ = made((B, 4, 4, S, 8), torch.bfloat16)
    roads = {
        "joined": lambda: HERE.attend_joined(torch.stack((q, k, v)), ALL_BEFORE),
        "apart": lambda: HERE.attend(q, k, v, ALL_BEFORE),
        "documents": lambda: HERE.attend(q, k, v, packed(B, S)),
        "window": lambda: HERE.attend(q, k, v, Sight((), None, 9)),
        "ring": lambda: processor_kernel.attend(q, k, v, causal=True)[0],
        "first reading": lambda: KVCache(S).attend(0, q, k, v, HERE),
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


@pytest.mark.broad
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("sight", [ALL_BEFORE, Sight((), None, 9)])
def test_a_compiled_block_holds_it_whole(sight: Sight, dtype: torch.dtype) -> None:
    given, grad = made((1, 2, 1, MIN_POSITIONS, 8), dtype)
    torch.compiler.reset()
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    exact = [x.double() for x in all_of(attend, given, grad, sight=sight)]
    assert max(errors(all_of(compiled, given, grad, sight=sight), exact)) < tolerance(dtype)


def test_it_is_asked_where_it_is_faster_and_nowhere_else(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds are measured. Few scores or positions are not worth the calls, and with many positions torch's kernel
    skips as much. Where MKL is faster, a copy pays for joined tensors of any length. Upcast inputs have one bound."""

    def of(S: int, N: int = 8, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(64, N, S, 2, dtype=dtype)

    assert suits(of(256)) and suits(of(256, dtype=torch.float64)) and not suits(of(256, dtype=torch.float16))
    assert not suits(of(256, N=1)[:1])
    assert MIN_SCORES > 256**2
    for S in (MIN_POSITIONS - 1, MAX_POSITIONS + 1):
        assert not suits(of(S)) and suits(of(S), joined=True) == (kind != "away")
    assert suits(of(MIN_WIDENED, dtype=torch.bfloat16))
    assert not suits(of(MIN_WIDENED - 1, dtype=torch.bfloat16))
    monkeypatch.setattr(processor, "_SLOW_BF16", False)
    for tiles in (False, True):
        monkeypatch.setattr(processor, "_TILES", tiles)
        assert suits(of(256, dtype=torch.bfloat16)) == (not tiles)
        assert not suits(of(MAX_WIDENED_POSITIONS + 1, dtype=torch.bfloat16))


def test_packed_documents_are_attended_each_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    qkv, _ = made_joined((2, 1, 1, 6, 4), torch.float64)
    apart = np.array([[0, 0, 0, 3, 3, 3]] * 2).T
    second = HERE.attend_joined(qkv, Sight((), apart))[:, :, 3:]
    assert torch.allclose(second, plainly(*qkv[:, :, :, 3:]), rtol=0, atol=1e-14)
    asked = []
    monkeypatch.setattr(block_attention, "suits", lambda q, **more: True)
    monkeypatch.setattr(block_attention, "attend_joined", lambda qkv: asked.append(1) or plainly(*qkv))
    whole = F.scaled_dot_product_attention(*qkv.unbind(0), is_causal=True)
    assert torch.allclose(HERE.attend_joined(qkv, ALL_BEFORE), whole, rtol=0, atol=1e-14) and asked
