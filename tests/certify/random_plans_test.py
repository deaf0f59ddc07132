"""Laws of random plans: legal, different, reduced already, the same for a seed, and what no list thought of."""

import numpy as np
import pytest

from faults import parts
from faults.mutant import Mutant
from faults.run import CATALOGUE
from plans import small
from trivium.certify.certificate import certificate, examine
from trivium.certify.random_plans import random_plans, random_table
from trivium.certify.reduce import reduced
from trivium.certify.reference import compute_reference
from trivium.comms.mesh import Mesh
from trivium.plan.layers.form import LayerForm
from trivium.plan.plan import Plan
from trivium.plan.schedule import is_split, stages_of_ranks, table_problems

PLANS = random_plans(200, 8, seed=0)
PARTS = ("norm", "qk_norm", "score_scale", "score_cap", "residual_scale", "logits_scale", "logits_cap")


def test_plans_are_legal_different_reduced_and_within_the_ranks_asked_for() -> None:
    assert len(set(PLANS)) == len(PLANS) == 200
    assert [p.check() for p in PLANS if p.check()] == []
    assert [p for p in PLANS if reduced(p) != p] == []
    assert max(p.layout.world_size for p in PLANS) == 8
    assert max(p.layout.world_size for p in random_plans(20, 3, seed=0)) == 3


def test_a_seed_gives_the_same_plans_and_more_of_them_begin_alike() -> None:
    assert random_plans(20, 8, seed=0) == PLANS[:20]
    assert not set(random_plans(20, 8, seed=1)) & set(PLANS)


def test_they_hold_what_the_sweep_does_not() -> None:
    assert {p.schedule for p in PLANS} == {
        "gpipe",
        "1f1b",
        "1f1b-split",
        "interleaved",
        "zb-h1",
        "zb-v",
        "zb-turns",
        "given",
    }
    assert len({p.layout.order for p in PLANS}) == 24
    assert {p.batch.micro for p in PLANS} >= {1, 2}
    given = [p for p in PLANS if p.schedule == "given"]
    assert any(p.ends != (0, p.layout.pipeline - 1) for p in given)
    assert any(p.zero == 3 and p.layout.replicas > 1 for p in given)


def test_random_plans_vary_every_setting_of_a_layer() -> None:
    """A part that no plan has is not certified. Sizes are those of small models."""
    varied = {name for name in LayerForm.model_fields if len({getattr(p.model, name) for p in PLANS}) > 1}
    assert {*LayerForm.model_fields} - varied == set()


@pytest.mark.parametrize(
    "mutant", [m for m in CATALOGUE[parts] if m.plans[0].layout.world_size == 1], ids=lambda m: m.name
)
def test_random_plans_catch_a_fault_in_a_part_of_gemma_or_granite(mutant: Mutant) -> None:
    """The first of them that has the part, on one process, passes without the fault and fails with it."""
    plan = next(p for p in random_plans(200, 1, seed=0) if in_use(mutant, p))
    mesh, reference = Mesh.single(), compute_reference(plan)
    assert certificate(plan, examine(plan, mesh, reference).deviations).passed
    with mutant.applied(mesh):
        assert not certificate(plan, examine(plan, mesh, reference).deviations).passed


def in_use(mutant: Mutant, plan: Plan) -> bool:
    """Whether a random plan has the part in which the fault is, and trains it: beside adapters, weights of norms stay
    where they begin, at 0, which hides what multiplies them."""
    own, default = mutant.plans[0].model, small().model
    settings = [name for name in PARTS if getattr(own, name) != getattr(default, name)]
    return not plan.model.adapters and all(getattr(plan.model, name) == getattr(own, name) for name in settings)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_random_table_can_be_run_and_leaves_no_rank_idle(seed: int, split: bool) -> None:
    generator = np.random.Generator(np.random.Philox(seed))
    table = random_table(generator, pipeline=3, stages=5, micro_batches=4, split=split)
    assert table_problems(table, pipeline=3, stages=5, micro_batches=4) == []
    assert is_split(table) is split
    assert sorted(s for own in stages_of_ranks(table) for s in own) == list(range(5))
    assert all(table)
