"""The search, near misses, remedies and texts of plans with experts."""

import numpy as np
import pytest

from cost.plans import small
from trivium.certify.layouts import ROTARY
from trivium.config import merge
from trivium.cost.estimate import estimate
from trivium.cost.hardware import machine_named
from trivium.cost.memory import worst_rank
from trivium.plan.plan import Plan
from trivium.planner.config import SearchSpace
from trivium.planner.experts import expert_lines, with_imbalance
from trivium.planner.explain import plan_lines
from trivium.planner.grid import Subject
from trivium.planner.leaner import memory_bytes
from trivium.planner.near_misses import near_misses
from trivium.planner.pricing import simulated_steps
from trivium.planner.remedies import does_not_fit
from trivium.planner.search import Found, search
from trivium.planner.search_text import choice_text, search_lines, table_lines

H100 = machine_named("dgx-h100").with_nodes(2)
EXPERTS = {"count": 8, "chosen": 2, "columns": 2048}
MODEL = {
    **ROTARY,
    "hidden": 2048,
    "heads": 16,
    "kv_heads": 8,
    "sequence": 1024,
    "feed_forward": "experts",
    "experts": EXPERTS,
}
SPACE = SearchSpace(context=(1,), micro=(1, 2), schedules=("1f1b", "zb-h1"), recompute=("none", "layer"), zero=(1, 3))


def routed(**over) -> Plan:
    return small(**merge({"model": MODEL, "precision": {"weights": "bf16"}, "batch": {"sequences": 64}}, over))


def found(space: SearchSpace = SPACE, machine=H100, ranks=16, **over) -> Found:
    return search(Subject.of(routed(**over)), machine, ranks, space)


def test_a_search_tries_every_degree_that_divides_experts_and_replicas():
    grid = found().enumerated.candidates.grid
    tried = {tuple(row) for row in np.stack([grid["data"], grid["expert"]], 1).tolist()}
    assert tried == {(data, expert) for data in (1, 2, 4, 8, 16) for expert in (1, 2, 4, 8) if data % expert == 0}
    some = found(SPACE.model_copy(update={"expert": (1, 4)})).enumerated.candidates.grid
    assert set(some["expert"].tolist()) == {1, 4}


def test_a_dense_model_is_searched_with_one_expert_degree():
    dense = small(batch={"sequences": 64})
    whole, one = (search(Subject.of(dense), H100, 16, s) for s in (SPACE, SPACE.model_copy(update={"expert": (1,)})))
    assert len(whole.enumerated.candidates) == len(one.enumerated.candidates)
    assert not any(family.law.startswith("expert") for family in whole.enumerated.rejected)


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_rows_of_a_search_cost_what_their_plans_cost(head: str):
    every = found(model={"head": head}).ranking.priced.candidates
    expert, draw = every.grid["expert"], np.random.default_rng(0)
    some = every.take(
        np.concatenate([draw.choice(np.flatnonzero(rows), 6, replace=False) for rows in (expert > 1, expert == 1)])
    )
    plans = [some.plan_at(row) for row in range(len(some))]
    assert memory_bytes(some).tolist() == pytest.approx([worst_rank(plan)[1].total for plan in plans], rel=1e-5)
    expected = [estimate(plan, H100).seconds for plan in plans]
    assert simulated_steps(some, H100).seconds.tolist() == pytest.approx(expected, rel=1e-6)


def test_the_fastest_plan_of_many_experts_divides_them():
    """The state of all experts does not fit on one rank."""
    large = {"experts": {"count": 64, "columns": 4096}, "layers": 16}
    best = found(SPACE, model=large, batch={"sequences": 256}).ranking.winners(1)[0]
    assert best.plan.layout.expert > 1
    assert f"expert {best.plan.layout.expert}" in choice_text(best)
    assert "expert" in table_lines([best])[0].split()


def test_a_dense_model_has_no_column_for_experts():
    best = search(Subject.of(small()), H100, 8, SPACE).ranking.winners(1)
    assert "expert" not in table_lines(best)[0].split()


def test_experts_that_ranks_cannot_divide_are_named_with_the_number_that_would_be_divided():
    """60 experts, as Qwen1.5-MoE has, do not divide over 8 ranks; 64 do, and are faster."""
    alone = SPACE.model_copy(update={"tensor": (1,), "pipeline": (1,)})
    asked = found(alone, model={"experts": {"count": 60, "columns": 4096}}, batch={"sequences": 256})
    misses = {miss.change: miss for miss in near_misses(asked)}
    miss = misses["64 experts instead of 60"]
    assert miss.obstacle == "expert 8 does not divide the 60 experts"
    assert miss.plan.model.experts.count == 64 and miss.plan.layout.expert >= 8 and miss.plan.check() == []
    assert miss.seconds == pytest.approx(estimate(miss.plan, H100).seconds, rel=1e-6)


def test_another_degree_is_offered_where_it_would_fit():
    narrow = SPACE.model_copy(update={"expert": (1,), "pipeline": (1,), "tensor": (1,), "recompute": ("layer",)})
    large = {"experts": {"count": 64, "columns": 8192}, "layers": 8}
    text = does_not_fit(found(narrow.model_copy(update={"zero": (1,)}), model=large, batch={"sequences": 256}))
    assert "another degree of expert would fit" in text and "data 16, micro 1" in text


def test_a_plan_tells_its_experts_their_load_and_what_the_most_uneven_load_would_hold():
    plan = routed(layout={"tensor": 1, "pipeline": 1, "data": 8, "expert": 4})
    lines = expert_lines(plan, 1e18)
    assert (
        lines[0].split("  ")[-1].strip() == "8 in each of 8 layers; a token visits 2 of them, and an expert rank has 2"
    )
    most = worst_rank(with_imbalance(plan, 4.0))[1].total
    assert "1.25 times the mean load" in lines[1] and "up to 4 times" in lines[1] and "does not fit" not in lines[1]
    assert worst_rank(plan)[1].total < most
    assert "does not fit" in expert_lines(plan, most - 1)[1]
    assert lines[0] in plan_lines(plan, H100)
    alone = routed(layout={"tensor": 1, "pipeline": 1, "data": 8})
    assert len(expert_lines(alone, 1e18)) == 1 and not expert_lines(small(), 1e18)


def test_a_pattern_of_layers_changes_its_load_as_a_whole():
    first = [{"times": 2, "experts": {**EXPERTS, "count": 4}}]
    plan = with_imbalance(routed(model={"first": first}), 3.0)
    assert {layer.mlp.experts.imbalance for layer in plan.model.each_layer} == {3.0}


def test_the_table_of_a_search_shows_expert_degrees():
    lines = search_lines(found(), 3)
    assert any(" expert " in line for line in lines)
