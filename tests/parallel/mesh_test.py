"""A rank's place in its groups is the one its layout gives it and torch has for it, whatever the order of the axes."""

from contextlib import nullcontext
from itertools import permutations

import pytest
import torch.distributed as dist

from plans import small
from ranks import ranks
from trivium.parallel.launch import Place
from trivium.parallel.mesh import Mesh
from trivium.parallel.zero import AdamRule
from trivium.plan.layout import AXES, Layout
from trivium.training.trainer import Trainer


@ranks(4, 8)
def test_a_rank_has_its_place_in_every_group(place: Place) -> None:
    halves = {
        4: ({"data": 2, "context": 2}, {"pipeline": 2, "context": 2}),
        8: ({"tensor": 2, "data": 2, "context": 2},),
    }
    for degrees in halves[place.world_size]:
        for order in permutations(AXES):
            layout = Layout(**degrees, order=order)
            mesh = Mesh.connect(layout, place.rank, place.world_size)
            assert mesh.at == layout.coordinate(place.rank), order
            for group in (mesh.tensor, mesh.data, mesh.context, mesh.pipeline, mesh.replicas, mesh.ends):
                if group.handle is not None:
                    assert dist.get_rank(group.handle) == group.index, (group.role, order)
                    assert dist.get_process_group_ranks(group.handle) == list(group.ranks), (
                        group.role,
                        order,
                    )
                assert group.ranks[group.index] == place.rank, (group.role, order)
            assert set(mesh.replicas.ranks) == set(layout.peers(place.rank, "data", "context")), order


@ranks(3)
def test_a_mesh_knows_whose_ends_it_joins(place: Place) -> None:
    usual, other = (
        Mesh.connect(Layout(pipeline=3), place.rank, place.world_size, ends=ends) for ends in (None, (2, 1))
    )
    assert usual.joins((0, 2)) and other.joins((2, 1))
    assert usual.joins((2, 1)) == (place.rank == 0) and other.joins((0, 2)) == (place.rank == 1)


@ranks(3)
def test_a_trainer_refuses_a_mesh_of_other_ends(place: Place) -> None:
    rows = tuple(" ".join(f"{op}{m}.{stage}" for op in "FB" for m in range(4)) for stage in (1, 0, 2))
    given = small(pipeline=3, schedule="given", rows=rows, batch={"sequences": 8})
    assert given.ends == (1, 2)
    usual = Mesh.connect(given.layout, place.rank, place.world_size)
    with pytest.raises(AssertionError, match="other ends") if place.rank in given.ends else nullcontext():
        Trainer(given, usual, seed=1, rule=AdamRule())
    right = Mesh.connect(given.layout, place.rank, place.world_size, ends=given.ends)
    assert Trainer(given, right, seed=1, rule=AdamRule()).buckets
