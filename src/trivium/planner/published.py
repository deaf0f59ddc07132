"""Published runs that predictions are compared with."""

from dataclasses import replace
from typing import NamedTuple

from trivium.cost.case import case_of
from trivium.cost.hardware import machine_named
from trivium.cost.stack import stack_named
from trivium.cost.step_time import SCHEDULES, StepSeconds, step
from trivium.plan.batch import Batch
from trivium.plan.experts import Experts
from trivium.plan.latent import Latent
from trivium.plan.layers.form import Run
from trivium.plan.layout import Layout
from trivium.plan.model_shape import ModelShape
from trivium.plan.plan import Plan
from trivium.plan.precision import Precision
from trivium.plan.recompute import Recompute


class Published(NamedTuple):
    """Measured seconds per step of a plan on a named machine. source: publication. stack: name of the software.
    scores_kept: 1 if its attention kept its scores, else 0."""

    plan: Plan
    machine: str
    seconds: float
    source: str
    stack: str
    scores_kept: int = 1

    @property
    def predicted(self) -> StepSeconds:
        """Parts of a step predicted for that software."""
        case, schedule = replace(case_of(self.plan), scores_kept=self.scores_kept), SCHEDULES[self.plan.schedule]
        return step(case, machine_named(self.machine), stack_named(self.stack), schedule=schedule).parts

    @property
    def predicted_seconds(self) -> float:
        """Seconds of a step predicted for that software."""
        return float(self.predicted.seconds)


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


def deepseek_v3_plan() -> Plan:
    """DeepSeek-V3 on 256 nodes of eight H800 (arXiv 2412.19437, sections 3 and 4.2), in bf16 instead of FP8.

    ZB-V stands for DualPipe, whose ranks have two stages, too. An even load is assumed.
    """
    experts = Experts(
        count=256,
        chosen=8,
        columns=2048,
        scores="sigmoid",
        scale=2.5,
        groups=8,
        chosen_groups=4,
        group_score="two_largest",
        shared=2048,
        bias_rate=0.001,
        imbalance=1.0,
    )
    model = ModelShape(
        layers=61,
        hidden=7168,
        heads=128,
        attention="latent",
        latent=Latent(kv_rank=512, query_rank=1536, plain_columns=128, rotated_columns=64, value_columns=128),
        feed_forward="experts",
        experts=experts,
        first=(Run.model_validate({"times": 3, "feed_forward": "gated"}),),
        ffn=18432,
        norm="rms_norm",
        positions="rotary",
        bias="none",
        head="untied",
        vocabulary=129280,
        sequence=4096,
    )
    return Plan(
        model=model,
        layout=Layout(pipeline=16, data=128, expert=64, chunks=2),
        batch=Batch(sequences=15360, micro=1),
        schedule="zb-v",
        precision=Precision(weights="bf16"),
        zero=1,
    )


def deepseek_v3_run() -> Published:
    """Return DeepSeek-V3's training: 180 thousand device-hours for 10^12 tokens (arXiv 2412.19437, table 1)."""
    plan = deepseek_v3_plan()
    tokens = plan.tokens(plan.batch.sequences)
    seconds = 180e3 * 3600 * tokens / 1e12 / plan.layout.world_size
    return Published(plan, "deepseek-h800", seconds, "DeepSeek-V3, table 1", "hai-llm", scores_kept=0)


def published_for(plan: Plan, machine: str) -> Published | None:
    """Return the published run of a plan, or None. A batch ramp is ignored, because published times are for full
    batches."""
    full = full_batch(plan)
    return next((run for run in published_runs() if run.plan == full and run.machine == machine), None)


def full_batch(plan: Plan) -> Plan:
    """Return the plan without its batch ramp, as it is priced."""
    return plan.model_copy(update={"batch": plan.batch.model_copy(update={"ramp": None})})
