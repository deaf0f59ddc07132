"""Laws of the reduction: small, legal, and of the same kind."""

import pytest

from plans import EXPERTS, small
from trivium.certify.layouts import ROTARY, generated_plans
from trivium.certify.reduce import reduced
from trivium.errors import ConfigError
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import parameters
from trivium.plan.plan import Plan

BIG = {"layers": 30, "hidden": 960, "heads": 12, "vocabulary": 50257, "vocabulary_multiple": 128, "sequence": 2048}
MIXTRAL = {**EXPERTS, "ffn": 3584, "experts": {"count": 8, "chosen": 2, "balance_loss": 0.02}}
DEEPSEEK = {
    **EXPERTS,
    "ffn": 4608,
    "first": [{"times": 3, "feed_forward": "gated"}],
    "experts": {
        "count": 256,
        "chosen": 8,
        "columns": 512,
        "shared": 512,
        "scores": "sigmoid",
        "scale": 2.5,
        "groups": 8,
        "chosen_groups": 4,
        "group_score": "two_largest",
        "bias_rate": 0.001,
    },
}
KEPT = ("layout", "schedule", "zero", "recompute", "sequence_parallel", "context_attention")


def kind(plan: Plan) -> dict[str, object]:
    """Return the properties of a plan that decide which code runs."""
    model, layout = plan.model, plan.layout
    rows = model.padded_vocabulary(layout.tensor) // layout.tensor
    missing = model.padded_vocabulary(layout.tensor) - model.vocabulary
    counts = plan.partition.counts(model, layout)
    return {
        **{name: getattr(plan, name) for name in KEPT if name != "recompute"},
        "recompute": (plan.recompute.mode, plan.recompute.every > 1),
        "parts": (
            model.norm,
            model.feed_forward,
            model.positions,
            model.bias,
            model.head,
            model.dropout,
            model.documents,
        ),
        "windows": (
            model.window is None or model.window >= model.sequence,
            {model.form_of(n).window is not None for n in range(model.layers)},
            model.form_of(0).window is not None,
        ),
        "queries of a group": model.heads // model.kv,
        "padding": (missing // rows, missing % rows > 0),
        "empty stages": [c == 0 for c in counts],
        "fuller stages": [(a > b) for a, b in zip(counts, counts[1:], strict=False)],
        "odd sequence": model.sequence % 2,
        "odd micro-batches": plan.batch.ramp is None and plan.batch.micro_batches(layout) % 2,
        "ramp": plan.batch.ramp is not None,
        "experts": _kind_of_experts(model),
    }


def _kind_of_experts(model: ModelShape) -> tuple[object, ...]:
    if model.experts is None:
        return ()
    chosen, groups = model.experts.chosen, (model.experts.groups, model.experts.chosen_groups)
    widths = {"count", "chosen", "groups", "chosen_groups", "shared", "columns"}
    others = model.experts.model_dump(exclude=widths)
    has = (model.experts.shared > 0, model.experts.columns is None)
    return chosen > 1, groups[0] > 1, groups[1] < groups[0], *has, *others.values()


@pytest.mark.parametrize(
    "plan",
    [
        small(model=BIG),
        small(tensor=3, pipeline=2, data=2, model=BIG, batch={"sequences": 96}, sequence_parallel=False),
        small(model={**BIG, "vocabulary": 101}),
        small(tensor=5, model={**BIG, "heads": 5, "vocabulary": 600}),
        small(tensor=4, pipeline=3, model={**BIG, "vocabulary": 50001}, schedule="zb-h1"),
        small(pipeline=4, chunks=2, model=BIG, batch={"sequences": 64}, recompute={"mode": "layer", "every": 4}),
        small(pipeline=3, model=BIG, partition={"layers": [12, 13, 5]}),
        small(pipeline=4, model=BIG, partition={"layers": [0, 10, 15, 5]}),
        small(model={**BIG, "window": 512}),
        small(pipeline=2, model={**BIG, "window": 4096, "first": [{"times": 28, "window": None}]}),
        small(context=4, model={**BIG, "window": 1024, "pattern": [{"times": 5}, {"window": None}]}),
        small(
            pipeline=3,
            model={
                **BIG,
                "window": 100,
                "first": [{"times": 1, "window": None}],
                "pattern": [{"times": 3}, {"window": None}],
            },
        ),
        small(tensor=2, model={**BIG, **ROTARY, "kv_heads": 4, "hidden": 768}, sequence_parallel=True),
        small(context=4, model={**BIG, "documents": "apart", "end_of_text": 50256}),
        small(context=2, tensor=2, model={**BIG, "heads": 8}, context_attention="ulysses"),
        small(data=4, expert=4, model={**BIG, **MIXTRAL, "first": []}),
        small(tensor=2, data=4, expert=2, zero=3, shards=2, model={**BIG, **DEEPSEEK}),
        small(data=2, batch={"sequences": 128, "ramp": {"start": 32, "increment": 32, "samples": 4096}}, model=BIG),
    ],
)
def test_a_big_plan_becomes_small_and_stays_of_its_kind(plan: Plan) -> None:
    found = reduced(plan)
    assert found.check() == [] and reduced(found) == found
    assert kind(found) == kind(plan)
    assert found.model.hidden <= 64 and found.model.vocabulary <= 2000 and found.model.sequence <= 24
    assert found.model.layers <= 3 * plan.layout.stages
    assert sum(p.elements for p in parameters(found.model)) < 50_000
    assert found.model.vocabulary >= 7  # of one word, every loss would be zero


def test_every_legal_plan_can_be_reduced_and_nothing_grows() -> None:
    for plan in generated_plans(6)[::3]:
        found = reduced(plan)
        assert found.check() == [] and kind(found) == kind(plan)
        assert found.model.hidden <= plan.model.hidden and found.model.layers <= plan.model.layers
        assert plan.batch.ramp is not None or found.batch.sequences <= plan.batch.sequences


def test_more_ranks_than_this_machine_can_start_are_refused_with_the_number() -> None:
    with pytest.raises(ConfigError, match="64 ranks"):
        reduced(small(data=64, batch={"sequences": 128}))


def test_an_illegal_plan_is_refused() -> None:
    plan = small().model_copy(update={"sequence_parallel": True})
    broken = plan.model_copy(update={"layout": plan.layout.model_copy(update={"tensor": 3})})
    with pytest.raises(ConfigError, match=r"plan\.model\.heads"):
        reduced(broken)
