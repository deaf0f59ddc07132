"""Plans within 1 % of the fastest are ties, of which a search chooses the simplest."""

import pytest

from cost.plans import small
from planner.searches import HERE, SELENE, small_search
from trivium.plan.layout import AXES
from trivium.plan.plan import Plan
from trivium.planner.config import SearchSpace
from trivium.planner.pricing import Ranking
from trivium.planner.search import best_search
from trivium.planner.ties import TIE_FRACTION, simplest

MODES = ("none", "attention", "layer")
ONE_NODE = SELENE.with_nodes(1)
NARROW = {"precision": {"weights": "bf16"}}


def complexity(plan: Plan) -> tuple:
    """The order of docs/planner.md, read from a plan."""
    layout, recompute = plan.layout, plan.recompute
    return (
        sum(layout.degree(axis) > 1 for axis in AXES),
        layout.chunks > 1,
        plan.schedule != "1f1b",
        plan.zero,
        layout.shards is not None,
        MODES.index(recompute.mode),
        recompute.activation_function,
        plan.sequence_parallel,
        plan.overlap_tensor,
        plan.compiled,
        plan.cuda_graphs,
    )


def ties_of(*rankings: Ranking) -> list[tuple]:
    winners = [winner for ranking in rankings for winner in ranking.winners(len(ranking.simulated))]
    each = {id(w): w.seconds / w.plan.batch.sequences for w in winners}
    limit = (1 + TIE_FRACTION) * min(each.values())
    return [complexity(w.plan) for w in winners if each[id(w)] <= limit]


@pytest.mark.parametrize(("machine", "at_least"), [(HERE, 1), (ONE_NODE, 2)], ids=["here", "gpus"])
def test_the_simplest_of_the_plans_that_are_as_fast_is_chosen(machine, at_least) -> None:
    found = best_search(small(**NARROW), machine, 8)
    ties = ties_of(found.ranking, *found.others)
    assert found.choice.ties == len(ties) >= at_least
    assert complexity(found.chosen.plan) == min(ties)
    fastest = found.ranking.winner(0)
    assert found.chosen.seconds <= (1 + TIE_FRACTION) * fastest.seconds


def test_the_choice_of_one_ranking_is_among_its_own_plans() -> None:
    ranking = small_search(ranks=4).ranking
    choice = simplest([ranking])
    assert choice.ranking == 0 and complexity(ranking.winner(choice.place).plan) == min(ties_of(ranking))


def test_gpus_are_searched_with_and_without_compiling_and_a_cpu_as_the_plan_has_it() -> None:
    found = best_search(small(**NARROW), ONE_NODE, 8)
    subjects = [found.subject, *(other.priced.candidates.subject for other in found.others)]
    assert {(s.compiled, s.recorded) for s in subjects} == {(True, True), (False, False)}
    assert found.chosen.plan.compiled, "compiled plans are much faster on a GPU"
    here = best_search(small(**NARROW), HERE, 8)
    assert not here.others and not here.chosen.plan.compiled


@pytest.mark.parametrize(
    ("space", "over", "ways"),
    [
        ({"compiled": (False,)}, {}, {(False, True), (False, False)}),
        ({"compiled": (True,), "cuda_graphs": (False,)}, {}, {(True, False)}),
        ({}, {"model": {"dropout": 0.1}}, {(False, False)}),
        ({}, {"precision": {"weights": "fp16"}}, {(True, False), (False, False)}),
    ],
    ids=["pinned", "both pinned", "dropout", "fp16"],
)
def test_choices_of_the_user_and_what_a_model_allows_restrict_the_ways(space, over, ways) -> None:
    found = best_search(small(**(NARROW | over)), ONE_NODE, 8, SearchSpace(micro=(1,), zero=(1,), **space))
    subjects = [found.subject, *(other.priced.candidates.subject for other in found.others)]
    assert {(s.compiled, s.recorded) for s in subjects} == ways
