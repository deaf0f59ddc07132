import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from cost.plans import small
from planner.searches import HERE, MEGATRON, MT_NLG_PLAN, SELENE, mt_nlg_search, small_search, subject_of
from trivium.config import build, merge, to_tree
from trivium.cost.estimate import estimate
from trivium.cost.hardware import machine_named, this_machine
from trivium.cost.memory import worst_rank
from trivium.errors import ConfigError
from trivium.plan.plan import Plan
from trivium.plan.precision import Precision
from trivium.planner import pricing
from trivium.planner.config import SearchSpace
from trivium.planner.grid import Candidates, Subject
from trivium.planner.leaner import memory_bytes
from trivium.planner.pricing import Steps, price, rank, simulated_steps
from trivium.planner.search import Found, search
from trivium.planner.search_text import because
from trivium.planner.ties import TIE_FRACTION


def test_every_plan_that_fits_is_ranked_and_no_other():
    found = small_search()
    priced = found.ranking.priced
    assert sorted(found.ranking.order) == list(range(len(priced.fitting)))
    fits = priced.memory_bytes <= priced.memory_limit
    assert np.flatnonzero(fits).tolist() == priced.fitting.tolist()


def test_winners_come_fastest_first_and_their_parts_add_up():
    for found in (small_search(), mt_nlg_search()):
        winners = found.ranking.winners(20)
        seconds = [winner.seconds for winner in winners]
        assert seconds == pytest.approx(sorted(seconds), rel=1e-5)
        for winner in winners:
            assert sum(winner.parts.values()) == pytest.approx(winner.seconds, rel=1e-9)
            assert all(share >= 0 for _, share in winner.limits)
            assert sum(share for _, share in winner.limits) == pytest.approx(1, rel=1e-9)
            assert winner.plan.check(found.ranks) == []


@pytest.mark.parametrize("space", [SearchSpace(), MEGATRON])
def test_the_winner_is_no_slower_than_any_plan_simulated_in_full(space):
    """The closed form that chooses the finalists does not lose the best of them."""
    found = small_search(ranks=8, space=space.model_copy(update={"micro": (1, 2), "zero": (1,), "context": (1,)}))
    priced = found.ranking.priced
    every = simulated_steps(priced.candidates.take(priced.fitting), HERE).seconds
    assert len(every) > found.space.finalists
    assert found.ranking.winners(1)[0].seconds == pytest.approx(every.min(), rel=1e-5)


def test_the_ten_best_for_mt_nlg_are_the_ten_best_of_all_simulated_in_full():
    found = mt_nlg_search(SearchSpace(zero=(1,), context=(1,), sequence_parallel=(True,), micro=(1, 2), finalists=40))
    priced = found.ranking.priced
    every = np.sort(simulated_steps(priced.candidates.take(priced.fitting), SELENE).seconds)
    assert len(every) > 2 * len(found.ranking.simulated)
    assert [winner.seconds for winner in found.ranking.winners(10)] == pytest.approx(every[:10], rel=1e-5)


def compiled_search() -> Found:
    return small_search(machine=SELENE.with_nodes(1), precision={"weights": "bf16"}, compiled=True)


def recorded_search() -> Found:
    return small_search(machine=SELENE.with_nodes(1), precision={"weights": "bf16"}, cuda_graphs=True)


@pytest.mark.parametrize(
    "searched",
    [small_search, mt_nlg_search, compiled_search, recorded_search],
    ids=["here", "selene", "compiled", "recorded"],
)
def test_the_seconds_of_finalists_are_those_of_the_estimate_of_each_plan(searched):
    found = searched()
    fitting = found.ranking.priced.candidates.take(found.ranking.priced.fitting)
    quick = np.flatnonzero(fitting.grid["pipeline"] * fitting.case.micro_batches < 3000)
    some = fitting.take(np.random.default_rng(1).choice(quick, 8, replace=False))
    expected = [estimate(some.plan_at(row), found.machine).seconds for row in range(len(some))]
    steps = simulated_steps(some, found.machine)
    assert steps.seconds.tolist() == pytest.approx(expected, rel=1e-9)
    busy = [estimate(some.plan_at(row), found.machine).busy_seconds for row in range(len(some))]
    assert steps.busy.tolist() == pytest.approx(busy, rel=1e-9)


