import re

import pytest

from planner.searches import HERE, mt_nlg_search, small_search
from trivium.cost.hardware import machine_named
from trivium.plan.plan import Plan
from trivium.planner.config import SearchSpace
from trivium.planner.remedies import does_not_fit, nodes_that_fit, remedies
from trivium.planner.search import best_search


@pytest.mark.broad
def test_a_model_that_fits_nowhere_says_by_how_much_and_how_many_nodes_would_do():
    found = mt_nlg_search(ranks=16)
    assert len(found.ranking.order) == 0
    text = does_not_fit(found)
    assert "none of" in text and "too much" in text and "recompute layer" in text
    nodes = int(re.search(r"([\d,]+) nodes", text).group(1).replace(",", ""))
    assert len(mt_nlg_search(ranks=8 * nodes).ranking.order) > 0
    assert nodes == nodes_that_fit(found)


def test_choices_that_were_left_out_are_offered_only_if_they_help():
    tight = SearchSpace(
        recompute=("none",), zero=(1,), micro=(2,), context=(1,), schedules=("1f1b",), activation_function=False
    )
    found = mt_nlg_search(tight, ranks=320)
    told = list(remedies(found))
    assert "recompute 'layer' would fit" in told
    for words, wider in (
        ("recompute 'layer' would fit", {"recompute": ("layer",)}),
        ("micro-batches of 1 sequence would fit", {"micro": (1,)}),
        ("activation function computed again would fit", {"activation_function": True}),
        ("ZeRO stage 3 would fit", {"zero": (3,)}),
        ("context up to 8 would fit", {"context": (1, 2, 4, 8)}),
    ):
        fits = len(mt_nlg_search(tight.model_copy(update=wider), ranks=320).ranking.order) > 0
        assert (words in told) == fits


def test_a_machine_of_one_node_is_not_told_to_have_more():
    found = small_search(machine=HERE, space=SearchSpace(memory_fraction=1e-6))
    assert nodes_that_fit(found) is None
    assert "use a machine with more memory" in does_not_fit(found)


TINY = machine_named("dgx-h100").model_copy(update={"memory_bytes": 3_000_000_000, "nodes": 4})
GPT2 = Plan.from_preset("gpt2-xl", "precision.weights=bf16")
QUICK = SearchSpace(context=(1,), schedules=("1f1b",), recompute=("layer",), finalists=2)


@pytest.mark.parametrize("host", [TINY.host_memory_bytes, 10**9])
def test_offload_is_offered_where_a_space_excludes_it_and_hosts_have_room(host: int):
    machine = TINY.model_copy(update={"host_memory_bytes": host})
    without = best_search(GPT2, machine, 8, QUICK.model_copy(update={"offload": (0.0,)}))
    assert not len(without.ranking.order)
    fits = len(best_search(GPT2, machine, 8, QUICK).ranking.order) > 0
    assert ("state and activations on the host (search.offload=null) would fit" in remedies(without)) is fits
    assert fits is (host > 10**9)


def test_a_search_with_offload_is_told_the_nodes_that_are_enough_with_it():
    few = best_search(GPT2, TINY, 1, QUICK)
    assert not len(few.ranking.order) and (nodes := nodes_that_fit(few)) is not None
    assert len(best_search(GPT2, TINY, 8 * nodes, QUICK).ranking.order)
    without = best_search(GPT2, TINY, 1, QUICK.model_copy(update={"offload": (0.0,)}))
    assert nodes < (nodes_that_fit(without) or 0)


def test_hosts_with_too_little_memory_are_named_with_what_they_have():
    poor = TINY.model_copy(update={"host_memory_bytes": 10**9})
    found = best_search(GPT2, poor, 8, QUICK.model_copy(update={"offload": (1.0,)}))
    assert re.search(r"holds [\d.]+ GiB and [\d.]+ GiB on its host, which has 110 MiB; ", does_not_fit(found))
