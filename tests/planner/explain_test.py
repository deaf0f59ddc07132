import json
import re

import pytest

from cost.plans import small
from trivium.config import build
from trivium.cost.hardware import machine_named, this_machine
from trivium.cost.timeline import simulate, unit_seconds
from trivium.errors import ConfigError
from trivium.plan.batch import Ramp
from trivium.plan.plan import Plan
from trivium.plan.schedule import SCHEDULE_NAMES, render
from trivium.planner.config import SearchSpace
from trivium.planner.explain import COLUMNS, near_misses, plan_lines, plan_stage, spans, unit_bubble
from trivium.planner.grid import Subject
from trivium.planner.published import mt_nlg_plan
from trivium.planner.search import search
from trivium.planner.search_text import ranking_lines
from trivium.units import format_bytes

GIB = 1 << 30
TRIED = SearchSpace(micro=(2,), context=(1,), schedules=("1f1b",), recompute=("none",), finalists=1)


def test_the_plan_of_mt_nlg_is_explained_beside_its_published_figures():
    text = "\n".join(plan_lines(mt_nlg_plan(), machine_named("selene")))
    for expected in (
        "tensor 8 x pipeline 35 x data 8 = 2,240 ranks; 35 stages, layers in each: 3",
        "8 replicas x 240 micro-batches x 1",
        "34 / (240 x 1)",
        "14.2%",
        "machine       selene: 280 of 560 nodes x 8 A100",
        "ranks 0-7 at pipeline 0, data 0, tensor 0-7",
        "530B parameters",
        "published 60.1 s",
        "rank 34: F0.34 B0.34",
    ):
        assert expected in text


def test_the_near_miss_of_mt_nlg_is_its_batch():
    """240 micro-batches are no multiple of 35 stages, so Megatron's interleaving could not be used."""
    line = near_misses(mt_nlg_plan(), machine_named("selene"), 60.1)[0]
    assert "micro-batches 240 is not a multiple of pipeline 35" in line
    assert "with batch 1,960 instead of 1,920, tensor 8" in line and "would save" in line


def ramped(plan):
    ramp = Ramp(start=32, increment=32, samples=5_859_375)
    plan = plan.model_copy(update={"batch": plan.batch.model_copy(update={"ramp": ramp})})
    assert len(plan.batch.segments) == 60
    return plan


def test_a_ramp_changes_neither_near_misses_nor_the_published_comparison():
    """The full batch alone decides both; the ramp's 60 batch sizes would each have their line."""
    selene, plan = machine_named("selene"), ramped(mt_nlg_plan())
    told = near_misses(plan, selene, 60.1)
    assert told == near_misses(mt_nlg_plan(), selene, 60.1) and len(told) == 1
    plain, told = plan_lines(mt_nlg_plan(), selene), plan_lines(plan, selene)
    assert [line for line in told if line in plain] == plain
    assert "from 32 to 1,920 sequences by 32 in the first 14,475 steps" in "\n".join(told)


@pytest.mark.parametrize("cores", [1, 2, 4, 8, 64])
def test_a_bubble_is_either_a_part_of_the_step_or_explained_away(cores):
    """Ranks that share cores fill each other's bubbles; rounding noise is never printed as a time."""
    for over in ({}, {"layout": {"chunks": 2}, "schedule": "interleaved"}):
        text = " ".join(" ".join(plan_lines(small(**over), this_machine(cores, 8 * GIB))).split())
        hidden = f"bubble 0 (8 ranks share {cores} cores" in text
        assert hidden == (cores < 8) and hidden != bool(re.search(r"bubble \d[\d.]* (us|ms|s)", text))
        assert not re.search(r"e-\d\d (us|ms|s)", text)


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2)])
def test_the_bubble_of_a_uniform_schedule_is_its_closed_form(schedule, chunks):
    plan = small(layout={"chunks": chunks}, schedule=schedule)
    micro_batches = plan.batch.micro_batches(plan.layout)
    (line,) = [each for each in plan_lines(plan, this_machine(2, GIB)) if each.startswith("schedule")]
    assert f"bubble {(plan.layout.pipeline - 1) / (micro_batches * chunks):.1%} " in line


def test_the_standing_of_the_runs_own_plan_does_not_depend_on_the_order_of_ranks():
    plan = small()
    turned = plan.layout.model_copy(update={"order": ("tensor", "data", "pipeline")})
    for each in (plan, plan.model_copy(update={"layout": turned})):
        lines = plan_stage(each, 8, 2, 8 * GIB)["lines"]
        assert any("this run's plan is number" in line for line in lines)


def test_only_a_plan_that_the_search_tries_has_a_number_in_it():
    """The ramp does not matter, as no search chooses it. Another partition, or compilation, is outside the space."""
    subject = Subject(small().model, 32, small().precision)
    ranking = search(subject, this_machine(2, 8 * GIB), 8, TRIED).ranking
    standing = {}
    for name, over in {
        "plain": {},
        "ramped": {"batch": {"ramp": {"start": 16, "increment": 16, "samples": 64}}},
        "first": {"partition": {"layers": [7, 1]}},
        "last": {"partition": {"layers": [1, 7]}},
        "compiled": {"compiled": True},
    }.items():
        standing[name] = ranking_lines(small(**over), ranking)[-1]
    assert "is number" in standing["plain"] and standing["ramped"] == standing["plain"]
    assert "outside the space searched" in standing["first"]
    assert standing["last"] == standing["compiled"] == standing["first"]


