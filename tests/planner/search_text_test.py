import json
import re
from dataclasses import replace

import pytest

from planner.searches import MEGATRON, mt_nlg_search
from trivium.config import build
from trivium.plan.layout import Layout
from trivium.planner.near_misses import near_misses
from trivium.planner.search_text import (
    CELLS,
    behind_text,
    best_of_layouts,
    explain_lines,
    explain_tree,
    rejected_lines,
    search_tree,
    table_lines,
)

GIB = 1 << 30


@pytest.fixture(scope="module")
def found():
    return mt_nlg_search(MEGATRON)


def test_the_table_has_one_row_for_each_winner_and_its_columns_line_up(found):
    winners = found.ranking.winners(7)
    head, *rows = table_lines(winners)
    assert len(rows) == 7 and all(name in head for name in CELLS if name != "expert")
    column = head.index("tensor") + len("tensor")
    assert [int(row[:column]) for row in rows] == [w.plan.layout.tensor for w in winners]
    end = head.index("MFU") + len("MFU")
    assert all(row[:end].endswith("%") for row in rows)


def test_runners_up_have_other_layouts_than_the_winner(found):
    layouts = [winner.plan.layout for winner in best_of_layouts(found.ranking)]
    assert len(set(layouts)) == len(layouts) > 3


def test_every_family_that_was_rejected_is_told_with_its_number(found):
    lines = rejected_lines(found)
    assert any("tensor 5 spans nodes of 8" in line for line in lines)
    assert any("is not a multiple of pipeline" in line for line in lines)
    for family in found.enumerated.rejected:
        assert any(f"{family.layouts:,} layouts" in line for line in lines)
    memory = [line for line in lines if line.startswith("memory: ")]
    over = sum(int(line.split()[1].replace(",", "")) for line in memory)
    priced = found.ranking.priced
    assert over == len(priced.candidates) - len(priced.fitting)
    assert not any("smallest 0 B more" in line for line in memory)


def test_a_runner_up_that_is_as_fast_is_compared_by_its_memory(found):
    winner = found.ranking.winner(0)
    for more, told in ((GIB, "1 GiB more memory"), (-GIB, "1 GiB less memory"), (0, "the same memory")):
        other = replace(winner, memory_bytes=winner.memory_bytes + more)
        assert behind_text(other, winner).endswith(f"; needs {told} per rank")


def test_an_explanation_names_the_winner_its_limits_and_what_it_nearly_could_be(found):
    text = "\n".join(explain_lines(found, near_misses(found), 10))
    for expected in ("Winner: tensor 8", "Runners-up", "more", "Rejected:", "batch 1,960 instead of 1,920"):
        assert expected in text
    assert "none would save more than 1 %" in "\n".join(explain_lines(found, [], 10))


@pytest.mark.parametrize("top", [1, 3, 9])
def test_an_explanation_tells_of_as_many_plans_as_are_asked_for(found, top):
    lines = explain_lines(found, [], top)
    places = [int(line.split(".")[0]) for line in lines if re.match(r"  \d+\. ", line)]
    assert places == list(range(2, top + 1)) and any("Runners-up" in line for line in lines) == (top > 1)
    tree = explain_tree(found, [], top)
    assert len(tree["runners_up"]) == top - 1 and len(tree["winners"]) == top


def test_the_tree_is_plain_data_that_gives_the_layouts_back(found):
    tree = json.loads(json.dumps(search_tree(found, 5)))
    winners = found.ranking.winners(5)
    assert [build(Layout, each["layout"]) for each in tree["winners"]] == [w.plan.layout for w in winners]
    assert [each["seconds"] for each in tree["winners"]] == [w.seconds for w in winners]
    assert tree["combinations"] >= tree["legal"] >= tree["fit"] >= tree["simulated"] >= 50
    more = json.loads(json.dumps(explain_tree(found, near_misses(found), 5)))
    assert more["near_misses"][0]["plan"]["schedule"] in ("interleaved", "1f1b")
    rejected = sum(each["layouts"] for each in more["rejected"])
    assert rejected + tree["legal"] == tree["combinations"]
