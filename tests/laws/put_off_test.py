"""The factors of weight gradients that wait for an action of their own take the bytes that were predicted."""

from dataclasses import replace

import pytest
import torch

from plans import EXPERTS, small
from ranks import on_ranks
from trivium.certify.layouts import ROTARY
from trivium.certify.reference import random_rows
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.cost.activations import put_off_bytes
from trivium.cost.case import case_of
from trivium.cost.memory import memory_of_rank
from trivium.kernels.arithmetic import Arithmetic
from trivium.parallel.sharding.gradient_sum import GradientSum
from trivium.parallel.sharding.zero import AdamRule
from trivium.parallel.tensor.weight_gradients import WeightGradients
from trivium.plan.layout import Coordinate
from trivium.plan.plan import Plan
from trivium.plan.schedule import Op
from trivium.training.trainer import Samples, Trainer

LLAMA = {**ROTARY, "heads": 4, "kv_heads": 2, "head": "untied"}
QWEN3 = {**LLAMA, "bias": "qkv", "qk_norm": "each_head", "head_width": 8}
PLANS = {
    1: [
        small(schedule="zb-h1"),
        small(schedule="1f1b-split", model=EXPERTS, precision={"weights": "bf16"}),
        small(schedule="1f1b-split", model=LLAMA, precision={"weights": "bf16"}),
    ],
    2: [
        small(pipeline=2, schedule="zb-h1", recompute={"mode": "layer"}),
        small(pipeline=2, schedule="1f1b-split", recompute={"mode": "attention"}),
        small(tensor=2, schedule="zb-h1", model=QWEN3),
        small(tensor=2, schedule="zb-h1", sequence_parallel=True, model=LLAMA),
        small(tensor=2, schedule="zb-h1", sequence_parallel=True, model=EXPERTS),
        small(pipeline=2, chunks=2, schedule="zb-v", recompute={"mode": "layer"}, model={"dropout": 0.1}),
        small(pipeline=2, chunks=2, schedule="zb-turns", recompute={"mode": "layer"}),
    ],
    4: [
        small(pipeline=4, schedule="zb-h1", recompute={"mode": "layer"}, batch={"sequences": 12}),
        small(tensor=2, pipeline=2, schedule="1f1b-split", sequence_parallel=True),
    ],
}


def predicted(plan: Plan, pipeline: int) -> int:
    """The most that waits at once on a rank, walking its row."""
    case = case_of(plan)
    along = case.tensor if plan.sequence_parallel else 1
    head = case.positions * (case.vocabulary / case.tensor + case.hidden / along) * case.weight_bytes
    waiting = most = 0.0
    for action in plan.schedule_table()[pipeline]:
        layers, last = len(plan.layers_of(action.stage)), action.stage == plan.last_stage
        sign = (action.op is Op.INPUT_GRADIENT) - (action.op is Op.WEIGHT_GRADIENT)
        waiting += sign * (layers * put_off_bytes(case) + last * head)
        most = max(most, waiting)
    return round(most)


def check(place: Place, plans: list[Plan]) -> None:
    for plan in plans:
        mesh = Mesh.connect(plan.layout, place.rank, place.world_size)
        trainer = Trainer(plan, mesh, seed=1, rule=AdamRule())
        put_off = [stage.weight_gradients for stage in trainer.stages.values()]
        seen = [0]

        def watched(each, finish):
            def finishing(*arguments):
                seen[0] = max(seen[0], sum(w.bytes for w in put_off))
                return finish(*arguments)

            each.finish = finishing

        for each in put_off:
            watched(each, each.finish)
        trainer.train_step(0, Samples(0, plan.batch.sequences, random_rows(plan)), 1e-3)
        assert seen[0] == predicted(plan, mesh.at.pipeline), (place.rank, plan)
        assert sum(w.bytes for w in put_off) == 0


@pytest.mark.parametrize("ranks", PLANS)
def test_what_waits_takes_the_bytes_of_its_factors(ranks: int) -> None:
    on_ranks(ranks, check, PLANS[ranks])


def test_an_estimate_adds_them_where_activations_are_recomputed_and_nowhere_else() -> None:
    """Kept activations count until the weight gradient; recomputed ones were gone before its factors were there."""

    def put_off(**over: object) -> int:
        held = memory_of_rank(small(pipeline=4, batch={"sequences": 16}, **over), Coordinate(3, 0, 0))
        assert held.total - replace(held, put_off=0).total == held.put_off
        return held.put_off

    again = {"mode": "layer"}
    assert put_off(schedule="1f1b", recompute=again) == 0
    one = put_off(schedule="1f1b-split", recompute=again)
    assert one > 0 and put_off(schedule="zb-h1", recompute=again) == 4 * one
    assert put_off(schedule="zb-h1") == 0


def test_what_was_put_off_is_added_without_a_graph() -> None:
    """The addend may require a gradient; the sum, which is reduced in place, may not."""
    later, weight = WeightGradients(), torch.nn.Parameter(torch.zeros(3, 2))
    later.separate = True
    grad = torch.ones(5, 3, requires_grad=True)
    with later.put_off("key"):
        later.take(weight, grad, torch.ones(5, 2), Arithmetic())
    total = GradientSum(6, torch.float32, torch.device("cpu"))

    class Sums:
        def takes(self, weight: torch.nn.Parameter) -> bool:
            return True

        def add(
            self,
            weight: torch.nn.Parameter,
            grad: torch.Tensor,
            x: torch.Tensor,
            arithmetic: Arithmetic,
            matrix: int | None,
        ) -> None:
            total.add_product(0, grad.shape[1] * x.shape[1], grad, x, arithmetic)

        def added(self, weight: torch.nn.Parameter) -> None:
            raise AssertionError("it was put off")

    later.sums = Sums()
    later.finish("key", lambda parameter: None)
    assert torch.equal(total.whole(), torch.full((6,), 5.0)) and not total.whole().requires_grad