def test_a_layout_of_one_rank_may_name_no_axis():
    layout = {"tensor": 1, "pipeline": 1, "data": 1}
    here = this_machine(2, GIB)
    assert plan_lines(small(layout={**layout, "order": []}), here) == plan_lines(small(layout=layout), here)


def test_rows_that_are_given_are_shown_as_they_are():
    """Given rows are the table of one batch, so there is no shorter step. They say whether the backward is split."""
    for name, split in (("1f1b", False), ("zb-h1", True)):
        of_named = small(batch={"sequences": 128}, schedule=name)
        rows = render(of_named.schedule_table()).splitlines()
        plan = small(batch={"sequences": 128}, schedule="given", rows=rows)
        text = " ".join(" ".join(plan_lines(plan, this_machine(2, GIB))).split())
        assert ("with the backward split in two" in text) == split
        assert "its micro-batches" in text and rows[0][:60] in text
        assert spans(plan, this_machine(2, GIB))["spans_micro_batches"] == 32
        assert len(spans(plan, this_machine(2, GIB))["spans"]) == sum(map(len, plan.schedule_table()))
        assert spans(of_named, this_machine(2, GIB))["spans_micro_batches"] == 8


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        ({"data": 1}, "nothing is sharded over 1 replica"),
        ({"data": 1, "context": 2}, "sharded over 2 replicas"),
        ({"data": 4, "context": 2, "pipeline": 1}, "sharded over 8 replicas"),
        ({"data": 4, "context": 2, "shards": 4}, "in 2 copies, each sharded over 4 of 8 replicas"),
    ],
)
def test_what_zero_shards_is_told_with_over_how_many_replicas(layout, says):
    text = " ".join(" ".join(plan_lines(small(layout=layout), this_machine(2, GIB))).split())
    assert f"ZeRO stage 1: {'' if 'nothing' in says else 'optimizer state '}{says}" in text


def test_no_line_is_too_wide_for_a_terminal():
    for plan, machine in ((mt_nlg_plan(), machine_named("selene")), (small(), this_machine(2, GIB))):
        assert max(map(len, plan_lines(plan, machine))) <= COLUMNS


def test_an_illegal_plan_is_refused_with_every_problem():
    plan = small().model_copy(update={"layout": small().layout.model_copy(update={"tensor": 3})})
    with pytest.raises(ConfigError, match="heads"):
        plan_lines(plan, this_machine(2, GIB))


@pytest.mark.parametrize("over", [
    {}, {"layout": {"chunks": 2}, "schedule": "interleaved"}, {"layout": {"tensor": 1, "pipeline": 1, "data": 1}}
])  # fmt: skip
def test_the_plan_stage_is_plain_data_that_gives_the_plan_back(over):
    plan = small(**over)
    result = json.loads(json.dumps(plan_stage(plan, plan.layout.world_size, 2, 8 * GIB)))
    assert build(Plan, result["plan"]) == plan
    assert build(Plan, result["mt_nlg"]["plan"]) == mt_nlg_plan()
    assert result["mt_nlg"]["published_seconds"] == 60.1
    assert [row["rank"] for row in result["memory"]] == list(range(plan.layout.world_size))
    assert all(line in result["lines"] for line in result["mt_nlg"]["lines"])
    assert result["ranking"][0]["fits"]
    assert {span["pipeline_rank"] for span in result["spans"]} == set(range(plan.layout.pipeline))


def test_the_plan_stage_goes_by_the_memory_that_its_search_may_use():
    space = SearchSpace(memory_fraction=0.5, tensor=(2,), pipeline=(2,), schedules=("1f1b",), finalists=1)
    result = plan_stage(small(), 8, 2, 8 * GIB, space)
    assert result["estimate"]["memory_limit"] == GIB / 2
    assert f"of the {format_bytes(GIB // 2)} available per rank" in " ".join(" ".join(result["lines"]).split())
    assert result["mt_nlg"]["estimate"]["memory_limit"] == machine_named("selene").usable_memory(2240)


def test_a_long_step_is_drawn_by_its_first_micro_batches():
    plan = small(batch={"sequences": 3200})
    result = plan_stage(plan, 8, 2, 8 * GIB)
    assert result["spans_micro_batches"] == 8
    assert len(result["spans"]) == 2 * 2 * 8


@pytest.mark.parametrize("schedule", [*SCHEDULE_NAMES, "zb-turns"])
@pytest.mark.parametrize("micro_batches", (4, 40))
def test_a_bubble_is_that_of_the_whole_table(schedule, micro_batches):
    """It is equal to the last digit, although only a part of a long step is simulated."""
    chunks = 2 if schedule in ("interleaved", "zb-v", "zb-turns") else 1
    layout = {"tensor": 1, "pipeline": 2, "data": 1, "chunks": chunks}
    plan = small(schedule=schedule, layout=layout, batch={"sequences": micro_batches, "micro": 1})
    assert unit_bubble(plan)[0] == simulate(plan.schedule_table(), unit_seconds).bubble_fraction
