import itertools

from cost.plans import small
from trivium.plan.precision import Precision
from trivium.planner.candidates import candidates, divisors, layouts
from trivium.planner.config import SearchSpace

SPACE = SearchSpace()


def every(plan, ranks, space=SPACE, tensor_limit=8):
    return list(
        candidates(
            plan.model, plan.batch, ranks=ranks, space=space, precision=Precision(), tensor_limit=tensor_limit
        )
    )


def test_every_candidate_is_legal_and_none_is_given_twice():
    found = every(small(), 8)
    assert all(plan.check(8) == [] for plan in found)
    assert len(set(found)) == len(found) > 50


def test_no_legal_combination_of_degrees_is_missed():
    plan = small()
    expected = {
        (t, p, d)
        for t, p, d in itertools.product(divisors(8), repeat=3)
        if t * p * d == 8 and plan.model.heads % t == 0 and p <= plan.model.layers
    }
    found = {
        (x.tensor, x.pipeline, x.data) for x in layouts(plan.model, ranks=8, space=SPACE, tensor_limit=8)
    }
    assert found == expected


def test_tensor_groups_stay_inside_a_node():
    assert max(plan.layout.tensor for plan in every(small(), 8, tensor_limit=2)) == 2


def test_only_schedules_that_were_asked_for_appear():
    only = SearchSpace(schedules=("interleaved",))
    assert {plan.schedule for plan in every(small(), 8, only)} == {"interleaved"}
    gpipe = SearchSpace(schedules=("gpipe",))
    assert {plan.schedule for plan in every(small(), 8, gpipe)} == {"gpipe"}


def test_divisors_of_twelve():
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
