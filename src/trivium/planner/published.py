"""Published runs that predictions are compared with."""

from dataclasses import replace
from typing import NamedTuple

from trivium.cost.case import case_of
from trivium.cost.hardware import machine_named
from trivium.cost.stack import stack_named
from trivium.cost.step_time import step_seconds
from trivium.plan.batch import Batch
from trivium.plan.layout import Layout
from trivium.plan.model_shape import ModelShape
from trivium.plan.plan import Plan
from trivium.plan.precision import Precision
from trivium.plan.recompute import Recompute


class Published(NamedTuple):
    """Measured seconds per step of a plan on a named machine. source: publication. stack: name of the software."""

    plan: Plan
    machine: str
    seconds: float
    source: str
    stack: str

    @property
    def predicted_seconds(self) -> float:
        """Seconds predicted for that software, whose attention kept its scores."""
        case = replace(case_of(self.plan), scores_kept=1)
        return float(step_seconds(case, machine_named(self.machine), stack_named(self.stack)).seconds)


def mt_nlg_plan(data: int = 8) -> Plan:
    """MT-NLG 530B on 35 x `data` DGX A100 (arXiv 2201.11990, section 2).

    The paper does not state the micro-batch of one sequence, GPT-2's vocabulary padded to 51,200, and the optimizer
    state sharded over data ranks; these are assumptions from the software of that time.
    """
    return Plan(
        model=ModelShape(layers=105, hidden=20480, heads=128, vocabulary=50257, sequence=2048),
        layout=Layout(tensor=8, pipeline=35, data=data),
        batch=Batch(sequences=1920, micro=1),
        schedule="1f1b",
        precision=Precision(weights="bf16"),
        recompute=Recompute(mode="layer"),
        zero=1,
    )


def published_runs() -> tuple[Published, ...]:
    """Return the runs of MT-NLG section 2.4 on 280, 350 and 420 nodes."""
    return tuple(
        Published(mt_nlg_plan(data), "selene", seconds, "MT-NLG, section 2.4", "megatron-deepspeed")
        for data, seconds in ((8, 60.1), (10, 50.2), (12, 44.4))
    )


def published_for(plan: Plan, machine: str) -> Published | None:
    """Return the published run of a plan, or None. A batch ramp is ignored, because published times are for full
    batches."""
    full = full_batch(plan)
    return next((run for run in published_runs() if run.plan == full and run.machine == machine), None)


def full_batch(plan: Plan) -> Plan:
    """Return the plan without its batch ramp, as it is priced."""
    return plan.model_copy(update={"batch": plan.batch.model_copy(update={"ramp": None})})
