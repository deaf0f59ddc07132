"""Searches the tests share."""

from cost.plans import MT_NLG, small
from trivium.config import build
from trivium.cost.hardware import machine_named, this_machine
from trivium.plan.plan import Plan
from trivium.plan.precision import Precision
from trivium.planner.config import SearchSpace
from trivium.planner.grid import Subject
from trivium.planner.search import Found, search

HERE = this_machine(2, 8 << 30)
SELENE = machine_named("selene")
MT_NLG_PLAN = build(Plan, MT_NLG)
MEGATRON = SearchSpace(schedules=("1f1b", "interleaved"))


def subject_of(plan: Plan) -> Subject:
    return Subject.of(plan)


def small_search(ranks=8, machine=HERE, space=None, **over) -> Found:
    return search(subject_of(small(**over)), machine, ranks, space)


def mt_nlg_search(space=None, ranks=2240, sequences=1920) -> Found:
    subject = Subject(MT_NLG_PLAN.model, sequences, Precision(weights="bf16"))
    return search(subject, SELENE, ranks, space)
