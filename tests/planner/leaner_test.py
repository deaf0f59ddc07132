"""Plans recompute as little as their memory allows."""

import numpy as np
import pytest

from planner.searches import MT_NLG_PLAN, small_search, subject_of
from trivium.cost.case import LAYER, NONE
from trivium.cost.estimate import estimate
from trivium.cost.hardware import machine_named, this_machine
from trivium.cost.memory import worst_rank
from trivium.plan.recompute import Recompute
from trivium.planner.config import SearchSpace
from trivium.planner.leaner import as_lean_as_needed, memory_bytes
from trivium.planner.near_misses import interleaving_misses
from trivium.planner.pricing import simulated_steps
from trivium.planner.search import search
from trivium.planner.search_text import choice_text, choice_tree

TALL = {"model": {"layers": 12, "sequence": 512}, "batch": {"sequences": 24}}
SPACE = SearchSpace(micro=(1, 2), context=(1, 2), zero=(0, 1))
PLAIN = SPACE.model_copy(update={"recompute_every": (1,), "activation_function": False})


def tall_search(megabytes, space=SPACE, **over):
    return small_search(machine=this_machine(2, megabytes << 20), space=space, **{**TALL, **over})


@pytest.fixture(scope="module")
def tight():
    """Return a search with so little memory that every kind of plan is among those that fit."""
    return tall_search(97)


def test_some_plans_fit_as_they_are_and_some_by_each_means(tight):
    grid = tight.ranking.priced.candidates.take(tight.ranking.priced.fitting).grid
    assert set(grid["function_again"].tolist()) == {0, 1}
    layers = grid.take(grid["recompute"] == LAYER)
    assert len(set(layers["recompute_every"].tolist())) > 2
    assert set(layers["function_again"].tolist()) == {0, 1}
    assert (grid["recompute"] == NONE).any() and (grid["recompute_every"][grid["recompute"] != LAYER] == 1).all()


def test_what_a_plan_computes_again_is_the_least_with_which_it_fits(tight):
    """The choice is compared with every other one, for every plan."""
    assert_least(tight.enumerated.candidates, tight.ranking.priced.memory_limit)


@pytest.mark.broad
def test_it_is_the_least_at_every_limit_also_for_plans_that_fit_only_with_some_layers_recomputed():
    legal = tall_search(8000, SPACE.model_copy(update={"zero": (1,)})).enumerated.candidates
    layers = legal.take(np.flatnonzero(legal.grid["recompute"] == LAYER))
    all_again = memory_bytes(layers)
    fourth, function = (memory_bytes(layers.changed(**c)) for c in ({"recompute_every": 4}, {"function_again": 1}))
    limits = [(all_again[k] + less[k]) / 2 for less in (fourth, function) for k in np.flatnonzero(less < all_again)]
    assert len(limits) > 8
    for limit in limits:
        assert_least(legal, limit)


def assert_least(legal, limit):
    leaner, found_bytes = as_lean_as_needed(legal, limit, SPACE)
    found = leaner.grid
    plain, function = memory_bytes(legal), memory_bytes(legal.changed(function_again=1))
    whole = memory_bytes(legal.changed(recompute=NONE))
    every = {
        (k, again): memory_bytes(legal.changed(recompute_every=k, function_again=again))
        for k in SPACE.recompute_every
        for again in (0, 1)
    }
    for row in range(len(legal)):
        choice = (int(found["recompute_every"][row]), bool(found["function_again"][row]))
        held = found_bytes[row]
        if legal.grid["recompute"][row] != LAYER:
            again = plain[row] > limit and function[row] < plain[row]
            assert choice == (1, again) and held == (function if again else plain)[row]
            continue
        # The fewest layers are recomputed; of two such choices, the one that keeps the activation function's output.
        fewest = max((c for c in every if every[c][row] <= limit), key=lambda c: (c[0], -c[1]), default=(1, 0))
        wanted = (1, 0) if whole[row] <= limit else fewest
        assert choice == wanted and held == every[wanted][row]


def test_where_every_plan_has_to_recompute_layers_more_memory_never_means_more_of_them():
    space = SPACE.model_copy(update={"recompute": ("layer",)})
    grid = tall_search(8000, space).ranking.priced.candidates.grid
    assert set(grid["recompute_every"].tolist()) == {max(SPACE.recompute_every)}


def test_only_what_is_computed_again_changes(tight):
    legal, found = tight.enumerated.candidates.grid, tight.ranking.priced.candidates.grid
    for name in legal.columns.keys() - {"recompute_every", "function_again"}:
        assert np.array_equal(legal[name], found[name])
    assert set(legal["recompute_every"].tolist()) == {1} and set(legal["function_again"].tolist()) == {0}


