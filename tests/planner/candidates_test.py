import itertools
from dataclasses import replace

import numpy as np
import pytest

from cost.plans import small
from trivium.certify.layouts import ROTARY
from trivium.config import build, to_tree
from trivium.cost.case import case_of
from trivium.errors import ConfigError
from trivium.plan.layout import Layout, divisors
from trivium.plan.plan import Plan
from trivium.planner.candidates import degrees, enumerate_plans
from trivium.planner.config import SearchSpace
from trivium.planner.grid import Subject
from trivium.planner.laws import inside_a_node

SPACE = SearchSpace()


def enumerated(plan=None, ranks=8, space=SPACE, node=8):
    plan = plan or small()
    subject = Subject.of(plan)
    return enumerate_plans(subject, ranks, space, (inside_a_node(node, ranks),), node=node)


def every(*args, **kwargs) -> list[Plan]:
    found = enumerated(*args, **kwargs).candidates
    return [found.plan_at(row) for row in range(len(found))]


def test_every_candidate_is_legal_and_none_is_given_twice():
    plans = every()
    assert all(plan.check(8) == [] for plan in plans)
    assert len(set(plans)) == len(plans) > 500


@pytest.mark.parametrize("over", [{}, {"model": {"heads": 8, "kv_heads": 2, **ROTARY}}, {"batch": {"sequences": 24}}])
def test_no_legal_plan_is_missed(over):
    """Beside every choice tried one by one. Left out are only choices without an effect."""
    plan = small(**over)
    space = SearchSpace(
        micro=(1, 2), context=(1, 2), chunks=(2, 3), zero=(0, 2), recompute=("layer",), overlap_tensor=(False, True)
    )
    expected = set()
    kinds = [("1f1b", 1), ("1f1b-split", 1), ("zb-h1", 1), ("zb-v", 2), ("interleaved", 2), ("interleaved", 3)]
    for tensor, pipeline, data, context in itertools.product((1, 2, 4, 8), repeat=4):
        for micro, (schedule, chunks), zero, along, ring in itertools.product(
            (1, 2), kinds, (0, 2), *[(False, True)] * 2
        ):
            idle = (
                (tensor == 1 and (along or ring))
                or (data * context == 1 and zero)
                or (pipeline == 1 and schedule != "1f1b")
            )
            if tensor * pipeline * data * context != 8 or context > 2 or idle:
                continue
            layout = Layout(tensor=tensor, pipeline=pipeline, data=data, context=context, chunks=chunks)
            changes = {"layout": layout, "schedule": schedule, "zero": zero, "sequence_parallel": along}
            changes["overlap_tensor"] = ring
            batch = plan.batch.model_copy(update={"micro": micro})
            other = plan.model_copy(
                update={**changes, "batch": batch, "recompute": plan.recompute.model_copy(update={"mode": "layer"})}
            )
            if other.check(8) == []:
                expected.add(other)
    assert set(every(plan, space=space)) == expected and len(expected) > 50


@pytest.mark.parametrize(
    "over", [{}, {"compiled": True}, {"compiled": True, "model": {"documents": "apart"}}, {"cuda_graphs": True}]
)
def test_the_numbers_of_a_row_are_those_of_its_plan(over):
    space = SearchSpace(shards=(None, 2))
    model = {"vocabulary": 1013, **over.get("model", {})}
    found = enumerated(small(**{**over, "model": model, "precision": {"weights": "bf16"}}), space=space).candidates
    rows = np.random.default_rng(0).integers(len(found), size=60)
    case = found.case
    for row in rows:
        one = case_of(found.plan_at(row))
        for name, value in vars(one).items():
            column = getattr(case, name)
            assert (column[row] if isinstance(column, np.ndarray) else column) == value, name


def test_plans_are_recorded_where_that_may_be():
    found = enumerated(small(cuda_graphs=True)).candidates
    plans = [found.plan_at(row) for row in np.random.default_rng(0).integers(len(found), size=60)]
    assert {(plan.cuda_graphs, plan.zero <= 1) for plan in plans} == {(True, True), (False, False)}
    assert not any(plan.check() for plan in plans)
    assert all(found.plan_at(found.row_of(plan)) == plan for plan in plans)
    for model in ({"dropout": 0.1}, {"documents": "apart"}):
        subject = replace(Subject.of(small(model=model)), recorded=True)
        assert not subject.records(np.arange(4)).any()


def test_a_plan_is_found_again_at_its_row():
    found = enumerated().candidates
    for row in (0, 17, len(found) - 1):
        assert found.row_of(found.plan_at(row)) == row
    assert found.row_of(small(layout={"tensor": 1}, schedule="gpipe")) is None
    beyond = {"partition": {"layers": [8]}, "row_chunks": 2, "context_attention": "ulysses", "compiled": True}
    for field, value in beyond.items():  # what rows do not have
        assert found.row_of(build(Plan, {**to_tree(found.plan_at(0)), field: value})) is None
    again = found.plan_at(0).recompute.model_copy(update={"activation_function": True})
    assert found.row_of(found.plan_at(0).model_copy(update={"recompute": again})) is None


