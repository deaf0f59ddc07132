import pytest

from cost.plans import small
from planner.searches import MEGATRON, MT_NLG_PLAN, SELENE, mt_nlg_search, small_search, subject_of
from trivium.config import merge
from trivium.cost.estimate import estimate
from trivium.cost.hardware import machine_named
from trivium.cost.memory import worst_rank
from trivium.planner.config import SearchSpace
from trivium.planner.grid import Subject
from trivium.planner.near_misses import MIN_SAVED_FRACTION, interleaving_misses, near_misses, turns_misses
from trivium.planner.pricing import utilisation
from trivium.planner.search import search
from trivium.planner.search_text import miss_text


@pytest.fixture(scope="module")
def mt_nlg():
    found = mt_nlg_search(MEGATRON)
    return found, near_misses(found)


@pytest.mark.broad
def test_the_near_miss_of_mt_nlg_is_its_batch(mt_nlg):
    """240 micro-batches are no multiple of 35 stages, so Megatron's interleaving could not be used."""
    _, misses = mt_nlg
    obstacle = "micro-batches 240 is not a multiple of pipeline 35, so interleaving is impossible"
    miss = next(each for each in misses if each.obstacle == obstacle)
    assert miss.change == "batch 1,960 instead of 1,920"
    assert miss.plan.schedule == "interleaved" and miss.plan.layout.chunks == 3
    assert 0.03 < miss.saves < 0.12


def test_what_a_near_miss_saves_is_what_the_estimates_of_both_plans_say(mt_nlg):
    found, misses = mt_nlg
    best = found.ranking.winners(1)[0]
    for miss in misses:
        seconds = estimate(miss.plan, SELENE).seconds
        assert miss.seconds == pytest.approx(seconds, rel=1e-9)
        saves = 1 - best.utilisation / utilisation(miss.plan, SELENE, seconds)
        assert miss.saves == pytest.approx(saves, rel=1e-6) and miss.saves > MIN_SAVED_FRACTION


def test_every_near_miss_is_legal_and_was_not_before(mt_nlg):
    found, misses = mt_nlg
    assert misses
    for miss in misses:
        assert miss.plan.check(miss.plan.layout.world_size) == []
        asked = miss.plan.model_copy(
            update={
                "model": found.subject.model,
                "batch": miss.plan.batch.model_copy(update={"sequences": found.subject.sequences}),
            }
        )
        same_subject = subject_of(miss.plan) == found.subject and miss.plan.layout.world_size == found.ranks
        assert not same_subject
        if miss.change.startswith("batch"):
            assert asked.check(found.ranks) != []


@pytest.mark.broad
def test_heads_that_tensor_ranks_cannot_share_are_named():
    """25 heads, as in GPT-2 XL: no tensor degree of a node divides them."""
    plan = MT_NLG_PLAN.model_copy(
        update={"model": MT_NLG_PLAN.model.model_copy(update={"hidden": 25600, "heads": 25, "layers": 64})}
    )
    found = search(subject_of(plan), SELENE, 1024)
    assert {winner.plan.layout.tensor for winner in found.ranking.winners(50)} == {1}
    heads = [miss for miss in near_misses(found) if miss.change.startswith("heads")]
    assert heads and heads[0].plan.layout.tensor > 1
    assert "does not divide the 25 heads" in heads[0].obstacle


def test_a_plan_that_could_not_be_interleaved_is_told_the_batch_that_would_allow_it():
    seconds = estimate(MT_NLG_PLAN, SELENE).seconds
    misses = interleaving_misses(MT_NLG_PLAN, SELENE, seconds)
    assert misses[0].change == "batch 1,960 instead of 1,920"
    text = miss_text(misses[0])
    assert "240" in text and "35 x 3 chunks" in text and "save" in text


def test_a_plan_without_a_pipeline_has_no_interleaving_to_miss():
    alone = MT_NLG_PLAN.model_copy(update={"layout": MT_NLG_PLAN.layout.model_copy(update={"pipeline": 1})})
    assert interleaving_misses(alone, SELENE, 1.0) == []


