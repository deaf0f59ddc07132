"""Two plans that do the same cost the same: seconds, memory and traffic of every rank."""

import pytest

from cost.plans import small
from trivium.certify.layouts import ROTARY
from trivium.cost.estimate import Method, estimate
from trivium.cost.hardware import machine_named, this_machine
from trivium.cost.memory import memory_of_rank
from trivium.cost.traffic import step_traffic
from trivium.plan.layout import Coordinate
from trivium.plan.plan import Plan

SELENE, HERE = machine_named("selene"), this_machine(2, 8 << 30)
ALONE = {"tensor": 1, "pipeline": 1, "data": 1}
LLAMA = {**ROTARY, "heads": 8, "hidden": 128}


def given(plan: Plan) -> Plan:
    """The same table, as rows of one's own."""
    rows = tuple(" ".join(map(str, row)) for row in plan.schedule_table())
    return plan.model_copy(update={"schedule": "given", "rows": rows}).checked()


PAIRS = {
    "a sequence split over one tensor rank": (
        small(layout={"tensor": 1}),
        small(layout={"tensor": 1}, sequence_parallel=True),
    ),
    "rings of one": (small(), small(context_attention="ulysses")),
    "optimizer state sharded over one replica": (small(layout={"data": 1}, zero=0), small(layout={"data": 1}, zero=1)),
    "all replicas share a copy": (
        small(layout={"data": 4, "tensor": 1}, zero=3),
        small(layout={"data": 4, "tensor": 1, "shards": 4}, zero=3),
    ),
    "all replicas share a copy, of two axes": (
        small(layout={"data": 2, "context": 2}, zero=2),
        small(layout={"data": 2, "context": 2, "shards": 4}, zero=2),
    ),
    "all micro-batches before any backward, on one rank": (
        small(layout={"pipeline": 1}, batch={"sequences": 4, "micro": 2}, schedule="gpipe"),
        small(layout={"pipeline": 1}, batch={"sequences": 4, "micro": 2}),
    ),
    "weight gradients on their own, on one rank": (
        small(layout={"pipeline": 1}, schedule="zb-h1"),
        small(layout={"pipeline": 1}, schedule="1f1b-split"),
    ),
    "every k-th layer of those of which none is recomputed": (small(), small(recompute={"every": 3})),
    "as many key-value heads as heads": (small(model=LLAMA), small(model={**LLAMA, "kv_heads": 8})),
    "heads that share the width": (small(model=LLAMA), small(model={**LLAMA, "head_width": 16})),
    "the usual feed-forward width": (small(), small(model={"ffn": 256})),
    "the usual partition": (small(model={"layers": 9}), small(partition={"layers": [5, 4]}, model={"layers": 9})),
    "an order of axes of which one has ranks": (
        small(layout={**ALONE, "data": 16}),
        small(layout={**ALONE, "data": 16, "order": ["tensor", "data", "context", "pipeline"]}),
    ),
    "rows of one's own, 1f1b": (small(), given(small())),
    "rows of one's own, zero bubble": (small(schedule="zb-h1"), given(small(schedule="zb-h1"))),
    "rows of one's own, interleaved": (
        small(layout={"chunks": 2}, schedule="interleaved"),
        given(small(layout={"chunks": 2}, schedule="interleaved")),
    ),
    "rows of one's own, both ends on a rank": (
        small(layout={"chunks": 2}, schedule="zb-v"),
        given(small(layout={"chunks": 2}, schedule="zb-v")),
    ),
    "the accumulator's dtype, named": (
        small(precision={"weights": "bf16"}),
        small(precision={"weights": "bf16", "gradients": "fp32", "communication": "fp32"}),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_plans_that_do_the_same_cost_the_same(name):
    one, other = PAIRS[name]
    assert one != other
    # A table of one's own is simulated; in closed form it stands for 1F1B.
    methods: tuple[Method, ...] = ("simulated",) if other.schedule == "given" else ("simulated", "closed form")
    for machine in (SELENE, HERE):
        for method in methods:
            parts = (vars(estimate(plan, machine, method=method).parts) for plan in (one, other))
            assert next(parts) == pytest.approx(next(parts), rel=1e-12)
    for rank in range(one.layout.pipeline):
        at = Coordinate(rank, 0, 0)
        assert memory_of_rank(one, at) == memory_of_rank(other, at)
        assert step_traffic(one, at) == step_traffic(other, at)
