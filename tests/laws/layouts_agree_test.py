"""The central law: every layout computes what one process computes."""

import pytest

from plans import EXPERTS, brief, small
from trivium.certify.certificate import Certificate, Deviation, certificate
from trivium.certify.courses import STEPS
from trivium.certify.layouts import ROTARY
from trivium.certify.random_plans import random_plans
from trivium.certify.reference import RECIPE, compute_reference
from trivium.certify.sweep import certify, describe
from trivium.certify.ways import FAR, WAYS
from trivium.plan.plan import Plan

llama = {**ROTARY, "kv_heads": 2, "hidden": 32, "head": "untied"}
qwen2 = {**llama, "bias": "qkv"}
slowed = {"factor": 4.0, "original": 4, "slow": 0.1, "fast": 2.0}
llama31, yarn = ({**llama, "rope_scaling": {"kind": kind, **slowed}} for kind in ("llama3", "yarn"))
linear = {**llama, "rope_scaling": {"kind": "linear", "factor": 3.0}}
qwen3 = {**llama, "qk_norm": "each_head", "head_width": 10}
olmo2 = {**llama, "qk_norm": "all_heads", "norm_position": "after", "norm_epsilon": 0.1}
mistral = {**llama, "window": 3}
ministral = {
    **llama,
    "window": 3,
    "first": [{"times": 1, "window": None}],
    "pattern": [{"times": 1}, {"window": None}],
}  # all, window, all, window
qwen2_from = {**qwen2, "window": 5, "first": [{"times": 2, "window": None}]}
odd = {"hidden": 20, "ffn": 34}  # parameters that leave room before the next
apart = {"documents": "apart", "end_of_text": 3}
z_loss = {"z_loss": 0.05}
BACKWARDS = ("F0.1 F1.1 B1.1 B0.1", "F0.0 F1.0 B1.0 B0.0")  # the first stage on the last rank
# The first stage on the second rank, the last on the third.
SCATTERED = (
    "F0.1 F0.4 I0.4 W0.4 F1.1 I0.1 F1.4 W0.1 I1.4 I1.1 W1.1 W1.4",
    "F0.0 F1.0 F0.2 F1.2 I0.2 W0.2 I0.0 W0.0 I1.2 I1.0 W1.2 W1.0",
    "F0.3 F0.5 I0.5 I0.3 W0.3 F1.3 F1.5 W0.5 I1.5 W1.5 I1.3 W1.3",
)