def test_a_search_without_winners_misses_nothing_nearly():
    found = small_search(ranks=1, space=MEGATRON.model_copy(update={"memory_fraction": 1e-6}))
    assert len(found.ranking.order) == 0 and near_misses(found) == []


def test_a_plan_whose_ranks_have_an_order_of_their_own_is_told_no_batch():
    """A plan of another order would be credited with leaving it."""
    layout = MT_NLG_PLAN.layout.model_copy(update={"order": ("data", "pipeline", "context", "tensor")})
    ordered = MT_NLG_PLAN.model_copy(update={"layout": layout})
    assert interleaving_misses(ordered, SELENE, estimate(ordered, SELENE).seconds) == []


@pytest.mark.broad
def test_where_memory_is_what_another_number_of_layers_mends_memory_is_named():
    model = MT_NLG_PLAN.model.model_copy(
        update={"layers": 80, "hidden": 5120, "heads": 40, "sequence": 4096, "vocabulary": 50257}
    )
    subject = Subject(model, 1000, MT_NLG_PLAN.precision)
    machine = machine_named("dgx-h100").with_nodes(8)
    found = search(subject, machine, 64)
    limit = found.ranking.priced.memory_limit
    layers = [miss for miss in near_misses(found) if miss.change.startswith("layers")]
    assert layers
    for miss in layers:
        unchanged = miss.plan.model_copy(update={"model": model})
        over = not unchanged.check() and worst_rank(unchanged)[1].total > limit
        assert miss.obstacle.startswith("unchanged, the plan needs") == over


LIMIT = SELENE.usable_memory(8)


def long_headed(**over):
    """Llama's 128,256 words over small layers: the head is more work than a stage."""
    model = {"layers": 16, "hidden": 2048, "heads": 16, "vocabulary": 128_256, "sequence": 4096, "head": "untied"}
    tree = {"model": model, "layout": {"tensor": 1, "pipeline": 4, "data": 2}, "batch": {"sequences": 64, "micro": 1}}
    return small(**merge(tree, over))


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_long_head_is_better_taken_in_turns_and_what_that_saves_is_what_the_estimates_say(schedule):
    plan = long_headed(schedule=schedule, precision={"weights": "bf16"})
    seconds = estimate(plan, SELENE).seconds
    (miss,) = turns_misses(plan, SELENE, seconds, LIMIT)
    assert miss.plan.schedule == "zb-turns" and miss.plan.check(8) == []
    assert miss.saves == pytest.approx(1 - estimate(miss.plan, SELENE).seconds / seconds)
    assert miss.saves > 0.2
    assert "2.6 of 8 stages" in miss_text(miss) and "a round-robin head" in miss_text(miss)


def test_a_search_tells_what_taking_heads_in_turns_would_save_its_winner():
    space = SearchSpace(pipeline=(4,), tensor=(1,), schedules=("1f1b",), context=(1,))
    plan = long_headed(precision={"weights": "bf16"})
    found = search(subject_of(plan), SELENE, 8, space)
    best = found.ranking.winners(1)[0]
    told = [miss for miss in near_misses(found) if miss.change == "a round-robin head"]
    assert told == turns_misses(best.plan, SELENE, best.seconds, LIMIT) and len(told) == 1


def test_heads_in_turns_take_no_credit_for_a_partition_that_they_drop():
    plan = long_headed(precision={"weights": "bf16"})
    layers = [plan.model.layers - 3, 1, 1, 1]
    uneven = long_headed(precision={"weights": "bf16"}, partition={"layers": layers})
    assert turns_misses(uneven, SELENE, estimate(uneven, SELENE).seconds, LIMIT) == []


def test_heads_are_not_to_be_taken_in_turns_where_nobody_waits_for_them_or_there_is_no_room():
    plan = long_headed(precision={"weights": "bf16"})
    seconds = estimate(plan, SELENE).seconds
    assert turns_misses(plan, SELENE, seconds, LIMIT / 40) == []
    assert turns_misses(long_headed(model={"vocabulary": 1024}), SELENE, seconds, LIMIT) == []
    assert turns_misses(long_headed(layout={"pipeline": 1, "data": 8}), SELENE, seconds, LIMIT) == []
    assert turns_misses(MT_NLG_PLAN, SELENE, 60.1, LIMIT) == []
