"""Memory and seconds of experts: figures of a rank against its buckets and against one expert alone, and laws."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from cost.counted_memory import counted
from cost.plans import small
from plans import EXPERTS as SETTINGS
from plans import small as reduced
from trivium.certify.layouts import ROTARY
from trivium.config import merge
from trivium.cost.activations import embedding_bytes, head_bytes, layer_bytes, logits_bytes
from trivium.cost.case import NONE, case_of
from trivium.cost.compute import model_flops
from trivium.cost.constants import shipped_constants
from trivium.cost.estimate import Durations, estimate, strides_of
from trivium.cost.forward_pass import forward_pass_seconds
from trivium.cost.hardware import machine_named
from trivium.cost.memory import memory_of_cases, memory_of_rank, worst_rank
from trivium.cost.prices import expert_seconds, prices
from trivium.cost.rank_parameters import elements_of_rank, rank_parameters
from trivium.cost.setting import setting
from trivium.cost.stack import own_stack
from trivium.cost.stages import layers_by_stage
from trivium.cost.step_time import step
from trivium.plan.buckets import bucket_table
from trivium.plan.layers.part import Place
from trivium.plan.layout import Coordinate
from trivium.plan.plan import Plan

H100 = machine_named("dgx-h100")
EXPERTS = {"count": 8, "chosen": 2, "columns": 64, "imbalance": 1.0}
MODEL = {**ROTARY, "ffn": 128, "kv_heads": 2, "feed_forward": "experts", "experts": EXPERTS}
LAYOUTS = [
    {"tensor": 1, "pipeline": 1, "data": 8, "expert": 8},
    {"tensor": 2, "pipeline": 2, "data": 4, "expert": 4},
    {"tensor": 2, "pipeline": 2, "data": 2, "context": 2, "expert": 2},
    {"tensor": 1, "pipeline": 2, "data": 8, "shards": 4, "expert": 2},
]


def routed(**over) -> Plan:
    """A small plan with experts."""
    return small(**merge({"model": MODEL}, over))


@pytest.mark.parametrize("zero", range(1, 4))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_gradients_and_state_are_those_of_the_ranks_buckets(layout, zero):
    plan = routed(layout=layout, zero=zero)
    at, layout = Coordinate(0, 0, 0), plan.layout
    held = memory_of_rank(plan, at)
    rows = bucket_table(plan, 0)
    experts = sum(row.padded for row in rows if row.by_expert)
    common = sum(row.padded for row in rows if not row.by_expert)
    assert experts > 0

    def of_rank(stage: int) -> int:
        """Elements of a rank where ZeRO shards from this stage on."""
        whole = zero < stage
        return common // (1 if whole else layout.sharers) + experts // (1 if whole else layout.expert_sharers)

    assert held.weights == 4 * of_rank(3)
    assert held.gradients == 4 * of_rank(2)
    assert held.moments == 8 * of_rank(1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_ranks_together_hold_every_parameter_as_often_as_there_are_replicas_of_it(layout):
    plan = routed(layout=layout)
    layout = plan.layout
    every = [item for rank in range(layout.pipeline) for row in bucket_table(plan, rank) for item in row.items]
    for by_expert, replicas in ((True, layout.expert_replicas), (False, layout.replicas)):
        mine = [item for item in every if item.parameter.by_expert == by_expert]
        held = sum(item.elements * (layout.tensor if item.parameter.split is not None else 1) for item in mine)
        copies = layout.replicas // replicas
        assert held * copies == sum(item.parameter.elements for item in mine if not item.parameter.padded) + sum(
            item.elements * layout.tensor for item in mine if item.parameter.padded
        )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("zero", [1, 3])
def test_a_case_counts_what_the_plans_buckets_hold_but_for_padding(layout, zero):
    plan = routed(layout=layout, zero=zero, precision={"weights": "bf16"})
    case = case_of(plan)
    stages = plan.stages_of(0)
    layers = sum(len(layers_by_stage(plan)[stage]) for stage in stages)
    last = int(plan.last_stage in stages)
    buckets = len(bucket_table(plan, 0)) * 8 * plan.layout.replicas
    assert 0 <= elements_of_rank(plan, 0).held - rank_parameters(case, layers, 1, last) <= buckets
    found, (_, expected) = memory_of_cases(case, plan.schedule), worst_rank(plan)
    for name in ("activations", "recomputed", "loss", "transport"):
        assert getattr(found, name)[0] == pytest.approx(getattr(expected, name)), name
    assert found.total[0] == pytest.approx(expected.total, abs=18 * buckets)


def test_model_flops_count_the_chosen_experts_and_the_router():
    dense = small(model={**ROTARY, "ffn": 64, "kv_heads": 2, "feed_forward": "gated"}).model
    model = routed().model
    of_experts = model_flops(model, 1).forward - model_flops(dense, 1).forward
    each, router = 2 * 3 * 64 * 64, 2 * 64 * 8
    assert of_experts == model.layers * model.sequence * ((2 - 1) * each + router)
    wider = model.model_copy(update={"experts": model.experts.model_copy(update={"imbalance": 3.0, "shared": 64})})
    assert model_flops(wider, 1).forward - model_flops(model, 1).forward == model.layers * model.sequence * each


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_more_uneven_load_is_never_cheaper_and_has_a_limit(layout):
    plans = [routed(layout=layout, model={"experts": {"imbalance": n}}) for n in (1.0, 1.25, 2.0, 3.0, 100.0)]
    seconds = [estimate(plan, H100).seconds for plan in plans]
    held = [worst_rank(plan)[1].total for plan in plans]
    assert held == sorted(held) and held[0] < held[1]
    assert all(more >= less * (1 - 1e-12) for less, more in itertools.pairwise(seconds))
    mlp, ranks = plans[-1].model.each_layer[0].mlp, plans[-1].layout.expert
    own = EXPERTS["count"] // ranks  # a token visits at most as many experts of one rank
    assert mlp.visits(Place(expert=ranks)) == min(2, own) * ranks


@pytest.mark.parametrize("zero", [1, 3])
def test_biases_of_the_router_are_held_in_the_dtype_of_masters(zero):
    plans = [
        routed(model={"experts": experts}, precision={"weights": "bf16"}, layout={"expert": 2}, zero=zero)
        for experts in ({}, {"bias_rate": 0.001})
    ]
    more, layers, sharers = 8 if zero < 3 else 8 // 2, len(layers_by_stage(plans[0])[0]), plans[0].layout.sharers
    without, with_biases = (memory_of_rank(plan, Coordinate(0, 0, 0)) for plan in plans)
    rows = [row for row in bucket_table(plans[1], 0) if row.wide]
    assert sum(len(row.items) for row in rows) == layers
    held = sum(row.padded for row in rows) // (1 if zero < 3 else sharers)
    assert with_biases.weights - without.weights == 4 * held >= 4 * layers * more
    assert with_biases.optimizer == without.optimizer and with_biases.gradients == without.gradients
    of_case = [float(memory_of_cases(case_of(plan), plan.schedule).weights[0]) for plan in plans]
    assert of_case[1] - of_case[0] == pytest.approx(4 * layers * 8 / (1 if zero < 3 else sharers))


def test_without_expert_ranks_no_load_is_uneven():
    plans = [routed(model={"experts": {"imbalance": n}}) for n in (1.0, 3.0)]
    assert len({estimate(plan, H100).seconds for plan in plans}) == 1
    assert len({worst_rank(plan)[1].total for plan in plans}) == 1


def test_capacity_bounds_what_an_expert_rank_takes():
    mlp = routed(model={"experts": {"imbalance": 3.0, "capacity": 1.5}}).model.each_layer[0].mlp
    assert mlp.visits(Place(expert=4)) == 1.5 * 2


def wide(expert: int, experts=None, **layout) -> Plan:
    """A plan whose messages are long: a micro-batch of 4,096 tokens of 4,096 numbers."""
    return routed(
        model={"hidden": 4096, "heads": 32, "kv_heads": 8, "sequence": 4096, "experts": experts or {}},
        layout={"tensor": 1, "pipeline": 1, "data": 8, "expert": expert, **layout},
        batch={"sequences": 64, "micro": 1},
    )


def exchange(plan: Plan) -> tuple[float, float]:
    at = Durations(plan, H100, own_stack(plan, H100)).at
    forward, backward, again = expert_seconds(at)
    assert again <= forward
    return float(forward), float(backward)


def test_tokens_go_out_and_back_in_each_pass():
    rows = 4096 * 2 * 4096 * 4 * 7 / 8  # tokens, chosen experts, hidden, bytes, share that leaves a rank of eight
    fabric = H100.fabric_link.effective_bandwidth * shipped_constants().fabric
    for plan, bandwidth in ((wide(8), H100.node_link.effective_bandwidth), (wide(8, tensor=8), fabric)):
        forward, backward = exchange(plan)
        assert backward == pytest.approx(2 * rows / bandwidth, rel=0.25)  # and the latencies
        assert 0 < forward - backward < 0.1 * backward  # the numbers of tokens go first
    assert exchange(wide(1)) == (0.0, 0.0)


def test_groups_of_experts_lie_where_the_order_of_axes_puts_them():
    """Replicas that are neighbours share a node only where no other axis is between them."""
    near = wide(4, pipeline=2)
    far = wide(4, pipeline=2, order=["data", "context", "pipeline", "tensor"])
    strides = [strides_of(plan.layout, H100) for plan in (near, far)]
    assert [each.expert for each in strides] == [1, 2]
    assert [each.expert_sharers for each in strides] == [4, 8]


def test_the_shared_expert_is_computed_while_tokens_are_on_their_way():
    alone, beside = exchange(wide(8)), exchange(wide(8, experts={"shared": 4096}))
    assert all(less < more for less, more in zip(beside, alone, strict=True))


def test_a_more_uneven_load_takes_longer():
    seconds = [estimate(wide(8, experts={"imbalance": n}), H100).seconds for n in (1.0, 1.25, 2.0)]
    assert seconds[0] < seconds[1] < seconds[2]


def test_many_plans_at_once_cost_what_each_costs_alone():
    plans = [routed(layout=layout, zero=zero) for layout in LAYOUTS for zero in (1, 2, 3)]
    cases = [case_of(plan) for plan in plans]
    fields = [name for name, value in vars(cases[0]).items() if not isinstance(value, tuple)]
    together = replace(cases[0], **{name: np.array([getattr(case, name) for case in cases]) for name in fields})
    found = step(together, H100).parts.seconds
    alone = [float(step(case, H100).parts.seconds) for case in cases]
    assert found.tolist() == pytest.approx(alone, rel=1e-12)
    held = memory_of_cases(together, "1f1b").total
    assert held.tolist() == [memory_of_cases(case, "1f1b").total[0] for case in cases]


def test_gradients_of_experts_are_reduced_by_the_ranks_that_hold_them():
    """With as many expert ranks as replicas nothing of the experts is reduced."""
    many = {"model": {"experts": {"columns": 4096}}, "layout": {"tensor": 1, "pipeline": 1, "data": 8}}
    alone, together = (
        step(case_of(routed(**merge(many, {"layout": {"expert": n}}))), H100).parts.data_collectives for n in (8, 1)
    )
    assert float(alone) < 0.2 * float(together)


@pytest.mark.parametrize("method", ["simulated", "closed form"])
def test_a_pass_that_counts_loads_before_a_step_costs_a_forward_without_the_head(method):
    """It is run for the loads of a whole batch of several micro-batches, and for those of layers in other stages."""
    plain, scope = {"balance_loss": 0.01}, {"balance_loss": 0.01, "balance_scope": "global_batch"}
    once = {"layout": {"tensor": 1, "pipeline": 1, "data": 4}, "batch": {"sequences": 4, "micro": 1}}
    often, stages = once | {"batch": {"sequences": 16, "micro": 1}}, {"layout": {"tensor": 1, "pipeline": 2, "data": 4}}
    pooled = plain | {"balance_convention": "transformers"}
    cases = [(plain, often, 0), (scope, once, 0), (scope, often, 1), (pooled, once, 0), (pooled, once | stages, 1)]
    for experts, over, passes in cases:
        plan = routed(model={"experts": experts}, **over)
        at = setting(case_of(plan), H100, own_stack(plan, H100), shipped_constants())
        expected = passes * forward_pass_seconds(at, prices(at), with_head=False)
        found = estimate(plan, H100, method=method).parts
        assert found.forward_passes == pytest.approx(float(expected)) and (found.forward_passes > 0) == passes
        without = estimate(routed(model={"experts": experts | {"balance_loss": 0.0}}, **over), H100, method=method)
        assert found.seconds == pytest.approx(without.seconds + found.forward_passes)


@pytest.mark.parametrize("weights", ["fp32", "bf16", "fp64"])
@pytest.mark.parametrize("layout", [{}, {"tensor": 2}, {"data": 2, "expert": 2}, {"tensor": 2, "data": 2, "expert": 2}])
@pytest.mark.parametrize(
    "experts",
    [
        {"balance_loss": 0.1},
        {"shared": 8, "router_z_loss": 0.1},
        {"shared": 8, "shared_gate": True, "normalized": False, "scores": "sigmoid"},
    ],
)
def test_experts_keep_what_is_counted(experts, layout, weights):
    """All ranks have the same tokens here, so that as many rows arrive as leave."""
    model = merge(SETTINGS, {"experts": {"imbalance": 1.0, **experts}})
    for parallel in (False, True):
        plan = reduced(model=model, **layout, sequence_parallel=parallel, precision={"weights": weights})
        layers = sum(layer_bytes(case_of(plan), NONE) for _ in layers_by_stage(plan)[0])
        case, counted_bytes = case_of(plan), counted(plan, 0, "with memory").bytes
        assert counted_bytes == embedding_bytes(case) + layers + head_bytes(case) + logits_bytes(case)
