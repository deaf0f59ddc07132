"""Small plans for tests."""

from functools import cache
from typing import Any

from trivium.certify.layouts import generated_plans
from trivium.config import Tree
from trivium.plan.plan import Plan

# The settings of a model of experts; `first` has the dense layer.
EXPERTS: Tree = {
    "norm": "rms_norm",
    "positions": "rotary",
    "bias": "none",
    "feed_forward": "experts",
    "ffn": 12,
    "experts": {"count": 4, "chosen": 2, "shared": 8},
    "first": [{"times": 1, "feed_forward": "gated"}],
}


def small(tensor: int = 1, pipeline: int = 1, data: int = 1, chunks: int = 1, context: int = 1, **more: Any) -> Plan:
    """Return a valid reduced plan. `model` and `batch` are merged into its own; `order`, `shards` and `expert` belong
    to the layout."""
    model = {"layers": 4, "hidden": 24, "heads": 4, "vocabulary": 37, "vocabulary_multiple": 2, "sequence": 8}
    batch = {"sequences": 16, "micro": 2}
    layout = {"tensor": tensor, "pipeline": pipeline, "data": data, "chunks": chunks, "context": context}
    layout |= {name: more.pop(name) for name in ("order", "shards", "expert") if name in more}
    return Plan(
        model={**model, **more.pop("model", {})},
        batch={**batch, **more.pop("batch", {})},
        layout=layout,
        **{"schedule": "interleaved" if chunks > 1 else "1f1b", **more},
    ).checked()


def brief(plan: Plan, micro_batches: int = 4) -> Plan:
    """Return the plan with at most the micro-batches that fill two stages of two chunks; longer pipelines and ramps
    keep theirs."""
    sequences = micro_batches * plan.batch.micro * plan.layout.data
    if plan.batch.ramp is not None or plan.layout.pipeline > 2 or plan.batch.sequences <= sequences:
        return plan
    return plan.model_copy(update={"batch": plan.batch.model_copy(update={"sequences": sequences})}).checked()


@cache
def swept(max_ranks: int) -> tuple[Plan, ...]:
    """Return the layouts of the certificate's sweep, drawn once per process because that takes seconds."""
    return tuple(generated_plans(max_ranks))
