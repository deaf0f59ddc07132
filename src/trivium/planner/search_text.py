"""What a search found, as text for people and as plain data."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from trivium.config import to_tree
from trivium.plan.layout import AXES, Layout
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import count
from trivium.plan.plan import Plan
from trivium.planner.near_misses import NearMiss
from trivium.planner.pricing import Ranking, Winner
from trivium.planner.published import full_batch
from trivium.planner.search import Found
from trivium.units import counted, format_bytes, format_count, format_seconds

SEARCH_FORMAT = "trivium-search-1"
HEADS = (
    "tensor",
    "pipeline",
    "chunks",
    "data",
    "context",
    "micro",
    "schedule",
    "recompute",
    "sequence",
    "ZeRO",
    "step",
    "tokens/s",
    "MFU",
    "memory",
    "limited by",
)
WORDS = ("schedule", "recompute", "sequence", "limited by")  # columns that are not numbers
NAMED_LIMITS = 2
FEWEST_SECONDS = 0.001  # of a step: a part that differs by less is not told


def search_lines(found: Found, top: int) -> list[str]:
    """The winners as a table, under what was searched."""
    return [*_subject_lines(found), "", *table_lines(found.ranking.winners(top))]


def explain_lines(found: Found, misses: list[NearMiss], top: int) -> list[str]:
    """The winner, the runners-up and what limits each, `top` plans in all, every rejected family, and near misses."""
    winner, *runners = best_of_layouts(found.ranking)[:top]
    return [
        *_subject_lines(found),
        "",
        f"Winner: {choice_text(winner)}",
        f"  {_limits_text(winner, every=True)}",
        "",
        *(["Runners-up, the best of each other layout:"] if runners else []),
        *(f"  {place}. {line}" for place, each in enumerate(runners, 2) for line in [_behind_text(each, winner)]),
        *([""] if runners else []),
        "Rejected:",
        *(f"  {line}" for line in rejected_lines(found)),
        "",
        "Near misses, each priced like the winner:",
        *([f"  {miss_text(miss)}" for miss in misses] or ["  none would save more than 1 %"]),
    ]


def search_tree(found: Found, top: int) -> dict[str, Any]:
    """The same as plain data."""
    priced = found.ranking.priced
    return {
        "format": SEARCH_FORMAT,
        "model": to_tree(found.subject.model),
        "parameters": count(found.subject.model),
        "machine": found.machine.name,
        "ranks": found.ranks,
        "batch": found.subject.sequences,
        "combinations": found.enumerated.combinations,
        "legal": len(priced.candidates),
        "fit": len(priced.fitting),
        "simulated": len(found.ranking.simulated),
        "memory_limit": priced.memory_limit,
        "winners": [winner_tree(winner) for winner in found.ranking.winners(top)],
    }


def explain_tree(found: Found, misses: list[NearMiss], top: int) -> dict[str, Any]:
    """search_tree with what was rejected and what nearly was not."""
    return {
        **search_tree(found, top),
        "runners_up": [winner_tree(each) for each in best_of_layouts(found.ranking)[1:top]],
        "rejected": [vars(family) for family in found.enumerated.rejected],
        "rejected_by_memory": [
            {"tensor": tensor, "layouts": layouts, "least_bytes": least} for tensor, layouts, least in _too_large(found)
        ],
        "near_misses": [{**vars(miss), "plan": choice_tree(miss.plan)} for miss in misses],
    }


def winner_tree(winner: Winner) -> dict[str, Any]:
    """A plan of a search and its price."""
    return {
        **choice_tree(winner.plan),
        "seconds": winner.seconds,
        "parts": winner.parts,
        "tokens_per_second": winner.tokens_per_second,
        "utilisation": winner.utilisation,
        "memory_bytes": winner.memory_bytes,
        "fits": True,
        "limit": winner.limits[0][0],
    }


def choice_tree(plan: Plan) -> dict[str, Any]:
    """What a search chooses of a plan."""
    return {
        "layout": to_tree(plan.layout),
        "sequences": plan.batch.sequences,
        "micro": plan.batch.micro,
        "schedule": plan.schedule,
        "recompute": plan.recompute.mode,
        "recompute_every": plan.recompute.every,
        "recompute_activation_function": plan.recompute.activation_function,
        "zero": plan.zero,
        "sequence_parallel": plan.sequence_parallel,
    }


def ranking_lines(plan: Plan, ranking: Ranking) -> list[str]:
    """The best layouts a search found, and where a run's own plan stands among them."""
    number = len(ranking.order)
    best = best_of_layouts(ranking)[:5]
    # Rows are of the full batch, and have no order of ranks.
    layout = plan.layout.model_copy(update={"order": AXES})
    own = ranking.place_of(full_batch(plan).model_copy(update={"layout": layout}))
    standing = f"number {own:,} of {number:,}" if own else "outside the space searched"
    return [
        f"What a search over {number:,} plans that fit finds for this machine: the best five layouts, seconds per step",
        *(f"  {place}. {choice_text(winner)}; {_limits_text(winner)}" for place, winner in enumerate(best, 1)),
        f"  this run's plan is {standing}; a demonstration exercises axes that one machine does not need",
    ]


