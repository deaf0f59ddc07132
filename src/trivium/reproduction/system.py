"""Section 2 of the paper: what the model weighs, how it is divided, how long a step takes."""

from trivium.config import build, read_preset
from trivium.cost.activations import input_bytes
from trivium.cost.bucket_sizes import bucket_sizes
from trivium.cost.case import case_of
from trivium.cost.compute import hardware_flops
from trivium.cost.hardware import machine_named
from trivium.cost.memory import memory_of_rank
from trivium.cost.stages import layers_by_stage
from trivium.cost.timeline import simulate, unit_seconds
from trivium.plan.batch import Batch
from trivium.plan.layout import Coordinate
from trivium.plan.parameters import count
from trivium.plan.plan import Plan
from trivium.plan.schedule import make_schedule
from trivium.planner.campaign import campaign
from trivium.planner.published import Published, full_batch, mt_nlg_plan, published_runs
from trivium.reproduction.figure import Figure

PRESET = "mt-nlg-530b"
SHOW = f"trivium plan show --preset {PRESET}"
ESTIMATE = f"trivium plan estimate --preset {PRESET} --tokens 270B"
MEMORY_LAWS = "pytest tests/cost/memory_test.py"
TOKENS = 270 * 10**9  # trained on


def system_figures() -> list[Figure]:
    """Every figure of section 2 that follows from a plan, a schedule or the cost model."""
    return [*_size(), *_memory(), *_pipeline(), *_throughput()]


def _size() -> list[Figure]:
    plan, selene = mt_nlg_plan(), machine_named("selene")
    layout = plan.layout
    return [
        Figure("2", "parameters, billions", "530", count(plan.model) / 1e9, command=SHOW),
        Figure(
            "2",
            "GPUs of one replica: tensor x pipeline",
            "280",
            layout.tensor * layout.pipeline,
            command=SHOW,
        ),
        Figure("2", "layers of a pipeline stage", "3", max(map(len, layers_by_stage(plan))), command=SHOW),
        Figure(
            "2",
            "peak of the cluster, 16 bits",
            "1.4",
            selene.peak.bf16 * selene.devices / 1e18,
            "EFLOP/s",
            SHOW,
        ),
    ]


def _memory() -> list[Figure]:
    """With Adam in mixed precision, nothing sharded; the activations between layers alone, all else recomputed."""
    plan = mt_nlg_plan().model_copy(update={"zero": 0})
    states = [
        memory_of_rank(plan, Coordinate(pipeline, 0, 0), counting="paper").state
        for pipeline in range(plan.layout.pipeline)
    ]
    of_one = states[1] / sum(bucket_sizes(plan, 1))  # the second rank holds layers only
    whole = plan.layout.tensor * sum(states)
    micro_batch = plan.model.layers * float(input_bytes(case_of(plan)))
    batch = plan.batch.sequences // plan.batch.micro * micro_batch
    ours = "a rank of ours holds 18: its gradients are fp32 only"
    return [
        Figure("2", "state of a parameter", "20", of_one, "bytes", MEMORY_LAWS, note=ours),
        Figure("2", "state of the model", "10", whole / 1e12, "TB", MEMORY_LAWS, over=True),
        Figure(
            "2", "activations kept between layers, batch of 1,920", "16.9", batch / 1e12, "TB", MEMORY_LAWS
        ),
        Figure("2", "the same of one of 1,920 micro-batches", "8.8", micro_batch / 1e9, "GB", MEMORY_LAWS),
    ]


def _pipeline() -> list[Figure]:
    """Work over time of 1F1B's own table, backwards twice a forward; of 35 stages, as the paper does not say of how
    many its figures are."""
    stages = mt_nlg_plan().layout.pipeline
    return [
        Figure(
            "2",
            f"efficiency of a pipeline, {many} x as many micro-batches as stages",
            printed,
            100 * efficiency(stages, many * stages),
            "%",
            "trivium plan show --set plan.layout.pipeline=… --set plan.batch.sequences=…",
            note=f"ours of {stages} stages; the paper does not say of how many",
        )
        for many, printed in ((4, "81"), (8, "90"))
    ]


def efficiency(stages: int, micro_batches: int) -> float:
    """Busy over all time of 1F1B with free transfers, by its own table: m / (m + p - 1)."""
    table = make_schedule("1f1b", pipeline=stages, micro_batches=micro_batches)
    return 1 / (1 + simulate(table, unit_seconds).bubble_fraction)


def _throughput() -> list[Figure]:
    runs = zip(published_runs(), ("126", "121", "113"), strict=True)
    return [*(figure for run, teraflops in runs for figure in _run(run, teraflops)), _device_hours()]


def _run(run: Published, teraflops: str) -> tuple[Figure, Figure]:
    ranks = run.plan.layout.world_size
    nodes = ranks // machine_named(run.machine).devices_per_node
    work = hardware_flops(run.plan).total / run.seconds / ranks / 1e12
    with_theirs = f"with the paper's software ({run.stack})"
    counted = "FLOPs that we count, recomputed ones too, over the paper's seconds"
    show = SHOW if nodes == 280 else f"{SHOW} --set plan.layout.data={nodes // 35} --set plan.batch.ramp=null"
    step, gpu = f"a step on {nodes} nodes", f"work of a GPU on {nodes} nodes"
    return (
        Figure(
            "2.4", step, str(run.seconds), run.predicted_seconds, "s", show, "predicted", note=with_theirs
        ),
        Figure("2.4", gpu, teraflops, work, "TFLOP/s", show, note=counted),
    )


def _device_hours() -> Figure:
    """Of the whole training with its ramp, with the paper's software."""
    run, plan = published_runs()[0], build(Plan, read_preset(PRESET)["plan"])
    assert full_batch(plan) == run.plan, f"preset {PRESET} is not the plan of {run.source}"

    def seconds(sequences: int) -> float:
        batch = Batch(sequences=sequences, micro=plan.batch.micro)
        return run._replace(plan=plan.model_copy(update={"batch": batch})).predicted_seconds

    hours = campaign(plan, TOKENS, seconds, plan.layout.world_size).device_hours
    note = "DeepSpeed's post of December 2021; ours without failures, saving and validation"
    what = "GPU-hours for 270 billion tokens, millions"
    return Figure("2.4", what, "3", hours / 1e6, "", ESTIMATE, "predicted", over=True, note=note)
