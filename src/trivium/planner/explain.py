"""A plan and its price as text for people, and as data for the plan stage."""

from typing import Any

from trivium.config import to_tree
from trivium.cost.compute import hardware_flops, model_flops
from trivium.cost.estimate import Estimate, estimate, planned_timeline
from trivium.cost.hardware import Machine, machine_named, this_machine
from trivium.cost.memory import predicted_memory
from trivium.cost.stages import layers_by_stage
from trivium.plan.layout import Layout
from trivium.plan.parameters import count
from trivium.plan.plan import Plan
from trivium.plan.schedule import make_schedule, render
from trivium.planner.published import mt_nlg_plan, published_for
from trivium.planner.search import Ranked, choose
from trivium.units import format_bytes, format_count, format_flops, format_seconds

FORMAT = "trivium-plan-1"
WIDTH = 100  # columns of a rendered schedule row
FEW_RANKS = 4  # rows of a rendered schedule
RANKING = 10  # plans of the search that are stored and printed


def plan_stage(plan: Plan, ranks: int, cores: int, memory_bytes: int) -> dict[str, Any]:
    """The plan stage's result: this run's plan, what a search finds here, and MT-NLG 530B, as data and text."""
    here = this_machine(cores, memory_bytes)
    ranking = choose(plan.model, plan.batch, here, ranks=ranks, precision=plan.precision)
    selene, paper = machine_named("selene"), mt_nlg_plan()
    sections = {
        "here": ["This run", *plan_lines(plan, here)],
        "ranking": ranking_lines(plan, ranking),
        "mt_nlg": ["MT-NLG 530B on 280 DGX A100", *plan_lines(paper, selene)],
    }
    published = published_for(paper, selene.name)
    return {
        "format": FORMAT,
        **priced_tree(plan, here),
        "memory": [
            {"rank": rank, "coordinate": dict(plan.layout.coordinate(rank)._asdict()), "predicted": held}
            for rank, held in predicted_memory(plan).items()
        ],
        **_spans(plan, here),
        "ranking": [_ranked_tree(ranked) for ranked in ranking[:RANKING]],
        "mt_nlg": {
            **priced_tree(paper, selene),
            "published_seconds": published.seconds if published else None,
            "source": published.source if published else None,
            "lines": sections["mt_nlg"],
        },
        "lines": [line for lines in sections.values() for line in (*lines, "")][:-1],
    }


def priced_tree(plan: Plan, machine: Machine) -> dict[str, Any]:
    """A plan, its machine and its price as plain data."""
    return {
        "plan": to_tree(plan),
        "machine": to_tree(machine),
        "parameters": count(plan.model),
        "estimate": estimate(plan, machine).tree(),
    }


def plan_lines(plan: Plan, machine: Machine) -> list[str]:
    """What the plan is and what it costs. Raises ConfigError when it is not legal."""
    price = estimate(plan.checked(), machine)
    return [
        *_choice_lines(plan, machine),
        *_schedule_lines(plan),
        *_place_lines(plan, machine),
        *_memory_lines(price),
        *_seconds_lines(plan, machine, price),
        *(f"near miss     {line}" for line in near_misses(plan)),
    ]


def ranking_lines(plan: Plan, ranking: tuple[Ranked, ...]) -> list[str]:
    """The best layouts a search found, and where the run's own plan stands."""
    lines = [f"What a search over {len(ranking)} legal plans finds for this machine: the best five layouts"]
    best: dict[Layout, Ranked] = {}
    for ranked in ranking:
        best.setdefault(ranked.plan.layout, ranked)
    for place, (found, price) in enumerate(list(best.values())[:5], start=1):
        lines.append(f"  {place}. {_one_line(found, price)}")
    own = [n for n, ranked in enumerate(ranking, start=1) if _same_choice(ranked.plan, plan)]
    standing = f"number {own[0]} of {len(ranking)}" if own else "outside the space searched"
    return [
        *lines,
        f"  this run's plan is {standing}; a demonstration exercises axes that one machine does not need",
    ]


