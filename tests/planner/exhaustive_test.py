"""A search against every plan written out, checked and priced one by one."""

import itertools
from functools import cache

import pytest

from cost.plans import small
from planner.searches import subject_of
from trivium.certify.layouts import ROTARY
from trivium.cost.estimate import estimate
from trivium.cost.hardware import machine_named, this_machine
from trivium.cost.memory import worst_rank
from trivium.plan.plan import Plan
from trivium.plan.recompute import Recompute
from trivium.planner.config import SearchSpace
from trivium.planner.search import search

MACHINES = {
    "nodes": machine_named("selene").model_copy(update={"devices_per_node": 2, "nodes": 4}),
    "cores": this_machine(2, 8 << 30),
}
SPACE = SearchSpace(
    overlap_tensor=(False, True),
    micro=(1, 2),
    context=(1, 2),
    schedules=("1f1b", "interleaved", "zb-h1", "zb-v"),
    chunks=(2,),
    recompute=("none", "layer"),
    recompute_every=(1, 2),
    zero=(0, 1, 3),
    shards=(None, "node"),
)
WIDE = {
    **ROTARY,
    "hidden": 512,
    "layers": 6,
    "heads": 8,
    "kv_heads": 4,
    "head_width": 32,
    "qk_norm": "all_heads",
    "norm_position": "after",
    "documents": "apart",
    "head": "untied",
    "vocabulary": 4000,
    "sequence": 256,
}


def every_legal_plan(plan: Plan, ranks: int, node: int):
    """Yield all legal plans by loops and Plan.check; choices without an effect are made once."""
    powers = [n for n in range(1, ranks + 1) if ranks % n == 0]
    kinds = (("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-v", 2))
    for tensor, pipeline, data, context in itertools.product(powers, powers, powers, SPACE.context):
        replicas = data * context
        if tensor * pipeline * replicas != ranks or node % tensor:
            continue
        for micro, (schedule, chunks), (along, ring), mode, zero, shards in itertools.product(
            SPACE.micro,
            kinds,
            ((False, False), (True, False), (True, True)),
            SPACE.recompute,
            SPACE.zero,
            {None, node // tensor},
        ):
            if (tensor == 1 and along) or (replicas == 1 and zero) or (pipeline == 1 and schedule != "1f1b"):
                continue
            if shards is not None and (shards == 1 or shards == replicas or zero == 0):
                continue
            layout = {"tensor": tensor, "pipeline": pipeline, "data": data, "context": context}
            other = plan.model_copy(
                update={
                    "layout": plan.layout.model_validate({**layout, "chunks": chunks, "shards": shards}),
                    "batch": plan.batch.model_copy(update={"micro": micro}),
                    "schedule": schedule,
                    "zero": zero,
                    "sequence_parallel": along,
                    "overlap_tensor": ring,
                    "recompute": Recompute(mode=mode),
                }
            )
            if not other.check(ranks):
                yield other


@cache
def held(plan: Plan) -> float:
    """Return the bytes of the fullest rank; cached, because every search needs the same plans."""
    return worst_rank(plan)[1].total


@cache
def seconds(plan: Plan, name: str) -> float:
    """Return the seconds of a step, whatever memory the machine has; cached, because every search needs most plans."""
    return estimate(plan, MACHINES[name]).seconds


def lean(plan: Plan, limit: float) -> Plan | None:
    """Return the plan with the least recompute with which it fits, as docs/planning.md says; None if it never fits."""

    def with_(**recompute) -> Plan:
        return plan.model_copy(update={"recompute": Recompute(**recompute)})

    def fits(other: Plan) -> bool:
        return held(other) <= limit

    if plan.recompute.mode != "layer":
        choices = [plan, with_(activation_function=True)]
    elif fits(with_()):
        choices = [plan]
    else:
        halves = [with_(mode="layer", every=2, activation_function=again) for again in (False, True)]
        choices = [*halves, plan, with_(mode="layer", activation_function=True)]
    return next((choice for choice in choices if fits(choice)), None)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        pytest.param("nodes", 1.0, marks=pytest.mark.slow),
        *(pytest.param("nodes", share, marks=pytest.mark.broad) for share in (0.3, 0.1)),
        *(pytest.param("cores", share, marks=pytest.mark.broad) for share in (1.0, 0.3, 0.1)),
    ],
)
def test_a_search_finds_and_orders_what_is_found_one_by_one(name, share):
    """share: the fraction of plans that fit into the memory before any more is recomputed."""
    plan = small(model=WIDE, layout={"tensor": 1, "pipeline": 1, "data": 8}, precision={"weights": "bf16"})
    machine, node = MACHINES[name], 2 if name == "nodes" else 8
    legal = list(every_legal_plan(plan, 8, node))
    each_rank = sorted(map(held, legal))[int(share * (len(legal) - 1))]
    devices = machine.devices if machine.sharing == "shared" else 8
    there = machine.model_copy(update={"memory_bytes": each_rank * 8 // devices})
    space = SPACE.model_copy(update={"memory_fraction": 1.0})
    found = search(subject_of(plan), there, 8, space)
    candidates = found.enumerated.candidates
    assert {candidates.plan_at(row) for row in range(len(candidates))} == set(legal)
    limit = there.memory_per_rank(8)
    fitting = {other for each in legal if (other := lean(each, limit)) is not None}
    ranked = found.ranking.priced.candidates.take(found.ranking.priced.fitting)
    rows = {ranked.plan_at(row) for row in range(len(ranked))}
    assert rows == fitting and len(rows) > 20
    best = min(seconds(each, name) for each in fitting)
    assert found.ranking.winners(1)[0].seconds == pytest.approx(best, rel=1e-5)
