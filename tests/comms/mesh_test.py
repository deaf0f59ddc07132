"""A rank's place in its groups is the one its layout gives it and torch has for it, whatever the order of the axes."""

import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from plans import small
from ranks import ranks
from trivium.comms import collectives
from trivium.comms.group import TAGS
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh, _join, _sets_of_ranks, greet_neighbours
from trivium.comms.transfers import _tag
from trivium.errors import ConfigError
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.layout import AXES, Layout
from trivium.plan.schedule import Action, Op
from trivium.plan.transfers import Transfer
from trivium.training.trainer import Trainer


def orders(degrees: dict[str, int]) -> Iterator[tuple[str, ...]]:
    """Every order of the axes that have several ranks, the others now before, now behind them."""
    several = [axis for axis in AXES if degrees.get(axis, 1) > 1]
    others = tuple(axis for axis in AXES if axis not in several)
    for number, order in enumerate(permutations(several)):
        yield (*order, *others) if number % 2 else (*others, *order)


@ranks(4, 8)
def test_a_rank_has_its_place_in_every_group(place: Place) -> None:
    halves = {
        4: ({"data": 2, "context": 2}, {"pipeline": 2, "context": 2}),
        8: ({"tensor": 2, "data": 2, "context": 2, "shards": 2}, {"data": 4, "context": 2, "shards": 4, "expert": 2}),
    }
    for degrees in halves[place.world_size]:
        for order in orders(degrees):
            layout = Layout(**degrees, order=order)
            mesh = Mesh.connect(layout, place.rank, place.world_size)
            assert mesh.at == layout.coordinate(place.rank), order
            of_experts = (mesh.expert, mesh.expert_replicas, mesh.expert_sharers)
            across = (mesh.replicas, mesh.ends, mesh.sharers, mesh.holders, *of_experts)
            for group in (mesh.tensor, mesh.data, mesh.context, mesh.pipeline, *across):
                if group.handle is not None:
                    assert dist.get_rank(group.handle) == group.index, (group.role, order)
                    assert dist.get_process_group_ranks(group.handle) == list(group.ranks), (group.role, order)
                assert group.ranks[group.index] == place.rank, (group.role, order)
            assert set(mesh.replicas.ranks) == set(layout.peers(place.rank, "data", "context")), order
            # Copies lie side by side: whoever shares one is nearer than all others that hold the same weights.
            number, place_in_copy = divmod(mesh.replicas.index, layout.sharers)
            assert (mesh.holders.index, mesh.sharers.index) == (number, place_in_copy), order
            assert mesh.sharers.size * mesh.holders.size == layout.replicas, order
            assert mesh.expert.index == layout.expert_rank(mesh.at), order
            assert mesh.expert_sharers.index == layout.expert_sharer(mesh.at), order
            assert mesh.expert_sharers.size * mesh.holders.size == mesh.expert_replicas.size, order
            mesh.disconnect()


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
@ranks(4)
def test_a_mesh_that_is_given_back_leaves_no_thread(place: Place) -> None:
    """Otherwise a process that has many, one after the other, is kept busy by the threads of those it had."""

    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    before = threads()
    mesh = Mesh.connect(Layout(tensor=2, data=2), place.rank, place.world_size)
    collectives.all_reduce_(torch.ones(1), mesh.tensor)
    assert threads() > before
    mesh.disconnect()
    del mesh
    assert threads() == before


@ranks(3)
def test_a_mesh_knows_whose_ends_it_joins(place: Place) -> None:
    usual, other = (
        Mesh.connect(Layout(pipeline=3), place.rank, place.world_size, ends=ends) for ends in (None, (2, 1))
    )
    assert usual.joins((0, 2)) and other.joins((2, 1))
    assert usual.joins((2, 1)) == (place.rank == 0) and other.joins((0, 2)) == (place.rank == 1)


@ranks(4)
def test_whoever_takes_heads_in_turns_is_an_end(place: Place) -> None:
    given = small(pipeline=4, chunks=2, schedule="zb-turns", model={"layers": 8})
    assert given.ends == (0, 1, 2, 3) and given.ends_apart
    mesh = Mesh.connect(given.layout, place.rank, place.world_size, ends=given.ends)
    assert mesh.ends.ranks == (0, 1, 2, 3) and mesh.ends.index == place.rank
    assert mesh.joins(given.ends) and mesh.joins((0, 3))
    usual = Mesh.connect(given.layout, place.rank, place.world_size)
    assert not usual.joins(given.ends)


