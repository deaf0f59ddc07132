"""Plans the tests of cost and planner share."""

from trivium.config import build, merge
from trivium.plan.plan import Plan

SMALL = {
    "model": {"layers": 8, "hidden": 64, "heads": 4, "vocabulary": 1000, "sequence": 32},
    "layout": {"tensor": 2, "pipeline": 2, "data": 2},
    "batch": {"sequences": 32, "micro": 2},
}
MT_NLG = {
    "model": {"layers": 105, "hidden": 20480, "heads": 128, "vocabulary": 50257, "sequence": 2048},
    "layout": {"tensor": 8, "pipeline": 35, "data": 8},
    "batch": {"sequences": 1920, "micro": 1},
    "precision": {"weights": "bf16"},
    "recompute": {"mode": "layer"},
}


def small(**over) -> Plan:
    """The small plan with sections changed."""
    return build(Plan, merge(SMALL, over)).checked()


def mt_nlg(**over) -> Plan:
    """MT-NLG 530B on 280 nodes."""
    return build(Plan, merge(MT_NLG, over)).checked()
