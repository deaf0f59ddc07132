"""A plan and its price as text and as plain data."""

import math
import textwrap
from typing import Any

import numpy as np

from trivium.config import to_tree
from trivium.cost.compute import hardware_flops, model_flops
from trivium.cost.estimate import Estimate, estimate, planned_timeline
from trivium.cost.hardware import USABLE_MEMORY_SHARE, Machine, machine_named, this_machine
from trivium.cost.memory import predicted_memory
from trivium.cost.stack import own_stack
from trivium.cost.stages import layers_by_stage
from trivium.cost.timeline import simulate, unit_seconds
from trivium.cost.wavefront import Run, finish_seconds
from trivium.plan.layout import Layout
from trivium.plan.mapping import crossings, node_of
from trivium.plan.parameters import count
from trivium.plan.plan import Plan
from trivium.plan.schedule import SCHEDULE_NAMES, SPLIT_SCHEDULES, Action, is_split, ops, render
from trivium.planner.config import SearchSpace
from trivium.planner.experts import expert_lines
from trivium.planner.grid import Subject
from trivium.planner.near_misses import interleaving_misses, turns_misses
from trivium.planner.published import full_batch, mt_nlg_plan, published_for
from trivium.planner.remedies import does_not_fit
from trivium.planner.search import search
from trivium.planner.search_text import heads_text, miss_text, ranking_lines, winner_tree
from trivium.units import counted, format_bytes, format_count, format_energy, format_flops, format_seconds

FORMAT = "trivium-plan-1"
COLUMNS = 116  # width of a line of text
LABEL_COLUMNS = 14  # width of a line's label
MAX_SCHEDULE_ROWS = 4
MAX_PLACE_LINES = 8
CLOSED_FORM_SCHEDULES = ("gpipe", "1f1b", "interleaved")  # bubble (p - 1) / (m x chunks)
ROUNDING_FRACTION = 1e-6  # share of a step; smaller parts are rounding noise
STORED_WINNERS = 10  # winners of the search that are stored
INDENT = " " * LABEL_COLUMNS


def plan_stage(
    plan: Plan, ranks: int, cores: int, memory_bytes: int, space: SearchSpace = SearchSpace()
) -> dict[str, Any]:
    """Return the plan stage's result as data and text: the run's plan, the best plans that a search finds for this
    machine, and MT-NLG 530B."""
    here = this_machine(cores, memory_bytes)
    found = search(Subject.of(plan), here, ranks, space)
    selene, paper = machine_named("selene"), mt_nlg_plan()
    sections = {
        "here": ["This run", *plan_lines(plan, here, space.memory_fraction)],
        "ranking": ranking_lines(plan, found.ranking) if len(found.ranking.order) else [does_not_fit(found)],
        "mt_nlg": ["MT-NLG 530B on 280 DGX A100", *plan_lines(paper, selene)],
    }
    published = published_for(paper, selene.name)
    return {
        "format": FORMAT,
        **priced_tree(plan, here, space.memory_fraction),
        "memory": [
            {"rank": rank, "coordinate": dict(plan.layout.coordinate(rank)._asdict()), "predicted": held}
            for rank, held in predicted_memory(plan).items()
        ],
        **spans(plan, here),
        "ranking": [winner_tree(winner) for winner in found.ranking.winners(STORED_WINNERS)],
        "mt_nlg": {
            **priced_tree(paper, selene),
            "published_seconds": published.seconds if published else None,
            "published_predicted_seconds": published.predicted_seconds if published else None,
            "source": published.source if published else None,
            "lines": sections["mt_nlg"],
        },
        "lines": [line for lines in sections.values() for line in (*lines, "")][:-1],
    }


def priced_tree(plan: Plan, machine: Machine, share: float = USABLE_MEMORY_SHARE) -> dict[str, Any]:
    """Return a plan, its machine and its price as plain data. share: usable fraction of a device's memory."""
    return {
        "plan": to_tree(plan),
        "machine": to_tree(machine),
        "parameters": count(plan.model),
        "estimate": estimate(plan, machine, share=share).tree(),
    }


def plan_lines(
    plan: Plan, machine: Machine, share: float = USABLE_MEMORY_SHARE, forward_passes: int = 0, factor: float = 1.0
) -> list[str]:
    """Describe a plan and its price. share: usable fraction of a device's memory. forward_passes: before each step.
    factor: multiplies all seconds. Raises ConfigError if the plan is not legal."""
    stack = own_stack(plan.checked(), machine, factor)
    price = estimate(plan, machine, stack=stack, share=share, forward_passes=forward_passes)
    lines = [
        *_choice_lines(plan, machine),
        *_schedule_lines(plan),
        *_place_lines(plan, machine),
        *_memory_lines(price),
        *expert_lines(plan, price.memory_limit),
        *_seconds_lines(plan, machine, price),
        *(f"near miss     {line}" for line in near_misses(plan, machine, price.seconds / factor, share)),
    ]
    return [part for line in lines for part in _wrapped(line)]