@ranks(3)
def test_a_trainer_refuses_a_mesh_of_other_ends(place: Place) -> None:
    rows = tuple(" ".join(f"{op}{m}.{stage}" for op in "FB" for m in range(4)) for stage in (1, 0, 2))
    given = small(pipeline=3, schedule="given", rows=rows, batch={"sequences": 8})
    assert given.ends == (1, 2)
    usual = Mesh.connect(given.layout, place.rank, place.world_size)
    with pytest.raises(ConfigError, match="other ends") if place.rank in given.ends else nullcontext():
        Trainer(given, usual, seed=1, rule=AdamRule())
    right = Mesh.connect(given.layout, place.rank, place.world_size, ends=given.ends)
    assert Trainer(given, right, seed=1, rule=AdamRule()).buckets


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize(("role", "urgent"), [("pipeline", True), ("tensor", True), ("replicas", False)])
def test_accelerators_connect_at_once_and_what_is_urgent_goes_first(
    role: str, urgent: bool, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each group is asked for once; torch connects those whose device it knows, and puts off the others."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(dist, "get_backend", lambda group=None: backend)
    monkeypatch.setattr(dist, "new_group", lambda ranks, **how: asked.append({"ranks": ranks, **how}))
    nccl = SimpleNamespace(Options=lambda **given: SimpleNamespace(**given))
    monkeypatch.setattr(dist, "ProcessGroupNCCL", nccl, raising=False)
    device, timeout = torch.device("cuda", 1), timedelta(seconds=7)
    mine = _join(1, device, timeout, {}, role, [(0, 1), (2, 3), (4,)])
    assert mine.ranks == (0, 1) and [each["ranks"] for each in asked] == [[0, 1], [2, 3]]
    for each in asked:
        assert each["timeout"] == timeout
        if backend == "gloo":
            assert each.keys() == {"ranks", "timeout"}
            continue
        assert each["device_id"] == device and each["pg_options"]._timeout == timeout
        assert each["pg_options"].is_high_priority_stream is urgent


def test_thousands_of_ranks_find_their_groups_in_a_moment() -> None:
    begin = time.process_time()
    for degrees in ({"data": 2240}, {"tensor": 8, "data": 280}, {"tensor": 8, "pipeline": 35, "data": 4, "context": 2}):
        layout = Layout(**degrees)
        for axes in (("data",), ("tensor",), ("pipeline",), ("data", "context")):
            sets = layout.peer_sets(*axes)
            assert sorted(rank for each in sets for rank in each) == list(range(2240))
            for peers in (sets[0], sets[-1]):
                assert all(layout.peers(rank, *axes) == peers for rank in (peers[0], peers[-1]))
    assert time.process_time() - begin < 3, "asking every rank for all its peers takes half a minute"


@ranks(2, 3, 4)
def test_neighbours_of_a_pipeline_meet_each_other(place):
    mesh = Mesh.connect(Layout(pipeline=place.world_size), place.rank, place.world_size)
    here, size = place.rank, place.world_size
    assert greet_neighbours(mesh.pipeline, mesh.device) == ((here - 1) % size, (here + 1) % size)


def test_tags_of_direct_messages_are_above_those_of_pipeline_transfers() -> None:
    """A message would otherwise be received in the place of another. Gloo takes tags of 31 bits."""
    last = Transfer(1, 0, Action(Op.BACKWARD, micro_batch=100_000, stage=4095))
    assert _tag(last) < TAGS[0] and TAGS[-1] < 1 << 31


@pytest.mark.parametrize(
    ("degrees", "more"),
    [
        ({"data": 4}, set()),
        ({"data": 2, "context": 2}, {"replicas"}),
        ({"data": 4, "shards": 2}, {"sharers", "holders"}),
        ({"data": 6, "shards": 2}, {"sharers", "holders"}),
        ({"data": 2, "context": 2, "shards": 2}, {"replicas", "sharers", "holders"}),
    ],
)
def test_only_groups_of_other_ranks_have_communicators_of_their_own(degrees: dict[str, int], more: set[str]) -> None:
    """Each costs an accelerator memory, and connections among its ranks."""
    layout = Layout(**degrees)
    found = _sets_of_ranks(layout, (0, 0))
    assert found.keys() - {*AXES, "ends"} == more
    for role in more:
        assert sorted(rank for ranks in found[role] for rank in ranks) == list(range(layout.world_size))
    assert all(len(ranks) == layout.copies for ranks in found.get("holders", ()))
