"""Bytes and numbers of the messages that go round a ring of tensor ranks, predicted and counted; and plans that refuse
the ring."""

from typing import Any

import pytest

from laws.traffic_test import ADAPTED, DEEPSEEK_V2, DORA, EXPERTS_IN_ALL, GGPO, OLMO2, count, frozen
from plans import EXPERTS, brief, small
from ranks import on_ranks
from trivium.comms.launch import Place
from trivium.cost.ring_traffic import rings
from trivium.objectives.routers import counts_first
from trivium.parallel.tensor import ring
from trivium.plan.plan import Plan


def in_ring(**more: Any) -> Plan:
    return small(**{"tensor": 2, "sequence_parallel": True, "overlap_tensor": True, **more})


PLANS = {
    2: [
        in_ring(schedule="1f1b-split", recompute={"mode": "layer", "every": 2}, model=DEEPSEEK_V2),
        in_ring(precision={"weights": "bf16"}, optimizer=frozen("layers.0.*", "layers.2.mlp.*"), model=OLMO2),
        in_ring(model=DORA, recompute={"mode": "layer"}),
        in_ring(model=EXPERTS_IN_ALL, recompute={"mode": "layer"}),
        in_ring(precision={"weights": "bf16", "float8": {"recipe": "block", "keep": ["first"], "block": 4}}),
    ],
    4: [
        in_ring(tensor=4, model={"hidden": 32}, recompute={"mode": "attention"}),
        in_ring(pipeline=2, chunks=2, schedule="zb-v"),
        in_ring(context=2, model={"sequence": 16, **ADAPTED}),
        in_ring(data=2, zero=3, model=EXPERTS, expert=2),
        in_ring(data=2, model=GGPO, precision={"weights": "bf16"}),
    ],
}


def count_messages(place: Place, plans: list[Plan]) -> None:
    original, sent = ring.rotate_begin, [0]

    def counted(*given: Any, **more: Any) -> Any:
        sent[0] += 1
        return original(*given, **more)

    for plan in plans:
        sent[0] = 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ring, "rotate_begin", counted)
            count(place, [plan])  # bytes
        times = plan.batch.micro_batches(plan.layout)
        stages = plan.stages_of(plan.layout.coordinate(place.rank).pipeline)
        every = [rings(plan, stage) for stage in stages]
        if counts_first(plan.model, plan.stages, times):
            every += [rings(plan, stage, backward=False) for stage in stages]
        assert sent[0] == times * sum(each.messages(plan) for each in every) > 0, plan.schedule


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.broad)])
def test_messages_of_a_ring_are_those_predicted(size: int) -> None:
    on_ranks(size, count_messages, [brief(plan, micro_batches=2) for plan in PLANS[size]])


@pytest.mark.parametrize(
    ("over", "told"),
    [
        ({"sequence_parallel": False}, "set it to true"),
        ({"row_chunks": 2}, "set it to 1"),
        ({"messages": {"tensor": "bf16"}}, "set it to exact"),
        ({"precision": {"weights": "bf16", "float8": {"recipe": "row"}}}, "set its recipe to block"),
    ],
    ids=lambda value: str(value),
)
def test_what_does_not_go_with_a_ring_is_told(over: dict[str, Any], told: str) -> None:
    tree = {**in_ring().model_dump(), **over}
    problems = Plan.model_validate(tree).check()
    assert any("plan.overlap_tensor is true" in problem and told in problem for problem in problems), problems
    alone = {**tree, "layout": {"tensor": 1}}
    assert not any("overlap_tensor" in problem for problem in Plan.model_validate(alone).check())