LAYOUTS = {
    1: [
        small(),
        small(zero=0, model={"dropout": 0.1}),
        small(recompute={"mode": "layer"}, model={"dropout": 0.1}),
        small(recompute={"mode": "attention"}, model=llama),
        small(recompute={"mode": "attention"}, model={**qwen3, **qwen2}),
        small(model=linear),
        small(model={**olmo2, "dropout": 0.1}, recompute={"mode": "layer"}),
        small(model={"window": 3, "pattern": [{"times": 1}, {"window": None}]}, recompute={"mode": "attention"}),
        small(model=mistral, recompute={"mode": "layer"}),
        small(model={**ministral, **apart}),
        small(model={**olmo2, **z_loss}),
    ],
    2: [
        small(tensor=2),
        small(tensor=2, sequence_parallel=True, model={"dropout": 0.2}),
        small(tensor=2, model={"vocabulary": 5, "head": "untied"}),
        small(tensor=2, model=llama, sequence_parallel=True),
        small(pipeline=2),
        small(pipeline=2, schedule="gpipe", model={"dropout": 0.1}),
        small(pipeline=2, chunks=2),
        small(pipeline=2, model={**llama, "layers": 5}),
        small(data=2, zero=0),
        small(pipeline=2, schedule="zb-h1", model=llama),
        small(pipeline=2, chunks=2, schedule="zb-v", recompute={"mode": "layer"}),
        small(data=2, zero=1),
        small(data=2, zero=2, model={"dropout": 0.1}),
        small(data=2, zero=3, recompute={"mode": "layer"}),
        small(context=2, model={"dropout": 0.1}),
        small(context=2, context_attention="ulysses", model=llama),
        small(context=2, model={**llama, **apart}, zero=3),
        small(data=2, model={**apart, "dropout": 0.1}, zero=2),
        small(pipeline=2, schedule="zb-h1", model=apart, zero=2),
        small(pipeline=2, schedule="given", rows=BACKWARDS, batch={"sequences": 4}),
        small(tensor=2, model=qwen2, zero=0),
        small(pipeline=2, schedule="zb-h1", model=qwen2),
        small(tensor=2, model=olmo2),
        small(tensor=2, model={**olmo2, "kv_heads": None}, schedule="zb-h1", recompute={"mode": "attention"}),
        small(tensor=2, model=olmo2, sequence_parallel=True, recompute={"mode": "layer"}),
        small(tensor=2, model=llama31, sequence_parallel=True, recompute={"mode": "layer"}),
        small(context=2, model={**yarn, **apart}),
        small(tensor=2, model=qwen3),
        small(tensor=2, model=qwen3, sequence_parallel=True, recompute={"mode": "layer"}),
        small(tensor=2, schedule="zb-h1", model=qwen3),
        small(context=2, model={**qwen3, **apart}, zero=3),
        small(tensor=2, model=mistral, sequence_parallel=True, recompute={"mode": "attention"}),
        small(tensor=2, schedule="zb-h1", model={"window": 1, "pattern": [{"times": 2}, {"window": None}]}),
        small(pipeline=2, model=qwen2_from),
        small(pipeline=2, chunks=2, model=ministral, zero=2),
        small(context=2, model=ministral),
        small(context=2, model={**qwen2_from, **apart}, recompute={"mode": "layer"}),
        small(context=2, context_attention="ulysses", model=mistral),
        small(context=2, context_attention="ulysses", model={**ministral, **apart}, zero=3),
        small(context=2, context_attention="ulysses", model=qwen3, recompute={"mode": "attention"}),
        small(tensor=2, model={**z_loss, "vocabulary": 5, "head": "untied"}),
        small(pipeline=2, schedule="zb-h1", model={**apart, **z_loss}),
        small(data=2, zero=3, model=odd),
        small(data=2, expert=2, zero=0, model=EXPERTS),
        small(data=2, expert=2, zero=2, schedule="1f1b-split", model=EXPERTS),
        small(context=2, expert=2, zero=3, recompute={"mode": "layer"}, model=EXPERTS),
        small(tensor=2, sequence_parallel=True, recompute={"mode": "layer"}, model=EXPERTS),
    ],
    3: [
        small(tensor=3, model={"heads": 3}),
        small(pipeline=3, model={"layers": 5}, partition={"layers": [1, 3, 1]}),
        small(pipeline=3, model={"layers": 5, "dropout": 0.1}, schedule="1f1b-split", recompute={"mode": "layer"}),
        small(data=3, batch={"sequences": 24, "micro": 4}),
        small(context=3, model={"sequence": 12, "heads": 3}, context_attention="ulysses"),
        small(data=3, zero=3, batch={"sequences": 12}, model={"vocabulary": 5, "head": "untied"}),
        small(pipeline=3, chunks=2, schedule="given", rows=SCATTERED, batch={"sequences": 4}, model={"layers": 7}),
    ],
    4: [
        small(tensor=4, sequence_parallel=True),
        small(tensor=2, pipeline=2, model={"dropout": 0.1}),
        small(tensor=2, data=2, sequence_parallel=True),
        small(tensor=2, data=2, zero=2, model=odd),
        small(pipeline=2, data=2, chunks=2, recompute={"mode": "layer", "every": 2}),
        small(pipeline=2, data=2, chunks=2, schedule="zb-v", model={"dropout": 0.1}),
        small(tensor=2, pipeline=2, schedule="zb-h1", sequence_parallel=True),
        small(pipeline=4, batch={"sequences": 24, "micro": 2}),
        small(tensor=2, pipeline=2, chunks=2, sequence_parallel=True, model=llama),
        small(pipeline=2, data=2, batch={"ramp": {"start": 4, "increment": 4, "samples": 16}}),
        small(tensor=2, context=2, sequence_parallel=True, model=apart),
        small(data=2, context=2, zero=2, model=llama),
        small(pipeline=2, context=2, chunks=2, zero=3, context_attention="ulysses"),
        small(pipeline=2, data=2, chunks=2, schedule="zb-v", zero=3, model={**apart, "layers": 5}),
        small(data=2, context=2, order=("context", "pipeline", "tensor", "data"), model={"dropout": 0.1}),
        small(data=2, context=2, zero=3, order=("tensor", "context", "data", "pipeline"), model=llama),
        small(pipeline=2, data=2, zero=2, schedule="given", rows=BACKWARDS, batch={"sequences": 8}),
        small(data=4, zero=1, shards=2, model={"dropout": 0.1}),
        small(data=4, zero=2, shards=2, order=("data", "pipeline"), model=llama),
        small(data=2, context=2, zero=3, shards=2),
        small(context=4, model={**mistral, "sequence": 16}),
        small(tensor=2, context=2, sequence_parallel=True, model={**ministral, "sequence": 16}),
        small(tensor=2, context=2, sequence_parallel=True, model={**apart, **z_loss}),
        small(pipeline=2, data=2, chunks=2, schedule="zb-v", zero=3, model=z_loss),
        small(data=4, expert=4, zero=3, model=EXPERTS),
        small(data=4, expert=2, zero=2, shards=2, model=EXPERTS),
        small(data=2, context=2, expert=4, zero=1, context_attention="ulysses", model=EXPERTS),
        small(tensor=2, data=2, expert=2, zero=2, sequence_parallel=True, recompute={"mode": "layer"}, model=EXPERTS),
        small(pipeline=2, data=2, expert=2, chunks=2, zero=1, recompute={"mode": "layer"}, model=EXPERTS),
        small(pipeline=2, data=2, expert=2, zero=2, schedule="zb-h1", model=EXPERTS),
        small(pipeline=2, context=2, expert=2, chunks=2, zero=3, schedule="zb-v", model=EXPERTS),
    ],
    8: [
        small(tensor=2, pipeline=2, data=2),
        small(tensor=2, pipeline=2, data=2, chunks=2, sequence_parallel=True, recompute={"mode": "layer"}),
        small(pipeline=4, data=2, model={"head": "untied"}),
        small(tensor=2, data=4, zero=3, shards=2, sequence_parallel=True),
        small(data=4, context=2, expert=4, zero=1, order=("context", "data"), model=EXPERTS),
        small(data=8, expert=2, zero=3, shards=4, model=EXPERTS),
    ],
}


