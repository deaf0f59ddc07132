"""Attention over a split sequence equals attention over the whole one, values and gradients."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from ranks import on_ranks
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.kernels import crossing
from trivium.kernels.attention import Attention
from trivium.kernels.cpu.attention import CpuAttention
from trivium.kernels.operations import operations_of
from trivium.kernels.sight import Seen, Sight
from trivium.parallel.context import ring as ring_attention
from trivium.parallel.context.attention import Context
from trivium.plan.layout import Layout

B, N, G, S, D = 2, 4, 2, 16, 6
PIECES = ((0, 12, 4), (4, 8, 4), (0, 14, 2), (6, 8, 2), (0, 7, 1))  # starts of two runs of positions, their length


def plain(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: np.ndarray | None, window: int | None
) -> torch.Tensor:
    """Return attention with a softmax over all keys at once, [B, N, S, D]."""
    k, v = (x.repeat_interleave(N // G, 1) for x in (k, v))
    seen = torch.ones(S, S).tril().triu(1 - (window or S)).bool()[None, None]
    if starts is not None:
        document = torch.from_numpy(starts).T
        seen = seen & (document[:, None, :, None] == document[:, None, None, :])
    scores = (q @ k.transpose(-1, -2) / math.sqrt(D)).masked_fill(~seen, -math.inf)
    return scores.softmax(-1) @ v


def order_of(mode: str, ranks: int) -> tuple[torch.Tensor, ...]:
    if mode == "ulysses":
        return tuple(torch.arange(S).chunk(ranks))
    if mode == "scattered":  # no tile is whole or a triangle
        return tuple(torch.randperm(S, generator=torch.Generator().manual_seed(5)).chunk(ranks))
    pieces = torch.arange(S).chunk(2 * ranks)
    return tuple(torch.cat([pieces[r], pieces[2 * ranks - 1 - r]]) for r in range(ranks))


def compare(place: Place, mode: str, packed: bool, window: int | None = None) -> None:
    group = Mesh.connect(Layout(context=place.world_size), place.rank, place.world_size).context
    generator = torch.Generator().manual_seed(3)
    shapes = [(B, N, S, D), (B, G, S, D), (B, G, S, D)]
    whole = [torch.randn(x, generator=generator, dtype=torch.float64).requires_grad_() for x in shapes]
    weight = torch.randn((B, N, S, D), generator=generator, dtype=torch.float64)
    starts = np.array([[0] * 5 + [5] * 2 + [7] * 9, [0] * 11 + [11] * 5]).T if packed else None
    expected = plain(*whole, starts, window)
    (expected * weight).sum().backward()
    order = order_of(mode, place.world_size)
    mine = order[group.index]
    here = [x.detach()[:, :, mine].clone().requires_grad_() for x in whole]
    seen = Sight(tuple(x.numpy() for x in order), starts).within(window)
    got = Context(group, "ulysses" if mode == "ulysses" else "ring", operations_of("cpu").attention).attend(*here, seen)
    (got * weight[:, :, mine]).sum().backward()
    torch.testing.assert_close(got, expected[:, :, mine], rtol=1e-12, atol=1e-12)
    for part, full in zip(here, whole, strict=True):
        assert full.grad is not None
        torch.testing.assert_close(part.grad, full.grad[:, :, mine], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("mode", "ranks"), [("ring", 1), ("ring", 2), ("ring", 4), ("scattered", 2), ("scattered", 4), ("ulysses", 2)]
)
def test_a_split_sequence_attends_as_the_whole_one(mode: str, ranks: int, packed: bool) -> None:
    on_ranks(ranks, compare, mode, packed)


def compare_windows(place: Place, mode: str, packed: bool) -> None:
    for window in (1, 2, 3, 5, 8, 15):
        compare(place, mode, packed, window)


@pytest.mark.broad
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("mode", "ranks"), [("ring", 1), ("ring", 2), ("scattered", 4), ("ulysses", 2)])
def test_a_split_sequence_attends_through_a_window_as_the_whole_one(mode: str, ranks: int, packed: bool) -> None:
    on_ranks(ranks, compare_windows, mode, packed)


def without_masks(name: str, fused: Any) -> Any:
    """Return a kernel as GPUs have it: attention that needs a mask is computed by the reference."""
    reference = getattr(Attention, name)
    return lambda self, *given, mask, **more: (fused if mask is None else reference)(self, *given, mask=mask, **more)


@pytest.mark.parametrize("kernel", ["takes masks", "takes none", "is not there"])
@pytest.mark.parametrize(
    ("mode", "packed", "window"),
    [("ring", True, None), ("scattered", False, None), ("ring", False, 5), ("scattered", True, 2)],
)
def test_what_is_seen_in_part_is_attended_some_queries_at_a_time(
    mode: str, packed: bool, window: int | None, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that takes masks computes it, or the formula. Without a kernel, as for fp32 on a GPU, only the
    formula does."""
    monkeypatch.setattr(ring_attention, "BLOCK_QUERIES", 3)
    for name in ("tile", "tile_gradients"):
        if kernel == "is not there":
            monkeypatch.setattr(CpuAttention, name, getattr(Attention, name))
        elif kernel == "takes none":
            monkeypatch.setattr(CpuAttention, name, without_masks(name, getattr(CpuAttention, name)))
    if kernel == "is not there":
        monkeypatch.setattr(CpuAttention, "fuses", Attention.fuses)
    on_ranks(2, compare, mode, packed, window)


