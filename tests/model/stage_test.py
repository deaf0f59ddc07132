"""The model holds exactly the rows of the parameter table, for many layouts, on the meta device."""

import pytest
import torch

from plans import small
from trivium.certify.layouts import ROTARY
from trivium.comms.group import ROLES, Group
from trivium.comms.mesh import Mesh
from trivium.model.stage import Stage
from trivium.plan.parameters import TOKENS, local_shape, parameters
from trivium.plan.plan import Plan

PLANS = [
    small(),
    small(tensor=2, pipeline=2, chunks=2),
    small(tensor=4, model={"head": "untied"}),
    small(pipeline=4, model={**ROTARY, "kv_heads": 2, "hidden": 32}),
    small(tensor=2, pipeline=3, model={"layers": 7, **ROTARY, "hidden": 32}, batch={"sequences": 12}),
]


def mesh_of(plan: Plan, rank: int) -> Mesh:
    """A mesh without communicators: enough to build, not to run."""
    layout = plan.layout
    groups = {a: Group(a, layout.peers(rank, a), layout.peers(rank, a).index(rank), None) for a in layout.order}
    alone = {name: Group(name, (rank,), 0, None) for name in ROLES if name not in groups}
    return Mesh(layout, rank, torch.device("meta"), **alone, **groups)


@pytest.mark.parametrize("plan", PLANS)
def test_model_and_table_agree_on_names_and_shapes(plan: Plan) -> None:
    seen: dict[str, int] = {}
    for rank in range(plan.layout.world_size):
        mesh = mesh_of(plan, rank)
        for number in plan.stages_of(mesh.at.pipeline):
            with torch.device("meta"):
                stage = Stage(plan, number, mesh)
            held = {n: tuple(p.shape) for n, p in stage.named_parameters()}
            assert held == {n: local_shape(p, plan.model, plan.layout) for n, p in stage.table.items()}
            if mesh.tensor.index == 0:
                for name in held:
                    seen[name] = seen.get(name, 0) + 1
    twice = plan.model.head == "tied" and plan.layout.pipeline > 1
    assert seen == {p.name: 1 + (twice and p.name == TOKENS) for p in parameters(plan.model)}
