"""Gathering and reducing slices is the same however the ranks exchange them."""

import time

import pytest
import torch
import torch.distributed as dist

from ranks import on_ranks
from trivium.comms import transports
from trivium.comms.collectives import (
    all_gather,
    all_gather_into,
    all_reduce_,
    all_to_all,
    reduce_scatter,
    reduce_scatter_begin,
    rotate,
)
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.comms.pretend import pretended
from trivium.plan.layout import Layout

SLICE = 1000


def value(rank: int, number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * rank + number)
    return torch.randn(SLICE, generator=generator, dtype=torch.float64)


def slices_reach_their_owners(place: Place, direct_from: int | None) -> None:
    layout, by_memory = Layout(data=place.world_size), direct_from is None
    transports.DIRECT_BYTES = direct_from or 0
    group = Mesh.connect(layout, place.rank, place.world_size, by_memory=by_memory).replicas
    assert type(group.transport).__name__ == ("HostMemory" if by_memory else "Gloo")
    ranks = range(group.size)
    whole = torch.cat([value(group.index, n) for n in ranks])
    # Several under way at once, ended in another order than begun.
    begun = [reduce_scatter_begin(whole * k, group) for k in range(3)]
    gathered = torch.full((group.size * SLICE,), torch.nan, dtype=torch.float64)
    own = gathered[group.index * SLICE : (group.index + 1) * SLICE].copy_(value(group.index, 0))
    gathering = all_gather_into(gathered, own, group, wait=False)
    for k in (2, 0, 1):
        expected = k * torch.stack([value(r, group.index) for r in ranks]).sum(0)
        torch.testing.assert_close(begun[k].wait(), expected, rtol=1e-14, atol=1e-14)
    assert gathering is not None, "there are others to gather from"
    gathering.wait()
    assert torch.equal(gathered, torch.cat([value(r, 0) for r in ranks]))
    from_elsewhere = torch.empty_like(gathered)
    all_gather_into(from_elsewhere, value(group.index, 0), group)
    assert torch.equal(from_elsewhere, gathered)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("direct_from", [None, 0, 1 << 40])
def test_slices_are_gathered_and_summed_by_memory_directly_or_by_gloo(ranks: int, direct_from: int | None) -> None:
    on_ranks(ranks, slices_reach_their_owners, direct_from)


def waiting_is_counted(place: Place, by_memory: bool) -> None:
    group = Mesh.connect(Layout(context=2), place.rank, 2, by_memory=by_memory).context
    for size in (2, 4096):
        x = torch.ones(size)
        for name, work in {
            "all_reduce": lambda x=x: all_reduce_(x, group),
            "all_gather": lambda x=x: all_gather(x, group),
            "reduce_scatter": lambda x=x: reduce_scatter(x, group),
            "all_to_all": lambda x=x: all_to_all(x.view(2, -1), group),
            "rotate": lambda x=x: rotate((x,), group),
        }.items():
            dist.barrier()
            before = group.waited[0]
            time.sleep(0.1 * place.rank)
            work()
            waited = group.waited[0] - before
            assert waited > 0.05 or place.rank == 1, f"{name} of {size}: the other came 0.1 s late, not {waited}"


@pytest.mark.parametrize("by_memory", [True, False])
def test_the_time_a_rank_waits_for_another_is_counted(by_memory: bool) -> None:
    """Slow ranks are found by it: without it, those that wait seem to work."""
    on_ranks(2, waiting_is_counted, by_memory)


def test_a_slice_that_is_gathered_in_place_is_not_copied_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only gloo needs a copy."""
    given: list[int] = []

    def gather(out: torch.Tensor, x: torch.Tensor, **how: object) -> None:
        given.append(x.data_ptr())

    monkeypatch.setattr(transports, "_gather", gather)
    with pretended(Layout(data=2), 1) as mesh:
        whole = torch.zeros(6)
        own = whole.view(2, 3)[1]
        all_gather_into(whole, own, mesh.data, wait=False)
    assert given == [own.data_ptr()]