def test_what_tiles_say_is_what_the_mask_shows() -> None:
    generator = np.random.default_rng(1)
    orders = [np.arange(8), np.arange(8, 16), np.array([3]), np.arange(15, -1, -1)[:8]]
    orders += [generator.permutation(24)[: 2 * n] for n in range(1, 9)]
    found = set()
    for sight in (Sight((a, b), None) for a in orders for b in orders):
        whole = sight.mask(*(torch.from_numpy(x) for x in sight.order))[0, 0]
        covered = torch.zeros_like(whole)
        for tile in sight.tiles(0, 1):
            part = whole[tile.here, tile.there]
            covered[tile.here, tile.there] = True
            assert part.any() and part.all() == (tile.seen is Seen.ALL)
            assert tile.seen is not Seen.TRIANGLE or torch.equal(part, torch.ones_like(part).tril())
            found.add(tile.seen)
        assert not whole[~covered].any()  # nothing that is seen is left out
    assert found == set(Seen)


@pytest.mark.parametrize("window", [1, 2, 3, 5, 9, 30])
def test_tiles_through_a_window_leave_out_what_nobody_sees_and_nothing_else(window: int) -> None:
    """Tiles are exact for pieces of consecutive positions, as in a ring. Others have at least what is visible."""
    generator = np.random.default_rng(window)
    pieces = [np.concatenate([np.arange(a, a + n), np.arange(b, b + n)]) for a, b, n in PIECES]
    scattered = [generator.permutation(24)[: 2 * n] for n in range(1, 9)]
    found = set()
    for sight in (Sight((a, b), None, window) for a in pieces + scattered for b in pieces + scattered):
        whole = sight.mask(*(torch.from_numpy(x) for x in sight.order))[0, 0]
        in_order = all((np.diff(half) == 1).all() for x in sight.order for half in np.split(x, 2))
        covered = torch.zeros_like(whole)
        for tile in sight.tiles(0, 1):
            near = sight.in_reach(tile, 0, 1)
            assert near is not None or not in_order
            if near is None:
                continue
            part = whole[near.here, near.there]
            covered[near.here, near.there] = True
            assert not in_order or (part.any(0)[0] and part.any(0)[-1])
            assert tile.seen is Seen.SOME or near == tile
            assert tile.seen is not Seen.ALL or part.all()
            assert tile.seen is not Seen.TRIANGLE or torch.equal(part, torch.ones_like(part).tril())
            found.add(tile.seen)
        assert not whole[~covered].any()
    assert found == (set(Seen) if window > 1 else {Seen.ALL, Seen.SOME})


@pytest.mark.parametrize("window", [None, 1, 3, 30])
def test_tiles_of_packed_documents_leave_out_what_nobody_sees(window: int | None) -> None:
    generator = np.random.default_rng(7)
    pieces = [np.concatenate([np.arange(a, a + n), np.arange(b, b + n)]) for a, b, n in PIECES]
    found = set()
    for _ in range(8):
        begins = generator.random((24, 2)) < generator.choice((0.04, 0.15, 0.5))
        begins[0] = True
        starts = np.maximum.accumulate(begins * np.arange(24)[:, None])
        for sight in (Sight((a, b), starts, window) for a in pieces for b in pieces):
            whole = sight.mask(*(torch.from_numpy(x) for x in sight.order)).any(0)[0]
            every = sight.mask(*(torch.from_numpy(x) for x in sight.order)).all(0)[0]
            covered = torch.zeros_like(whole)
            for near in (sight.in_reach(tile, 0, 1) for tile in sight.tiles(0, 1)):
                if near is None:
                    continue
                covered[near.here, near.there] = True
                part = every[near.here, near.there]
                assert near.seen is not Seen.ALL or part.all()
                assert near.seen is not Seen.TRIANGLE or torch.equal(part, torch.ones_like(part).tril())
                found.add(near.seen)
            assert not whole[~covered].any()
    assert found >= {Seen.ALL, Seen.SOME}


def test_a_mask_lies_in_memory_as_accelerators_kernels_take_it() -> None:
    """Keys are contiguous; with another layout torch materialises all scores instead."""
    every = torch.arange(8)
    assert Sight((), np.zeros((3, 8), np.int64).T).mask(every, every).is_contiguous()


@pytest.mark.parametrize(
    ("device", "dtype", "repeated"),
    [("cuda", torch.float32, True), ("cuda", torch.bfloat16, False), ("cpu", torch.float32, False)],
)
def test_keys_are_repeated_where_no_kernel_gives_one_to_several_heads(
    device: str, dtype: torch.dtype, repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, bool]] = []

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **more: Any) -> torch.Tensor:
        given.append((k.shape[1], more.get("enable_gqa", False)))
        return q

    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    with FakeTensorMode():
        q, k = (torch.empty(2, heads, 8, 16, device=device, dtype=dtype) for heads in (4, 2))
        operations_of(device).attention.attend(q, k, k, Sight((), None))
    assert given == [(4, False) if repeated else (2, True)]


def test_the_positions_of_a_rank_are_sent_once_for_all_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    where = "trivium.kernels.sight.sent"
    monkeypatch.setattr(where, lambda x, *to: sent.append(len(x)) or crossing.sent(x, *to))
    monkeypatch.setattr(ring_attention, "BLOCK_QUERIES", 3)
    order = tuple(x.numpy() for x in order_of("scattered", 1))
    seen, group = Sight(order, None), Mesh.single().context
    q = torch.randn(B, N, S, D, dtype=torch.float64, requires_grad=True)
    for _ in range(2):  # layers
        ring_attention.ring_attention(q, q, q, seen, group, CpuAttention()).sum().backward()
    assert sent == [S]
