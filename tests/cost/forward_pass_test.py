"""Laws of forward-only passes: those that score a batch before it is trained on."""

from dataclasses import replace

import numpy as np
import pytest

from cost.plans import mt_nlg, small
from trivium.cost.case import case_of, take
from trivium.cost.compute import hardware_flops
from trivium.cost.constants import prior_constants
from trivium.cost.estimate import Durations, estimate, forward_pass
from trivium.cost.forward_pass import forward_pass_seconds
from trivium.cost.hardware import machine_named, this_machine
from trivium.cost.prices import prices
from trivium.cost.setting import setting
from trivium.cost.stack import own_stack, stack_named
from trivium.cost.timeline import simulate
from trivium.objectives.objective import NEXT_TOKEN
from trivium.objectives.preferences.losses import PREFERENCES
from trivium.plan.schedule import Op

SELENE = machine_named("selene")
DPO = PREFERENCES["dpo"]()


def simulated(plan):
    durations = Durations(plan, SELENE, own_stack(plan, SELENE))
    table = tuple(tuple(a for a in row if a.op is Op.FORWARD) for row in plan.schedule_table())
    return durations.stack.factor * simulate(table, durations.action, durations.transfer).duration


@pytest.mark.parametrize(
    ("schedule", "pipeline", "chunks", "off"),
    [
        ("1f1b", 1, 1, 1e-9),
        ("1f1b", 7, 1, 1e-9),
        ("gpipe", 5, 1, 1e-9),
        ("interleaved", 5, 3, 0.01),
        ("zb-v", 5, 2, 0.02),
    ],
)
def test_closed_form_equals_the_simulation_of_the_schedules_forwards(schedule, pipeline, chunks, off):
    plan = mt_nlg(layout={"pipeline": pipeline, "chunks": chunks}, schedule=schedule)
    assert forward_pass(plan, SELENE) == pytest.approx(simulated(plan), rel=off)


@pytest.mark.parametrize("method", ["simulated", "closed form"])
@pytest.mark.parametrize("machine", [SELENE, this_machine(2, 8 << 30)])
def test_a_preference_pays_one_pass_for_each_step(machine, method):
    plan = small()
    plain, scored = (estimate(plan, machine, method=method, forward_passes=o.forward_passes) for o in (NEXT_TOKEN, DPO))
    assert plain.parts.forward_passes == 0
    assert scored.parts.forward_passes == pytest.approx(forward_pass(plan, machine))
    assert scored.seconds == pytest.approx(plain.seconds + forward_pass(plan, machine))


def test_a_pass_costs_what_its_share_of_the_flops_costs():
    plan = mt_nlg(layout={"pipeline": 1}, model={"layers": 8}, recompute={"mode": "layer"})
    price, flops = estimate(plan, SELENE), hardware_flops(plan)
    assert forward_pass(plan, SELENE) / price.parts.compute == pytest.approx(flops.forward / flops.total, rel=0.25)


def test_plans_are_priced_alone_as_together_and_cost_less_without_a_head():
    case = replace(case_of(mt_nlg()), pipeline=np.array([1, 5, 35]), micro_batches=np.array([1, 7, 64]))

    def seconds(case, **how):
        at = setting(case, SELENE, stack_named("megatron-2022"), prior_constants())
        return np.asarray(forward_pass_seconds(at, prices(at), **how))

    together = seconds(case)
    assert together == pytest.approx([float(seconds(take(case, n))) for n in range(3)])
    assert (seconds(case, with_head=False) < together).all()