def price_lines(plan: Plan, machine: Machine, price: Estimate) -> list[str]:
    """Describe a plan and its price in few lines, without its schedule, the places of its ranks, and near misses."""
    of_memory = [*_memory_lines(price), *expert_lines(plan, price.memory_limit)]
    lines = [*_choice_lines(plan, machine), *of_memory, *_seconds_lines(plan, machine, price)]
    return [part for line in lines for part in _wrapped(line)]


def near_misses(plan: Plan, machine: Machine, seconds: float, share: float = USABLE_MEMORY_SHARE) -> list[str]:
    """Describe schedules that would be faster for a plan of `seconds` per step, some of which its batch forbids."""
    full, limit = full_batch(plan), machine.usable_memory(plan.layout.world_size, share)
    seen = [*interleaving_misses(full, machine, seconds, share), *turns_misses(full, machine, seconds, limit)]
    return [miss_text(miss) for miss in sorted(seen, key=lambda miss: -miss.saves)]


def _choice_lines(plan: Plan, machine: Machine) -> list[str]:
    model, layout, batch = plan.model, plan.layout, plan.batch
    micro_batches = batch.micro_batches(layout)
    per_stage = [len(layers) for layers in layers_by_stage(plan)[: layout.stages]]
    head = " and the head's, which all ranks have" if plan.heads_in_turns else ""
    context = f" x context {layout.context}" if layout.context > 1 else ""
    expert = f", expert {layout.expert}" if layout.expert > 1 else ""
    padded = model.padded_vocabulary(layout.tensor)
    lines = [
        f"model         {format_count(count(model))} parameters: {model.layers} layers, hidden "
        f"{model.hidden}, {heads_text(model)}, "
        f"vocabulary {model.vocabulary:,}{f' (padded to {padded:,})' if padded != model.vocabulary else ''}, "
        f"{model.head} embeddings, sequence {model.sequence:,}",
        f"machine       {machine.name}: {_machine_text(machine, layout.world_size)}",
        f"layout        tensor {layout.tensor} x pipeline {layout.pipeline} x data {layout.data}{context} = "
        f"{counted(layout.world_size, 'rank')}{expert}; {counted(layout.stages, 'stage')}, layers in each: "
        f"{_spread(per_stage)}{head}",
        f"batch         {batch.sequences:,} sequences = {counted(layout.data, 'replica')} x {micro_batches} "
        f"micro-batches x {batch.micro}; {plan.tokens(batch.sequences):,} tokens per step",
        f"precision     weights {plan.precision.weights}, gradients {plan.gradient_dtype}; recompute "
        f"{plan.recompute.words}; {_zero_text(plan)}",
    ]
    if batch.ramp is not None:
        ramp, full = batch.ramp, batch.segments[-1]
        lines.append(
            f"ramp          from {ramp.start} to {batch.sequences:,} sequences by {ramp.increment} in the first "
            f"{full.first_step:,} steps ({format_count(plan.tokens(full.first_sample))} tokens); the figures below are "
            "for the full batch"
        )
    return lines


def _zero_text(plan: Plan) -> str:
    replicas = plan.layout.replicas
    if replicas == 1 or plan.zero == 0:
        return f"ZeRO stage {plan.zero}: nothing is sharded over {counted(replicas, 'replica')}"
    sharded = ("optimizer state", "optimizer state and gradients", "weights, gradients and optimizer state")
    copies = f" in {plan.layout.copies} copies, each" if plan.layout.copies > 1 else ""
    over = f"{plan.layout.sharers} of {replicas}" if copies else str(replicas)
    return f"ZeRO stage {plan.zero}: {sharded[plan.zero - 1]}{copies} sharded over {over} replicas"


def _schedule_lines(plan: Plan) -> list[str]:
    layout, micro_batches = plan.layout, plan.batch.micro_batches(plan.layout)
    if layout.pipeline == 1:
        return ["schedule      one pipeline rank: micro-batches one after the other, no bubble"]
    bubble, split = unit_bubble(plan)
    law = ", with the backward split in two" if split else ""
    if plan.schedule in CLOSED_FORM_SCHEDULES:
        law = f", (p - 1) / (m x chunks) = {layout.pipeline - 1} / ({micro_batches} x {layout.chunks})"
    few, rows = _few_micro_batches(plan)
    shown = rows if len(rows) <= MAX_SCHEDULE_ROWS else [*rows[: MAX_SCHEDULE_ROWS - 1], *rows[-1:]]
    skipped = "" if len(shown) == len(rows) else f"; {len(rows) - len(shown)} pipeline ranks not shown"
    of = "its" if few == micro_batches else f"a step of {few} instead of {micro_batches}"
    return [
        f"schedule      {plan.schedule}: bubble {bubble:.1%} of the work{law}",
        f"{INDENT}{of} micro-batches (Fm.s: forward of micro-batch m on stage s){skipped}:",
        *(f"{INDENT}{_cut(row)}" for row in shown),
    ]


