"""The simplest plan that still fails: everything is taken away without which it fails too."""

from collections.abc import Callable

from trivium.certify.reduce import reduced
from trivium.config import Tree, merge
from trivium.plan.layout import AXES
from trivium.plan.plan import Plan

# Sizes that two ranks, and two times two, can share where three did.
FOR_TWO: Tree = {
    "heads": 4,
    "kv_heads": None,
    "head_width": None,
    "hidden": 16,
    "ffn": 28,
    "sequence": 8,
    "init_std": None,
}
PLAIN: Tree = {
    "norm": "layer_norm",
    "feed_forward": "plain",
    "positions": "learned",
    "bias": "all",
    "qk_norm": "none",
    "norm_position": "before",
    "rope_base": 10000.0,
    "rope_columns": None,
    "rope_pairs": "halves",
    "rope_scaling": None,
    "attention": "softmax",
    "latent": None,
}  # the default
# Every choice as it is where nobody chose; those that take most away first.
SIMPLER: tuple[Tree, ...] = (
    *({"layout": {axis: degree}} for degree in (1, 2) for axis in AXES),
    *({"layout": {axis: 2}, "model": FOR_TWO} for axis in ("context", "tensor")),
    {"schedule": "1f1b", "rows": None, "layout": {"chunks": 1}},
    *({"schedule": "1f1b", "rows": None, "layout": {"chunks": 1, "pipeline": degree}} for degree in (1, 2)),
    {"layout": {"order": AXES}},
    {"layout": {"expert": 1}},
    {"layout": {"expert": 2}},
    {"layout": {"shards": None}},
    {"batch": {"ramp": None}},
    {"zero": 0},
    {"overlap_tensor": False},
    {"sequence_parallel": False},
    {"row_chunks": 1},
    {"recompute": {"mode": "none", "every": 1, "activation_function": False}},
    {"recompute": {"mode": "none", "every": 1}},
    {"recompute": {"activation_function": False}},
    {"recompute": {"every": 1}},
    {"context_attention": "ring"},
    {"model": {"adapters": []}},
    {"model": {"dropout": 0.0}},
    {"model": {"z_loss": 0.0}},
    {"model": {"feed_forward": "gated", "experts": None}},
    {"model": {"wiring": "sequential"}},
    {"model": {"activation": "gelu_tanh"}},
    {"model": {"documents": "joined"}},
    {"model": {"window": None, "first": [], "pattern": []}},
    {"model": {"first": [], "pattern": []}},
    {"model": {"pattern": []}},
    {"model": {"first": []}},
    {"model": {"kv_heads": None}},
    {"model": {"head_width": None}},
    {"model": {"qk_norm": "none"}},
    {"model": {"norm_position": "before"}},
    {"model": {"rope_scaling": None}},
    {"model": {"score_scale": None, "score_cap": None}},
    {"model": {"score_scale": None}},
    {"model": {"score_cap": None}},
    {"model": {"embedding_scale": 1.0, "residual_scale": 1.0}},
    {"model": {"residual_scale": 1.0}},
    {"model": {"logits_scale": 1.0, "logits_cap": None}},
    {"model": {"kv_heads": None, "ffn": None, **PLAIN}},
    {"model": {"head": "untied"}},
    {"model": {"vocabulary_multiple": 1}},
    {"partition": {"layers": None}},
    {"batch": {"micro": 1}},
)
MICRO_BATCHES = (1, 2)  # micro-batches of a step, fewest first


def simplest(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """A plan that fails and of which no simplification does, from one that fails. Each plan is tried once."""
    tried: set[Plan] = {plan}

    def try_one(candidate: Plan | None) -> Plan:
        if candidate is None or candidate in tried:
            return plan
        tried.add(candidate)
        return candidate if fails(candidate) else plan

    while True:
        before = plan
        for change in SIMPLER:
            plan = try_one(_changed(plan, change))
        for number in MICRO_BATCHES:
            plan = try_one(_with_micro_batches(plan, number))
        if plan == before:
            return plan


def _changed(plan: Plan, change: Tree) -> Plan | None:
    """The plan with a change, reduced; None where that is not legal, or has no fewer ranks where it should."""
    degrees = {axis: n for axis, n in change.get("layout", {}).items() if axis in AXES}
    if any(n >= plan.layout.degree(axis) for axis, n in degrees.items()):
        return None
    tree = merge(plan.model_dump(), change)
    if "data" in degrees and plan.batch.ramp is None:  # as many micro-batches for each replica
        tree["batch"]["sequences"] = plan.batch.sequences // plan.layout.data * degrees["data"]
    if tree["layout"]["pipeline"] * tree["layout"]["chunks"] != plan.layout.stages:
        tree["partition"] = {"layers": None}
    candidate = Plan.model_validate(tree)
    return None if candidate.check() else reduced(candidate)


def _with_micro_batches(plan: Plan, number: int) -> Plan | None:
    """The plan with fewer micro-batches in a step; None where a ramp or a given table says how many."""
    sequences = number * plan.batch.micro * plan.layout.data
    if plan.batch.ramp is not None or sequences >= plan.batch.sequences:
        return None
    return _changed(plan, {"batch": {"sequences": sequences}})