def near_misses(plan: Plan) -> list[str]:
    """Better schedules the plan's numbers forbid, with the law that forbids them."""
    layout = plan.layout
    if layout.pipeline == 1 or plan.schedule == "interleaved":
        return []
    chunks = max((c for c in (2, 3, 4) if plan.model.layers % (layout.pipeline * c) == 0), default=0)
    if not chunks:
        return []
    other = plan.model_copy(
        update={
            "schedule": "interleaved",
            "layout": layout.model_copy(update={"chunks": chunks}),
            "batch": plan.batch.model_copy(update={"ramp": None}),  # the full batch alone decides
        }
    )
    return [f"interleaving {chunks} chunks would shrink the bubble, but {p}" for p in other.check()]


def _choice_lines(plan: Plan, machine: Machine) -> list[str]:
    model, layout, batch = plan.model, plan.layout, plan.batch
    micro_batches = batch.micro_batches(layout)
    sharded = ("nothing", "optimizer state", "optimizer state and gradients", "all of a replica's state")[
        plan.zero
    ]
    per_stage = [len(layers) for layers in layers_by_stage(plan)]
    lines = [
        f"model         {model.family}, {model.layers} layers, hidden {model.hidden}, {model.heads} heads, "
        f"vocabulary {model.vocabulary:,} (padded to {model.padded_vocabulary(layout.tensor):,}), "
        f"sequence {model.sequence:,}: {format_count(count(model))} parameters",
        f"machine       {machine.name}: {machine.nodes} x {machine.devices_per_node} {machine.device}",
        f"layout        tensor {layout.tensor} x pipeline {layout.pipeline} x data {layout.data} = "
        f"{layout.world_size:,} ranks; {layout.stages} stages, layers in each: {_spread(per_stage)}",
        f"batch         {batch.sequences:,} sequences = {layout.data} replicas x {micro_batches} micro-batches x "
        f"{batch.micro}; {plan.tokens(batch.sequences):,} tokens per step",
        f"precision     weights {plan.precision.weights}, gradients {plan.precision.accumulation}; recompute "
        f"'{plan.recompute.mode}'; ZeRO stage {plan.zero} shards {sharded} over data ranks",
    ]
    if batch.ramp is not None:
        ramp = batch.ramp
        lines.append(
            f"ramp          batch {ramp.start} -> {batch.sequences:,} by {ramp.increment} over "
            f"{ramp.samples:,} sequences"
        )
    return lines


def _schedule_lines(plan: Plan) -> list[str]:
    layout, micro_batches = plan.layout, plan.batch.micro_batches(plan.layout)
    bubble = (layout.pipeline - 1) / (micro_batches * layout.chunks)
    law = f"(p - 1) / (m x chunks) = {layout.pipeline - 1} / ({micro_batches} x {layout.chunks})"
    # A short step shows the pattern; interleaving needs a multiple of the pipeline degree.
    few = layout.pipeline if plan.schedule == "interleaved" else min(micro_batches, 2 * layout.pipeline)
    short = make_schedule(plan.schedule, pipeline=layout.pipeline, micro_batches=few, chunks=layout.chunks)
    rows = render(short).splitlines()
    shown = rows if len(rows) <= FEW_RANKS else [*rows[: FEW_RANKS - 1], *rows[-1:]]
    skipped = "" if len(shown) == len(rows) else f"; {len(rows) - len(shown)} pipeline ranks not shown"
    return [
        f"schedule      {plan.schedule}: bubble {bubble:.1%} of the work, {law}",
        f"              of {few} micro-batches (Fm.s: forward of micro-batch m on stage s){skipped}:",
        *(f"              {_cut(row)}" for row in shown),
    ]