def test_what_is_rejected_and_what_is_legal_are_all_combinations():
    """Counted in choices, whatever the law that rejects them first; some legal ones differ in nothing."""
    space = SearchSpace(
        micro=(1, 3), chunks=(2,), zero=(0,), recompute=("none",), sequence_parallel=(False,), context=(1,)
    )
    found = enumerated(space=space, node=4)
    kinds = 5  # of schedules
    number = len(degrees(8, (1,))["tensor"]) * 2 * kinds
    assert found.combinations <= number
    without_pipeline = sum(plan.layout.pipeline == 1 for plan in every(space=space, node=4))
    assert number - found.combinations == without_pipeline * (3 - 1)  # zb-h1 and 1f1b-split on one rank are 1f1b
    assert {family.law for family in found.rejected} >= {"node", "batch"}


def test_tensor_groups_stay_inside_a_node():
    found = enumerated(node=2)
    assert max(found.candidates.grid["tensor"]) == 2
    (family,) = [f for f in found.rejected if f.law == "node"]
    assert "spans nodes of 2" in family.example and family.values == "tensor 4, 8"


def test_only_schedules_that_were_asked_for_appear():
    for name in ("interleaved", "gpipe", "zb-v"):
        assert {plan.schedule for plan in every(space=SearchSpace(schedules=(name,)))} == {name}


def test_degrees_multiply_to_the_ranks():
    found = degrees(24, (1, 2, 5))
    assert set(np.prod([found[k] for k in found], axis=0).tolist()) == {24}
    assert set(found["context"].tolist()) == {1, 2}


def test_divisors_of_twelve():
    assert divisors(12) == [1, 2, 3, 4, 6, 12]


def test_divisors_are_those_found_one_by_one_and_of_large_numbers_too():
    for number in (1, 2, 12, 36, 97, 840):
        assert divisors(number) == [n for n in range(1, number + 1) if number % n == 0]
    assert divisors(8 * 10**12)[-2:] == [4 * 10**12, 8 * 10**12]


def test_a_search_that_is_asked_to_shares_copies_among_fewer_replicas_than_all():
    asked = SearchSpace(shards=(None, 2, 4), micro=(1,), zero=(0, 3), chunks=(2,))
    found = enumerated(ranks=8, space=asked).candidates
    plans = [found.plan_at(row) for row in range(len(found))]
    assert all(plan.check(8) == [] for plan in plans) and len(set(plans)) == len(plans)
    assert {plan.layout.shards for plan in plans} == {None, 2, 4}
    assert all(plan.layout.copies > 1 and plan.zero == 3 for plan in plans if plan.layout.shards)
    plain = enumerated(ranks=8, space=asked.model_copy(update={"shards": (None,)})).candidates
    assert {plan for plan in plans if plan.layout.shards is None} == set(map(plain.plan_at, range(len(plain))))
    copies = next(plan for plan in plans if plan.layout.shards)
    assert plain.row_of(copies) is None and plans[found.row_of(copies)] == copies


def test_the_order_of_choices_does_not_matter():
    """On one rank of a pipeline a schedule of several stages a rank is no choice, also where it is named first."""
    space = SearchSpace(chunks=(2,), schedules=("interleaved", "zb-v", "1f1b", "zb-h1"), shards=(2, None))
    turned = {name: tuple(reversed(getattr(space, name))) for name in ("schedules", "shards", "micro", "context")}
    one, other = (set(every(space=each)) for each in (space, space.model_copy(update=turned)))
    alone, others = ({plan for plan in plans if plan.layout.pipeline == 1} for plans in (one, other))
    assert one - alone == other - others and len(alone) == len(others) > 0
    assert {plan.schedule for plan in alone} == {"1f1b"} and {plan.schedule for plan in others} == {"zb-h1"}


@pytest.mark.parametrize("axis", ["tensor", "pipeline", "data", "context"])
def test_only_degrees_that_are_named_appear(axis):
    named = every(space=SearchSpace(**{axis: (1, 4)}))
    whole = every()
    assert set(named) == {plan for plan in whole if plan.layout.degree(axis) in (1, 4)} and named != whole


@pytest.mark.parametrize("shards", [(None, "node"), ("node",), ("node", 4, None), (None, 8, "node")])
def test_copies_of_a_node_are_those_of_as_many_replicas_as_it_holds(shards):
    """Nodes of 8 among 32 ranks: 8 / tensor replicas in each, where these are several, and fewer than all."""
    space = SearchSpace(shards=shards, micro=(1,), zero=(0, 1, 3), schedules=("1f1b",))
    plans = every(small(batch={"sequences": 64}), ranks=32, space=space)
    assert len(set(plans)) == len(plans) and all(plan.check(32) == [] for plan in plans)
    asked = space.model_copy(update={"shards": (None, 2, 4, 8)})
    numbers = [n for n in shards if n != "node"]

    def chosen(plan: Plan) -> bool:
        given, near = plan.layout.shards, 8 // plan.layout.tensor
        copies = near > 1 and plan.layout.replicas > near and plan.zero > 0
        return given in numbers or given == (near if copies else None)

    assert set(plans) == {p for p in every(small(batch={"sequences": 64}), ranks=32, space=asked) if chosen(p)}
    assert any(plan.layout.copies > 1 for plan in plans)


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ({"zero": ()}, "zero is .*at least one choice"),
        ({"schedules": ("1f1b", "zb-v", "1f1b")}, "name each choice once; 1f1b"),
        ({"shards": ("rack",)}, "shards"),
        ({"tensor": (0,)}, "tensor.0 is 0"),
    ],
)
def test_choices_that_are_none_or_are_twice_there_are_refused(over, says):
    with pytest.raises(ConfigError, match=says):
        build(SearchSpace, over)