def test_a_ring_of_tensor_ranks_is_tried_and_chosen_where_it_saves_more_than_a_tie() -> None:
    both, without = mt_nlg_search(SearchSpace(overlap_tensor=(False, True))), mt_nlg_search()
    assert both.chosen.plan.tensor_ring and not without.chosen.plan.overlap_tensor
    assert both.chosen.seconds < (1 - TIE_FRACTION) * without.chosen.seconds
    rings = both.enumerated.candidates.grid["overlap_tensor"] == 1
    assert len(both.enumerated.candidates) - rings.sum() == len(without.enumerated.candidates)
    divided = both.enumerated.candidates.take(rings).grid
    assert (divided["tensor"] > 1).all() and (divided["sequence_parallel"] == 1).all()


def test_a_search_for_energy_finds_the_plan_with_least_of_all_simulated_in_full():
    """Devices that wait draw nothing here, so a plan with less work and more waiting takes the least energy."""
    machine = SELENE.with_nodes(1).model_copy(update={"idle_watts": 1e-6, "host_watts": None})
    plans, space = {"precision": {"weights": "bf16"}, "machine": machine}, SearchSpace(objective="energy", finalists=5)
    found, fastest = small_search(space=space, **plans), small_search(**plans)
    assert found.chosen.joules < fastest.chosen.joules and found.chosen.seconds > fastest.chosen.seconds
    priced = found.ranking.priced
    every = simulated_steps(priced.candidates.take(priced.fitting), machine)
    least = (8 * machine.watts * every.busy).min()
    assert found.ranking.winner(0).joules == pytest.approx(least, rel=1e-5)
    assert found.chosen.joules <= 1.01 * least
    assert found.chosen.joules == pytest.approx(estimate(found.chosen.plan, machine).joules, rel=1e-9)
    assert "of the one with least energy" in because(found)
    with pytest.raises(ConfigError, match="names no watts"):
        small_search(space=space)


def test_a_compiled_plan_is_searched_for_as_one():
    """It is faster on GPUs, also by the closed form, and no search turns it into one that is not compiled."""
    eager = small_search(machine=SELENE.with_nodes(1), precision={"weights": "bf16"})
    found, plain = (each.ranking.winners(1)[0] for each in (compiled_search(), eager))
    assert found.plan.compiled and not plain.plan.compiled
    assert found.seconds < plain.seconds
    both = [each.ranking.priced.seconds.min() for each in (compiled_search(), eager)]
    assert both[0] < both[1]
    with pytest.raises(ConfigError, match="plan.compiled is true and plan.model.dropout 0.1"):
        search(replace(subject_of(small(model={"dropout": 0.1})), compiled=True), HERE, 8)


def test_a_recorded_plan_is_searched_for_as_one():
    """It is faster on GPUs if its kernels are short, and on CPUs as fast as without CUDA graphs."""
    eager = small_search(machine=SELENE.with_nodes(1), precision={"weights": "bf16"})
    found, plain = (each.ranking.winners(1)[0] for each in (recorded_search(), eager))
    assert found.plan.cuda_graphs and not plain.plan.cuda_graphs
    assert found.seconds < plain.seconds
    here = [small_search(cuda_graphs=records).ranking.winners(1)[0].seconds for records in (False, True)]
    assert here[0] == here[1]