def unit_bubble(plan: Plan) -> tuple[float, bool]:
    """Return the bubble of a plan's schedule if all actions take equally long, and whether its backward is split."""
    if plan.schedule not in SCHEDULE_NAMES:
        table = plan.schedule_table()
        return simulate(table, unit_seconds).bubble_fraction, is_split(table)
    split = plan.schedule in SPLIT_SCHEDULES
    layout, micro_batches = plan.layout, plan.batch.micro_batches(plan.layout)
    # With integer durations, extrapolating a long step is exact.
    seconds = np.array(
        [[unit_seconds(Action(op, 0, stage)) for stage in range(plan.stages)] for op in ops(split=split)]
    )
    run = Run(plan.schedule, layout.pipeline, micro_batches, layout.chunks, seconds)
    duration = float(finish_seconds([run])[0])
    return duration * layout.pipeline / (micro_batches * float(seconds.sum())) - 1, split


def _few_micro_batches(plan: Plan) -> tuple[int, list[str]]:
    """Return a number of micro-batches and the rendered rows of the schedule: the full step if its rows are short, else
    a shorter step that shows the pattern."""
    layout, micro_batches = plan.layout, plan.batch.micro_batches(plan.layout)
    if plan.schedule == "given":  # Given rows exist for one batch size only.
        return micro_batches, render(plan.schedule_table()).splitlines()
    # Interleaving requires a multiple of the pipeline degree.
    pattern = layout.pipeline if plan.schedule == "interleaved" else min(micro_batches, 2 * layout.pipeline)
    rows: list[str] = []
    for few in dict.fromkeys((micro_batches, pattern)):
        if few <= 2 * layout.pipeline * layout.chunks:
            table = plan.schedule_table(few * plan.batch.micro * layout.data)
            rows = render(table).splitlines()
            if max(map(len, rows)) <= COLUMNS - LABEL_COLUMNS:
                return few, rows
    return pattern, rows


def _place_lines(plan: Plan, machine: Machine) -> list[str]:
    layout = plan.layout
    is_shared, lines = machine.sharing == "shared", []
    on_node = layout.world_size if is_shared else min(layout.world_size, machine.devices_per_node)
    # Tensor groups share a line if tensor varies fastest; otherwise each rank has its own line.
    run = layout.tensor if layout.order[-1:] == ("tensor",) else 1
    for first in range(0, on_node, run):
        at, last = layout.coordinate(first), min(first + run, on_node) - 1
        ranks = f"rank {first}" if first == last else f"ranks {first}-{last}"
        tensor = f"tensor {at.tensor}" + ("" if first == last else f"-{layout.coordinate(last).tensor}")
        shared = f"context {at.context}, " if layout.context > 1 else ""
        lines.append(f"{ranks} at pipeline {at.pipeline}, data {at.data}, {shared}{tensor}")
    shown, more = lines[:MAX_PLACE_LINES], len(lines) - MAX_PLACE_LINES
    if more > 0:
        shown.append(f"and {more} more {'tensor groups' if run > 1 else 'ranks'}")
    if layout.world_size > on_node:
        shown.append(f"groups over nodes: {_crossing_axes(layout, machine.devices_per_node)}")
        if layout.expert > 1:
            nodes = {node_of(rank, machine.devices_per_node) for rank in layout.expert_sets()[0]}
            shown.append(f"ranks that divide the experts of a layer: on {counted(len(nodes), 'node')}")
        if layout.copies > 1:
            sharers = layout.peers(0, *layout.replica_axes)[: layout.sharers]
            nodes = {node_of(rank, machine.devices_per_node) for rank in sharers}
            shown.append(f"ranks that share a copy of what ZeRO shards: on {counted(len(nodes), 'node')}")
    name = "this machine" if is_shared else "first node"
    return [f"{'' if i else name:{LABEL_COLUMNS}}{line}" for i, line in enumerate(shown)]


def _crossing_axes(layout: Layout, per_node: int) -> str:
    found = crossings(layout, per_node)
    over = [f"{axis} (up to {c.nodes} nodes)" for axis, c in found.items() if c.spanning]
    inside = [axis for axis, c in found.items() if not c.spanning and layout.degree(axis) > 1]
    return f"{', '.join(over) or 'none'}{'; inside a node: ' if inside else ''}{', '.join(inside)}"