def best_of_layouts(ranking: Ranking) -> list[Winner]:
    """The best simulated plan of each layout, best first."""
    best: dict[Layout, Winner] = {}
    for winner in ranking.winners(len(ranking.simulated)):
        best.setdefault(winner.plan.layout, winner)
    return list(best.values())


def table_lines(winners: list[Winner]) -> list[str]:
    """One line per plan, in columns."""
    rows = [HEADS, *(_cells(winner) for winner in winners)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if name in WORDS else cell.rjust(width)
            for name, cell, width in zip(HEADS, row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def rejected_lines(found: Found) -> list[str]:
    """Every family that no plan came of: the law it breaks, and how many layouts that is."""
    memory = [
        f"memory: {layouts:,} layouts of tensor {tensor} over {format_bytes(found.ranking.priced.memory_limit)}; the "
        f"smallest of them holds {format_bytes(least)}"
        for tensor, layouts, least in _too_large(found)
    ]
    return [f"{each.example}: {each.layouts:,} layouts ({each.values})" for each in found.enumerated.rejected] + memory


def miss_text(miss: NearMiss) -> str:
    """One near miss in words."""
    plan = miss.plan
    return (
        f"{miss.obstacle}; {miss.change} would allow {_layout_text(plan.layout)}, {plan.schedule}, micro "
        f"{plan.batch.micro}, and save {miss.saves:.1%} of the devices' time"
    )


def choice_text(winner: Winner) -> str:
    """A plan's choices, seconds and memory."""
    plan = winner.plan
    along = ", sequence parallel" if plan.sequence_parallel else ""
    return (
        f"{_layout_text(plan.layout)}, micro {plan.batch.micro}, {plan.schedule}, recompute {plan.recompute.words}"
        f"{along}, ZeRO {_zero_text(plan)}: {format_seconds(winner.seconds)}, {format_bytes(winner.memory_bytes)} "
        f"per rank"
    )


def _zero_text(plan: Plan) -> str:
    return f"{plan.zero}" + (f" over {plan.layout.shards}" if plan.layout.shards is not None else "")


def _layout_text(layout: Layout) -> str:
    chunks = f" x {layout.chunks} chunks" if layout.chunks > 1 else ""
    context = f", context {layout.context}" if layout.context > 1 else ""
    return f"tensor {layout.tensor}, pipeline {layout.pipeline}{chunks}, data {layout.data}{context}"


def heads_text(model: ModelShape) -> str:
    """`64 heads`, with how many key-value heads they share where that is fewer."""
    return f"{model.heads} heads" + (f" ({model.kv} key-value)" if model.kv != model.heads else "")


def _subject_lines(found: Found) -> list[str]:
    model, machine, ranking = found.subject.model, found.machine, found.ranking
    fit, legal = len(ranking.priced.fitting), len(ranking.priced.candidates)
    return [
        f"model     {format_count(count(model))} parameters: {model.layers} layers, hidden "
        f"{model.hidden:,}, {heads_text(model)}, sequence {model.sequence:,}",
        f"machine   {machine.name}: {counted(found.ranks, 'rank')} on {machine.device}; "
        f"batch {found.subject.sequences:,} sequences, weights {found.subject.precision.weights}",
        f"searched  {legal:,} legal plans of {found.enumerated.combinations:,} combinations; {fit:,} hold at most "
        f"{format_bytes(ranking.priced.memory_limit)} a rank and were priced; the {len(ranking.simulated):,} fastest "
        f"were simulated",
    ]


def _cells(winner: Winner) -> tuple[str, ...]:
    plan, layout = winner.plan, winner.plan.layout
    numbers = (layout.tensor, layout.pipeline, layout.chunks, layout.data, layout.context, plan.batch.micro)
    return (
        *map(str, numbers),
        plan.schedule,
        plan.recompute.words,
        "parallel" if plan.sequence_parallel else "whole",
        _zero_text(plan),
        format_seconds(winner.seconds),
        format_count(winner.tokens_per_second),
        f"{winner.utilisation:.1%}",
        format_bytes(winner.memory_bytes),
        _limits_text(winner),
    )


def _limits_text(winner: Winner, *, every: bool = False) -> str:
    told = winner.limits if every else winner.limits[:NAMED_LIMITS]
    return ", ".join(f"{name} {share:.1%}" for name, share in told if share > FEWEST_SECONDS)


def _behind_text(each: Winner, winner: Winner) -> str:
    """A runner-up, and the parts of the step that keep it behind the winner."""
    more = {name: each.parts[name] - winner.parts[name] for name in each.parts}
    worst = sorted(more.items(), key=lambda item: -item[1])[:NAMED_LIMITS]
    told = [
        f"{format_seconds(value)} more {name.replace('_', ' ')}"
        for name, value in worst
        if value > FEWEST_SECONDS * winner.seconds
    ]
    return f"{choice_text(each)}; {', '.join(told) or 'as fast, and holds more'}"


def _too_large(found: Found) -> Iterator[tuple[int, int, float]]:
    """By tensor degree: how many legal plans hold too much, and how much the smallest of these holds."""
    priced = found.ranking.priced
    over = priced.memory_bytes > priced.memory_limit
    tensor = priced.candidates.grid["tensor"]
    for degree in np.unique(tensor[over]).tolist():
        held = priced.memory_bytes[over & (tensor == degree)]
        yield degree, len(held), float(held.min())