def test_the_memory_of_every_row_is_that_of_its_plans_worst_rank():
    """They agree up to the padding of flat buffers, which the arithmetic over arrays omits."""
    narrow = {"weights": "bf16"}
    searches = (
        (small_search(precision=narrow), 60),
        (small_search(ranks=1, precision=narrow, batch={"sequences": 16}), 60),
        (mt_nlg_search(), 12),
    )
    for found, number in searches:
        candidates = found.enumerated.candidates
        if number < 20:  # the table of ZeRO stage 3's buckets is slow to make for a large model
            candidates = candidates.take(candidates.grid["zero"] < 3)
        rows = np.random.default_rng(2).choice(len(candidates), min(number, len(candidates)), replace=False)
        held = memory_bytes(candidates.take(rows))
        expected = [worst_rank(candidates.plan_at(int(row)))[1].total for row in rows]
        assert held.tolist() == pytest.approx(expected, rel=1e-5)


def test_plans_of_different_layers_that_a_search_ranks_fit_and_cost_what_each_costs_alone():
    tight = machine_named("dgx-h100").model_copy(update={"memory_bytes": 50_000_000_000})
    plan = Plan.from_preset("deepseek-v2-lite", "model.sequence=4096", "batch.sequences=256", "compiled=true")
    space = SearchSpace(context=(1,), micro=(4,), schedules=("1f1b", "interleaved"), finalists=8)
    winners = search(Subject.of(plan), tight, 8, space).ranking.winners(20)
    prices = [estimate(winner.plan, tight) for winner in winners]
    assert winners and all(price.fits for price in prices)
    assert [w.memory_bytes for w in winners] == pytest.approx([price.memory.total for price in prices])
    assert [w.seconds for w in winners] == pytest.approx([price.seconds for price in prices], rel=1e-12)


def test_for_mt_nlg_the_search_keeps_tensor_inside_the_node_and_beats_the_published_choice():
    best = mt_nlg_search(MEGATRON).ranking.winners(1)[0]
    assert best.plan.layout.tensor == 8 and best.memory_bytes < SELENE.memory_bytes
    assert best.seconds < estimate(MT_NLG_PLAN, SELENE).seconds


def test_batches_are_ranked_by_the_time_of_a_sequence():
    """With one layout, the larger of two batches fills the pipeline in the same time, for more sequences."""
    found = small_search(space=SearchSpace(pipeline=(4,), tensor=(1,), zero=(1,), context=(1,), micro=(1,)))
    candidates = found.enumerated.candidates
    both = Candidates(
        found.subject, candidates.grid.joined(candidates.changed(sequences=2 * found.subject.sequences).grid)
    )
    ranking = rank(price(both, HERE, found.ranking.priced.memory_limit, found.space), HERE, 2)
    winners = ranking.winners(len(ranking.simulated))
    assert winners[0].plan.batch.sequences == 2 * found.subject.sequences
    each = [winner.seconds / winner.plan.batch.sequences for winner in winners]
    assert each == pytest.approx(sorted(each), rel=1e-5)


def test_what_the_closed_form_was_too_hopeful_of_is_simulated_until_none_could_be_faster(monkeypatch):
    def slower(candidates, machine):
        return Steps(*(1.2 * each for each in simulated_steps(candidates, machine)))

    priced = small_search().ranking.priced
    monkeypatch.setattr(pricing, "simulated_steps", slower)
    ranking = rank(priced, HERE, 3)
    assert 3 < len(ranking.simulated) < len(ranking.order)
    assert priced.seconds[ranking.order[len(ranking.simulated) :]].min() >= ranking.simulated.min()


def test_of_plans_that_take_as_long_the_one_that_holds_less_comes_first():
    winners = small_search().ranking.winners(60)
    times = [f"{winner.seconds / winner.plan.batch.sequences:.5e}" for winner in winners]
    ties = [(a, b) for n, (a, b) in enumerate(pairwise(winners)) if times[n] == times[n + 1]]
    assert ties and all(a.memory_bytes <= b.memory_bytes for a, b in ties)


