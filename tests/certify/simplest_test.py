"""Laws of the search for the simplest plan that fails: it keeps what the failure needs and nothing else."""

from collections.abc import Callable

import pytest

from trivium.certify.random_plans import random_plans
from trivium.certify.reduce import reduced
from trivium.certify.simplest import simplest
from trivium.plan.layout import AXES
from trivium.plan.plan import Plan

PLANS = random_plans(150, 8, seed=0)
Fails = Callable[[Plan], bool]


def _context_before_data(p: Plan) -> bool:
    order = p.layout.order
    return min(p.layout.data, p.layout.context) > 1 and order.index("context") < order.index("data")


# A fault, and (tensor, pipeline, data, context) of the smallest layout that has it.
FAULTS: dict[str, tuple[Fails, tuple[int, int, int, int]]] = {
    "weights sharded under tensor": (lambda p: p.layout.tensor > 1 and p.zero == 3, (2, 1, 1, 1)),
    "a split backward": (lambda p: p.layout.pipeline > 1 and p.schedule in ("zb-h1", "zb-v"), (1, 2, 1, 1)),
    "replicas in another order": (_context_before_data, (1, 1, 2, 2)),
    "a ramp": (lambda p: p.batch.ramp is not None, (1, 1, 1, 1)),
    "two micro-batches on replicas": (
        lambda p: p.layout.data > 1 and p.batch.micro_batches(p.layout) > 1,
        (1, 1, 2, 1),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_left_is_what_the_fault_needs(name: str) -> None:
    fails, degrees = FAULTS[name]
    failing = [p for p in PLANS if fails(p)]
    assert failing
    for plan in failing[:5]:
        tried: list[Plan] = []

        def watched(candidate: Plan, tried: list[Plan] = tried) -> bool:
            tried.append(candidate)
            return fails(candidate)

        found = simplest(plan, watched)
        layout = found.layout
        assert fails(found)
        assert (layout.tensor, layout.pipeline, layout.data, layout.context) == degrees
        assert found.model.positions == "learned" and found.model.dropout == 0 and found.recompute.mode == "none"
        assert found.layout.order == AXES or name == "replicas in another order"
        assert found.zero == (3 if name == "weights sharded under tensor" else 0)
        assert len(set(tried)) == len(tried) and plan not in tried
        assert [p for p in tried if p.check() or reduced(p) != p] == []


def test_what_can_go_only_after_something_else_went_goes_too() -> None:
    def fails(p: Plan) -> bool:
        return p.zero > 0 or p.recompute.mode == "none"

    for plan in [p for p in PLANS if p.zero > 0 and p.recompute.mode != "none"][:3]:
        found = simplest(plan, fails)
        assert (found.zero, found.recompute.mode) == (0, "none")


def test_a_plan_that_has_nothing_to_take_away_is_left_as_it_is() -> None:
    assert simplest(PLANS[0], lambda p: False) == PLANS[0]