def test_the_figures_of_a_row_are_those_of_the_memory_and_the_estimate_of_its_plan(tight):
    priced = tight.ranking.priced
    fitting = priced.candidates.take(priced.fitting)
    leaner = np.flatnonzero((fitting.grid["recompute_every"] > 1) | (fitting.grid["function_again"] == 1))
    some = fitting.take(np.random.default_rng(3).choice(leaner, 24, replace=False))
    plans = [some.plan_at(row) for row in range(len(some))]
    assert len({plan.recompute for plan in plans}) > 4
    held = [worst_rank(plan)[1].total for plan in plans]
    assert memory_bytes(some).tolist() == pytest.approx(held, rel=1e-5)
    seconds = [estimate(plan, tight.machine).seconds for plan in plans]
    assert simulated_steps(some, tight.machine).seconds.tolist() == pytest.approx(seconds, rel=1e-9)


def test_the_seconds_of_uneven_stages_are_those_of_the_estimate():
    """A stage has three layers, of which every second is recomputed: one or two of them."""
    space = SearchSpace(micro=(1,), context=(1,), zero=(1,), sequence_parallel=(True,), recompute=("layer",))
    found = search(subject_of(MT_NLG_PLAN), machine_named("dgx-a100-40").with_nodes(280), 2240, space)
    fitting = found.ranking.priced.candidates.take(found.ranking.priced.fitting)
    some = fitting.changed(recompute_every=2)
    some = some.take(np.flatnonzero(some.grid["pipeline"] == 35))
    assert len(some)
    expected = [estimate(some.plan_at(row), found.machine).seconds for row in range(len(some))]
    assert simulated_steps(some, found.machine).seconds.tolist() == pytest.approx(expected, rel=1e-9)


def test_fewer_layers_make_a_faster_plan_of_the_memory_that_is_left():
    """MT-NLG on 840 devices of 40 GB: without it every layer of the best plan is recomputed."""
    machine, few = machine_named("dgx-a100-40").with_nodes(105), {"zero": (1,), "sequence_parallel": (True,)}
    spaces = PLAIN, SPACE.model_copy(update={"activation_function": False}), SPACE
    found = [search(subject_of(MT_NLG_PLAN), machine, 840, s.model_copy(update=few)).ranking for s in spaces]
    plain, fewer, best = (ranking.winners(1)[0] for ranking in found)
    assert plain.plan.recompute == Recompute(mode="layer") and fewer.plan.recompute.every > 1
    assert best.plan.recompute == Recompute(activation_function=True)
    assert fewer.seconds < 0.98 * plain.seconds and best.seconds < 0.95 * fewer.seconds
    assert plain.memory_bytes < fewer.memory_bytes <= found[1].priced.memory_limit


def test_with_room_for_everything_nothing_more_is_computed_again():
    found = tall_search(8000)
    leaner, held = as_lean_as_needed(found.enumerated.candidates, 1e12, SPACE)
    assert leaner.grid.columns.keys() == found.enumerated.candidates.grid.columns.keys()
    for name, column in found.enumerated.candidates.grid.columns.items():
        assert np.array_equal(leaner.grid[name], column)
    assert np.array_equal(held, memory_bytes(found.enumerated.candidates))


def test_the_text_and_the_tree_of_a_leaner_plan_tell_what_it_computes_again(tight):
    for winner in tight.ranking.winners(40):
        recompute, tree = winner.plan.recompute, choice_tree(winner.plan)
        told = {k: tree[k] for k in ("recompute", "recompute_every", "recompute_activation_function")}
        assert list(told.values()) == [recompute.mode, recompute.every, recompute.activation_function]
        assert f"recompute {recompute.words}," in choice_text(winner)


@pytest.mark.parametrize(
    ("recompute", "gigabytes"),
    (
        ({"mode": "layer", "every": 3}, 180),
        ({"activation_function": True}, 180),
        ({"mode": "layer"}, 75),  # half of the layers would fit
    ),
)
def test_a_near_miss_of_one_plan_keeps_what_the_plan_computes_again(recompute, gigabytes):
    plan = MT_NLG_PLAN.model_copy(update={"recompute": Recompute(**recompute)})
    machine = machine_named("selene").model_copy(update={"memory_bytes": gigabytes * 10**9})
    misses = interleaving_misses(plan, machine, estimate(plan, machine).seconds)
    assert misses and {miss.plan.recompute for miss in misses} == {plan.recompute}


@pytest.mark.parametrize(
    ("recompute", "words"),
    (
        ({}, "none"),
        ({"mode": "attention"}, "attention"),
        ({"mode": "layer", "every": 3}, "1 layer in 3"),
        ({"mode": "attention", "every": 2}, "attention of 1 layer in 2"),
        ({"activation_function": True}, "activation function"),
        ({"mode": "layer", "activation_function": True}, "layer and activation function"),
    ),
)
def test_what_is_computed_again_in_words(recompute, words):
    assert Recompute(**recompute).words == words