def test_equal_searches_find_equal_plans():
    assert [w.plan for w in small_search().ranking.winners(30)] == [w.plan for w in small_search().ranking.winners(30)]


def test_a_plan_stands_where_the_ranking_has_it():
    found = small_search()
    for place, winner in enumerate(found.ranking.winners(9), start=1):
        assert found.ranking.place_of(winner.plan) == place
    outside = found.ranking.winners(1)[0].plan.model_copy(update={"schedule": "gpipe"})
    assert found.ranking.place_of(outside) is None


def test_more_memory_never_makes_the_winner_slower():
    seconds = [
        small_search(machine=this_machine(2, megabytes << 20)).ranking.winners(1)[0].seconds
        for megabytes in (40, 80, 8000)
    ]
    assert seconds == sorted(seconds, reverse=True)


def test_ranks_that_no_layout_divides_are_refused_with_the_numbers():
    with pytest.raises(ConfigError, match=r"no layout of 13 ranks is legal.*layers 8, heads 4.*sequences 32"):
        small_search(ranks=13, space=SearchSpace(context=(1,)))


@pytest.mark.parametrize(
    ("only", "named"),
    [
        ({"zero": (0,), "shards": (2,)}, "search.zero, or of search.shards"),
        ({"schedules": ("zb-v",), "pipeline": (1,)}, "search.pipeline, or of search.schedules"),
        ({"tensor": (1,), "pipeline": (4,), "chunks": (9,), "schedules": ("interleaved",)}, "search.schedules, or of"),
    ],
)
def test_choices_that_contradict_each_other_are_named_not_the_ranks(only, named):
    with pytest.raises(ConfigError, match=f"no layout of 4 ranks is legal.*; allow other choices of {named}"):
        search(subject_of(small()), HERE, 4, SearchSpace(context=(1,), **only))


@pytest.mark.parametrize(
    ("batch", "only", "nearest"),
    [
        (30, {"micro": (4,)}, (28, 32)),
        (33, {"micro": (4,)}, (32, 36)),
        (6, {"schedules": ("interleaved",), "pipeline": (4,), "micro": (1,)}, (4, 8)),
    ],
)
def test_an_impossible_batch_names_the_nearest_that_some_layout_divides(batch, only, nearest):
    space, subject = SearchSpace(context=(1,), **only), subject_of(small())
    with pytest.raises(ConfigError, match=f"{batch} is not a multiple") as error:
        search(replace(subject, sequences=batch), HERE, 4, space)
    assert f"nearest legal batch: {nearest[0]} or {nearest[1]}" in str(error.value)
    for near in nearest:
        assert search(replace(subject, sequences=near), HERE, 4, space).ranking.winners(1)


def test_more_ranks_than_devices_are_refused():
    with pytest.raises(ConfigError, match="5000 ranks"):
        mt_nlg_search(ranks=5000)


def test_a_contradictory_model_is_refused_before_anything_is_searched():
    model = MT_NLG_PLAN.model.model_copy(update={"heads": 127})
    with pytest.raises(ConfigError, match="multiple of plan.model.heads"):
        search(Subject(model, 1920, Precision()), SELENE, 2240)
    assert subject_of(MT_NLG_PLAN).sequences == 1920


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": {"groups": [{"match": "layers.*.weight", "rule": "muon"}]}},
        {"messages": {"weights": "int8"}, "precision": {"weights": "fp64"}},
        {"precision": {"weights": "bf16", "float8": {"recipe": "row", "gathered": True}}},
        {"precision": {"weights": "bf16", "float8": {"keep": ["nothing"]}}},
    ],
    ids=str,
)
def test_settings_that_no_plan_accepts_are_refused_before_a_search(settings):
    plan = build(Plan, merge(to_tree(small()), settings))
    (problem,) = plan.check()
    with pytest.raises(ConfigError, match=re.escape(problem)):
        search(subject_of(plan), HERE, 8)