def short(plan: Plan) -> Plan:
    """Return a shorter plan. Without a pipeline, layers and micro-batches other than the first and last are alike."""
    if plan.layout.pipeline > 1:
        return brief(plan)
    model = plan.model.model_copy(update={"layers": 3})
    return brief(plan.model_copy(update={"model": model}), micro_batches=3)


FEW = (1, 3)  # ranks that have few layouts
PLANS = {ranks: [short(plan) for plan in plans] for ranks, plans in LAYOUTS.items()}


@pytest.mark.parametrize("ranks", [n if n in FEW else pytest.param(n, marks=pytest.mark.broad) for n in sorted(PLANS)])
def test_every_layout_computes_what_one_process_computes(ranks: int) -> None:
    """Loss, every gradient, the norm, weights after three clipped updates: fp64, at most 1e-10 relative."""
    certificates = certify(PLANS[ranks], timeout_seconds=280 / len(PLANS[ranks]))
    told = [
        f"{describe(p)}: {c.worst:.1e} ({c.worst_parameter}) {c.error or ''}"
        for p, c in zip(PLANS[ranks], certificates)
    ]
    assert [t for t, c in zip(told, certificates) if not c.passed] == []
    quantities = {"loss", "gradient norm", "gradient", "weights", "validation loss", "coverage"}
    quantities |= {"initial values", "initial distribution", "repeated random draws"}
    for plan, found in zip(PLANS[ranks], certificates):
        assert set(found.by_quantity) == quantities | ({"z_loss"} if plan.model.z_loss else set())


@pytest.mark.broad
def test_it_holds_by_the_network_as_it_does_by_memory() -> None:
    """Ranks of one host read each other's memory; those of several hosts cannot."""
    plans = PLANS[2][1::9] + PLANS[4][::8]
    found = certify(plans, ways=[FAR])
    told = [(describe(p), c.error or c.worst) for p, c in zip(plans, found) if not c.passed]
    assert told == []


@pytest.mark.broad
def test_random_plans_compute_what_one_process_computes() -> None:
    """More of them, and larger ones: `trivium certify --random N`."""
    plans = random_plans(6, 4, seed=1)
    found = certify(plans, ways=WAYS)
    told = [(describe(p), c.way, c.error or c.worst) for p, c in zip(plans, found) if not c.passed]
    assert told == []


def test_at_least_forty_layouts_are_certified() -> None:
    assert len({describe(p) for plans in PLANS.values() for p in plans}) >= 40


def test_one_step_in_three_is_clipped_and_a_ramp_is_seen_to_its_end() -> None:
    """Otherwise the clipped update, or a sample skipped at a rise, would not be compared; and of a factor that all
    steps share Adam leaves nothing."""
    norms = compute_reference(small()).norms
    clipped = [0 < RECIPE.clip(step) < norm for step, norm in enumerate(norms)]
    assert clipped == [True, False, False] and RECIPE.clip(1) > 0 == RECIPE.clip(2)
    assert len({RECIPE.lr(step) for step in range(STEPS)}) == STEPS
    ramped = small(batch={"ramp": {"start": 4, "increment": 4, "samples": 16}})
    assert len(compute_reference(small()).losses) == STEPS < len(compute_reference(ramped).losses)


def test_a_certificate_refuses_a_deviation_and_a_number_that_is_not_finite() -> None:
    fine = Deviation("loss", "", 1e-12)
    assert certificate(small(), [fine]).passed
    for bad in (1e-9, float("nan"), float("inf")):
        refused: Certificate = certificate(small(), [fine, Deviation("gradient", "head.norm.weight", bad)])
        assert not refused.passed
        assert refused.worst_parameter == "gradient: head.norm.weight"