def _memory_lines(price: Estimate) -> list[str]:
    held = price.memory
    parts = [f"{name} {format_bytes(value)}" for name, value in held.categories().items()]
    if held.logits:
        parts[-1] += f" (logits {format_bytes(held.logits)})"
    verdict = "fits" if price.fits else "DOES NOT FIT"
    host = f", and {format_bytes(held.host)} of {format_bytes(price.host_limit)} on its host" if held.host else ""
    return [
        f"memory        worst rank, pipeline {price.worst.pipeline}: needs {format_bytes(held.total)} of the "
        f"{format_bytes(price.memory_limit)} available per rank{host}: {verdict}",
        f"              {', '.join(parts)}",
    ]


def _seconds_lines(plan: Plan, machine: Machine, price: Estimate) -> list[str]:
    sequences = plan.batch.sequences
    model, executed = model_flops(plan.model, sequences).total, hardware_flops(plan).total
    same = f"{executed:.2g}" == f"{model:.2g}"
    peak = "the peak assumed for these cores" if machine.sharing == "shared" else "peak"
    return [
        f"FLOPs         {format_flops(model)} per step for the model"
        f"{'' if same else f', {format_flops(executed)} executed'}",
        f"step          {format_seconds(price.seconds)} predicted, run by Trivium",
        *_published_lines(plan, machine),
        f"{INDENT}{', '.join(_parts(plan, machine, price))}",
        f"{INDENT}{format_count(price.tokens_per_second)} tokens/s, {price.utilisation:.1%} of {peak} (model "
        f"FLOPs); the limit is {price.limit}",
        *_energy_lines(machine, price),
    ]


def _energy_lines(machine: Machine, price: Estimate) -> list[str]:
    """Describe the energy of a step, and which watts it is made of."""
    if price.joules is None:
        return []
    idle = "" if machine.idle_watts is None else f", else {machine.idle_watts:g} W"
    host = "hosts not counted" if machine.host_watts is None else f"{machine.host_watts:g} W a host"
    return [
        f"energy        {format_energy(price.joules)} per step predicted: {machine.watts:g} W a device for "
        f"{price.busy_seconds / price.seconds:.1%} of it{idle}; {host}"
    ]


def _published_lines(plan: Plan, machine: Machine) -> list[str]:
    """Compare the prediction for the published run's own software with the published time."""
    published = published_for(plan, machine.name)
    if published is None:
        return []
    theirs = published.predicted_seconds
    error = theirs / published.seconds - 1
    return [
        f"{INDENT}{theirs:.1f} s predicted with {published.stack}; published {published.seconds} s "
        f"({published.source}): {abs(error):.1%} too {'fast' if error < 0 else 'slow'}"
    ]


def _parts(plan: Plan, machine: Machine, price: Estimate) -> list[str]:
    """Describe the parts of a step without rounding noise, and explain a bubble that is hidden."""
    parts = {name: v for name, v in vars(price.parts).items() if v > ROUNDING_FRACTION * price.seconds}
    texts = [f"{name.replace('_', ' ')} {format_seconds(value)}" for name, value in parts.items()]
    crowd = machine.crowding(plan.layout.world_size)
    if price.translation_seconds > ROUNDING_FRACTION * price.seconds:
        texts.append(f"of these for reverse address translation {format_seconds(price.translation_seconds)}")
    if plan.layout.pipeline > 1 and "bubble" not in parts and crowd > 1:
        texts.append(
            f"bubble 0 ({plan.layout.world_size} ranks share {machine.devices} cores: while one waits, others compute)"
        )
    return texts


def _machine_text(machine: Machine, ranks: int) -> str:
    if machine.sharing == "shared":
        return counted(machine.devices, machine.device)
    used = math.ceil(ranks / machine.devices_per_node)
    of = f"{used:,} of " if used < machine.nodes else ""
    return f"{of}{counted(machine.nodes, 'node')} x {machine.devices_per_node} {machine.device}"


def spans(plan: Plan, machine: Machine) -> dict[str, Any]:
    """Return the planned timeline of a step. If a named schedule has many micro-batches, the step is a shorter one."""
    few = plan.batch.micro_batches(plan.layout)
    if plan.schedule != "given":
        few = min(few, 4 * plan.layout.pipeline)
    sequences = few * plan.batch.micro * plan.layout.data
    return {"spans": planned_timeline(plan, machine, sequences=sequences).rows(), "spans_micro_batches": few}


def _spread(counts: list[int]) -> str:
    return str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"


def _cut(row: str) -> str:
    width = COLUMNS - LABEL_COLUMNS
    return row if len(row) <= width else f"{row[: width - 2].rsplit(' ', 1)[0]} …"


def _wrapped(line: str) -> list[str]:
    """Wrap a line at COLUMNS. Continuation lines are indented by the width of the label."""
    return textwrap.wrap(line, COLUMNS, subsequent_indent=INDENT, break_long_words=False, break_on_hyphens=False)