def _place_lines(plan: Plan, machine: Machine) -> list[str]:
    layout = plan.layout
    on_node = min(layout.world_size, machine.devices_per_node)
    if machine.sharing == "shared":
        on_node = layout.world_size
    lines = []
    for first in range(0, on_node, layout.tensor):
        at, last = layout.coordinate(first), min(first + layout.tensor, on_node) - 1
        ranks = f"rank {first}" if first == last else f"ranks {first}-{last}"
        tensor = f"tensor {at.tensor}" + ("" if first == last else f"-{layout.coordinate(last).tensor}")
        lines.append(f"{ranks} at pipeline {at.pipeline}, data {at.data}, {tensor}")
    shown = lines if len(lines) <= 8 else [*lines[:8], f"and {len(lines) - 8} more tensor groups"]
    return [f"{'first node' if i == 0 else '':14}{line}" for i, line in enumerate(shown)]


def _memory_lines(price: Estimate) -> list[str]:
    held = price.memory
    parts = [f"{name} {format_bytes(value)}" for name, value in held.categories().items()]
    if held.logits:
        parts[-1] += f" (logits {format_bytes(held.logits)})"
    verdict = "fits" if price.fits else "DOES NOT FIT"
    return [
        f"memory        worst rank, pipeline {price.worst.pipeline}: {format_bytes(held.total)} of "
        f"{format_bytes(price.memory_limit)}, {verdict}",
        f"              {', '.join(parts)}",
    ]


def _seconds_lines(plan: Plan, machine: Machine, price: Estimate) -> list[str]:
    published = published_for(plan, machine.name)
    beside = ""
    if published:
        error = price.seconds / published.seconds - 1
        verdict = "too fast" if error < 0 else "too slow"
        beside = f"; published {published.seconds} s ({published.source}): {abs(error):.1%} {verdict}"
    parts = [f"{k.replace('_', ' ')} {format_seconds(v)}" for k, v in vars(price.parts).items() if v]
    sequences = plan.batch.sequences
    return [
        f"FLOPs         {format_flops(model_flops(plan.model, sequences).total)} per step for the model, "
        f"{format_flops(hardware_flops(plan).total)} executed",
        f"step          {format_seconds(price.seconds)} predicted (first analytic figure){beside}",
        f"              {', '.join(parts)}",
        f"              {format_count(price.tokens_per_second)} tokens/s, {price.utilisation:.1%} of peak (model "
        f"FLOPs); the limit is {price.limit}",
    ]


def _spans(plan: Plan, machine: Machine) -> dict[str, Any]:
    """The planned timeline of a step, or of its first micro-batches where there are very many."""
    few = min(plan.batch.micro_batches(plan.layout), 4 * plan.layout.pipeline)
    sequences = few * plan.batch.micro * plan.layout.data
    return {
        "spans": planned_timeline(plan, machine, sequences=sequences).rows(),
        "spans_micro_batches": few,
    }


def _ranked_tree(ranked: Ranked) -> dict[str, Any]:
    plan, price = ranked
    return {
        "layout": to_tree(plan.layout),
        "micro": plan.batch.micro,
        "schedule": plan.schedule,
        "recompute": plan.recompute.mode,
        "zero": plan.zero,
        "sequence_parallel": plan.sequence_parallel,
        "seconds": price.seconds,
        "memory_bytes": price.memory.total,
        "fits": price.fits,
        "limit": price.limit,
    }


def _one_line(plan: Plan, price: Estimate) -> str:
    layout = plan.layout
    chunks = f" x {layout.chunks} chunks" if layout.chunks > 1 else ""
    return (
        f"tensor {layout.tensor}, pipeline {layout.pipeline}{chunks}, data {layout.data}, micro {plan.batch.micro}, "
        f"recompute {plan.recompute.mode}: {format_seconds(price.seconds)} per step, "
        f"{format_bytes(price.memory.total)} per rank{'' if price.fits else ' (does not fit)'}, "
        f"bound by {price.limit}"
    )


def _same_choice(found: Plan, plan: Plan) -> bool:
    """Equal in all the search varies."""
    fields = ("layout", "batch", "schedule", "recompute", "zero", "sequence_parallel")
    return all(getattr(found, name) == getattr(plan, name) for name in fields)


def _spread(counts: list[int]) -> str:
    return str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"


def _cut(row: str) -> str:
    return row if len(row) <= WIDTH else f"{row[: WIDTH - 2].rsplit(' ', 1)[0]} …"
