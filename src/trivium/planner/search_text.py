"""The result of a search as text and as plain data."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from trivium.config import to_tree
from trivium.plan.layout import AXES, Layout
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import count
from trivium.plan.plan import Plan
from trivium.plan.recompute import Recompute
from trivium.planner.near_misses import NearMiss
from trivium.planner.pricing import Ranking, Winner
from trivium.planner.published import full_batch
from trivium.planner.search import SHARES, Found
from trivium.planner.ties import TIE_FRACTION
from trivium.units import counted, format_bytes, format_count, format_energy, format_seconds

SEARCH_FORMAT = "trivium-search-1"
NAMED_LIMITS = 2  # parts of a step that a line names
MIN_SHARE = 0.001  # share of a step; smaller parts and differences are not reported
CELLS: dict[str, Callable[[Winner], str]] = {
    "tensor": lambda winner: str(winner.plan.layout.tensor),
    "pipeline": lambda winner: str(winner.plan.layout.pipeline),
    "chunks": lambda winner: str(winner.plan.layout.chunks),
    "data": lambda winner: str(winner.plan.layout.data),
    "context": lambda winner: str(winner.plan.layout.context),
    "expert": lambda winner: str(winner.plan.layout.expert),
    "micro": lambda winner: str(winner.plan.batch.micro),
    "schedule": lambda winner: winner.plan.schedule,
    "recompute": lambda winner: winner.plan.recompute.words,
    "sequence": lambda winner: _sequence_text(winner.plan) or "whole",
    "ZeRO": lambda winner: _zero_text(winner.plan),
    "step": lambda winner: format_seconds(winner.seconds),
    "tokens/s": lambda winner: format_count(winner.tokens_per_second),
    "MFU": lambda winner: f"{winner.utilisation:.1%}",
    "energy": lambda winner: "" if winner.joules is None else format_energy(winner.joules),
    "memory": lambda winner: ", ".join(filter(None, (format_bytes(winner.memory_bytes), winner.plan.offload.words))),
    "limited by": lambda winner: _limits_text(winner),
}
LEFT_ALIGNED = ("schedule", "recompute", "sequence", "limited by")


def search_lines(found: Found, top: int) -> list[str]:
    """Return the winners as a table below a summary of the search."""
    winners = table_lines(found.ranking.winners(top))
    return [*_subject_lines(found), "", *winners, f"chosen    {because(found)}", *_untried_lines(found)]


def explain_lines(found: Found, misses: list[NearMiss], top: int) -> list[str]:
    """Return the winner, the runners-up and what limits each (`top` plans), the rejected families and the near
    misses."""
    winner, *runners = best_of_layouts(found.ranking)[:top]
    return [
        *_subject_lines(found),
        "",
        f"Winner: {choice_text(winner)}",
        f"  {_limits_text(winner, None)}",
        f"Chosen: {because(found)}",
        *_untried_lines(found),
        "",
        *(["Runners-up, the best of each other layout:"] if runners else []),
        *(f"  {place}. {behind_text(each, winner)}" for place, each in enumerate(runners, 2)),
        *([""] if runners else []),
        "Rejected:",
        *(f"  {line}" for line in rejected_lines(found)),
        "",
        "Near misses, each priced like the winner:",
        *([f"  {miss_text(miss)}" for miss in misses] or ["  none would save more than 1 %"]),
    ]


def search_tree(found: Found, top: int) -> dict[str, Any]:
    """Return the result of a search as plain data."""
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
        "ties": found.choice.ties,
        "chosen": winner_tree(found.chosen),
        "winners": [winner_tree(winner) for winner in found.ranking.winners(top)],
    }


def explain_tree(found: Found, misses: list[NearMiss], top: int) -> dict[str, Any]:
    """Return `search_tree` with the runners-up, the rejected families and the near misses."""
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
    """Return a plan of a search and its price as plain data."""
    return {
        **choice_tree(winner.plan),
        "seconds": winner.seconds,
        "parts": winner.parts,
        "tokens_per_second": winner.tokens_per_second,
        "utilisation": winner.utilisation,
        "joules": winner.joules,
        "memory_bytes": winner.memory_bytes,
        "fits": True,
        "limit": winner.limits[0][0],
    }


def choice_tree(plan: Plan) -> dict[str, Any]:
    """Return the fields of a plan that a search varies."""
    return {
        "layout": to_tree(plan.layout),
        "sequences": plan.batch.sequences,
        "micro": plan.batch.micro,
        "schedule": plan.schedule,
        "recompute": plan.recompute.mode,
        "recompute_every": plan.recompute.every,
        "recompute_activation_function": plan.recompute.activation_function,
        "offload": to_tree(plan.offload),
        "zero": plan.zero,
        "sequence_parallel": plan.sequence_parallel,
        "overlap_tensor": plan.overlap_tensor,
        "compiled": plan.compiled,
        "cuda_graphs": plan.cuda_graphs,
    }


def ranking_lines(plan: Plan, ranking: Ranking) -> list[str]:
    """Return the best layouts of a search, and the rank of a run's own plan among all plans that fit."""
    number = len(ranking.order)
    best = best_of_layouts(ranking)[:5]
    # A search varies neither a batch ramp nor the order of ranks.
    layout = plan.layout.model_copy(update={"order": AXES})
    own = ranking.place_of(full_batch(plan).model_copy(update={"layout": layout}))
    standing = f"number {own:,} of {number:,}" if own else "outside the space searched"
    return [
        f"The best five layouts of {number:,} plans for {counted(plan.layout.world_size, 'rank')} that fit on this "
        "machine, seconds per step",
        *(f"  {place}. {choice_text(winner)}; {_limits_text(winner)}" for place, winner in enumerate(best, 1)),
        f"  this run's plan is {standing}; a demonstration exercises axes that one machine does not need",
    ]


def best_of_layouts(ranking: Ranking) -> list[Winner]:
    """Return the best simulated plan of each layout, the fastest first."""
    best: dict[Layout, Winner] = {}
    for winner in ranking.winners(len(ranking.simulated)):
        best.setdefault(winner.plan.layout, winner)
    return list(best.values())


def table_lines(winners: list[Winner]) -> list[str]:
    """Return a table with one line per plan, under a line of column names."""
    shown = {
        "expert": any(winner.plan.model.expert_counts for winner in winners),
        "energy": any(winner.joules is not None for winner in winners),
    }
    cells = {name: cell for name, cell in CELLS.items() if shown.get(name, True)}
    rows = [list(cells), *([cell(winner) for cell in cells.values()] for winner in winners)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = [str.ljust if name in LEFT_ALIGNED else str.rjust for name in cells]
    return [
        "  ".join(align(cell, width) for align, cell, width in zip(aligned, row, widths, strict=True)).rstrip()
        for row in rows
    ]


def rejected_lines(found: Found) -> list[str]:
    """Return one line per rejected family: the law that it breaks, and how many layouts it has."""
    limit = found.ranking.priced.memory_limit
    memory = [
        f"memory: {layouts:,} layouts with tensor {tensor} need more than {format_bytes(limit)} per rank, the smallest "
        f"{format_bytes(least - limit)} more"
        for tensor, layouts, least in _too_large(found)
    ]
    return [f"{each.example}: {each.layouts:,} layouts ({each.values})" for each in found.enumerated.rejected] + memory


def miss_text(miss: NearMiss) -> str:
    """Describe a near miss in one line."""
    plan = miss.plan
    return (
        f"{miss.obstacle}; with {miss.change}, {_layout_text(plan.layout)}, {plan.schedule}, micro {plan.batch.micro} "
        f"would save {miss.saves:.1%} of the devices' time"
    )


def choice_text(winner: Winner) -> str:
    """Describe a plan's choices, seconds and memory in one line."""
    plan = winner.plan
    return (
        f"{choices_text(plan)}: {format_seconds(winner.seconds)}, "
        f"{'' if winner.joules is None else f'{format_energy(winner.joules)}, '}{format_bytes(winner.memory_bytes)} "
        f"per rank{', ' if plan.offload.is_used else ''}{plan.offload.words}"
    )


def choices_text(plan: Plan) -> str:
    """Describe a plan's choices, without how it is compiled and offloaded."""
    split = _sequence_text(plan)
    return (
        f"{_layout_text(plan.layout)}, micro {plan.batch.micro}, {plan.schedule}, recompute {plan.recompute.words}"
        f"{split and f', sequence {split}'}, ZeRO {_zero_text(plan)}"
    )


def because(found: Found) -> str:
    """Describe the chosen plan of a search, and why it is chosen, in one line."""
    chosen, fit, energy = found.chosen, len(found.ranking.order), found.space.objective == "energy"
    ways = {"compiled": chosen.plan.compiled, "recorded as CUDA graphs": chosen.plan.cuda_graphs}
    runs = " and ".join(name for name, used in ways.items() if used)
    why = best = "the one with least energy" if energy else "the fastest"
    if found.choice.ties > 1:
        why = f"the simplest of {found.choice.ties:,} within {TIE_FRACTION:.0%} of {best}"
    others = [_need_text(other.winner(0), energy=energy) for other in found.others if len(other.order)]
    otherwise = f" ({'without' if runs else 'with both'}: {' or '.join(others)})" if others else ""
    runs = (runs or "neither compiled nor recorded") + otherwise
    return f"{choice_text(chosen)}; {runs}; {why} of {fit:,} plans that fit, {_limits_text(chosen)}"


def _untried_lines(found: Found) -> list[str]:
    """Say that plans with shares on the host were left out, where the chosen plan computes again to save memory."""
    may_offload = found.space.offload is None and found.machine.usable_host_memory() > 0
    if not may_offload or found.subject.offload.is_used or found.chosen.plan.recompute == Recompute():
        return []
    shares = ",".join(f"{share:g}" for share in SHARES)
    return [
        f"untried   state and activations on the host, as some plan fits without: --set 'search.offload=[{shares}]'"
    ]


def _need_text(winner: Winner, *, energy: bool) -> str:
    return format_energy(winner.joules) if energy and winner.joules is not None else format_seconds(winner.seconds)


def _sequence_text(plan: Plan) -> str:
    """Describe how tensor ranks divide the positions; an empty text if they do not."""
    return f"parallel{' in a ring' * plan.tensor_ring}" if plan.sequence_parallel else ""


def _zero_text(plan: Plan) -> str:
    return f"{plan.zero}" + (f" over {plan.layout.shards}" if plan.layout.shards is not None else "")


def _layout_text(layout: Layout) -> str:
    chunks = f" x {layout.chunks} chunks" if layout.chunks > 1 else ""
    context = f", context {layout.context}" if layout.context > 1 else ""
    expert = f", expert {layout.expert}" if layout.expert > 1 else ""
    return f"tensor {layout.tensor}, pipeline {layout.pipeline}{chunks}, data {layout.data}{context}{expert}"


def heads_text(model: ModelShape) -> str:
    """Return "64 heads", followed by the number of key-value heads if it differs."""
    return f"{model.heads} heads" + (f" ({model.kv} key-value)" if model.kv != model.heads else "")


def _subject_lines(found: Found) -> list[str]:
    model, machine, ranking = found.subject.model, found.machine, found.ranking
    fit, legal = len(ranking.priced.fitting), len(ranking.priced.candidates)
    return [
        f"model     {format_count(count(model))} parameters: {model.layers} layers, hidden "
        f"{model.hidden:,}, {heads_text(model)}, sequence {model.sequence:,}",
        f"machine   {machine.name}: {counted(found.ranks, 'rank')} on {machine.device}; "
        f"batch {found.subject.sequences:,} sequences, weights {found.subject.precision.weights}",
        f"searched  {legal:,} legal plans of {found.enumerated.combinations:,} combinations; {fit:,} fit in "
        f"{format_bytes(ranking.priced.memory_limit)} per rank and were priced; the {len(ranking.simulated):,} fastest "
        f"were simulated",
    ]


def _limits_text(winner: Winner, most: int | None = NAMED_LIMITS) -> str:
    return ", ".join(f"{name} {share:.1%}" for name, share in winner.limits[:most] if share > MIN_SHARE)


def behind_text(each: Winner, winner: Winner) -> str:
    """Describe a runner-up and the parts of its step that keep it behind the winner. If none is noticeably slower,
    compare the memory."""
    more = sorted(((each.parts[name] - winner.parts[name], name) for name in each.parts), key=lambda part: -part[0])
    slower = [
        f"{format_seconds(seconds)} more {name.replace('_', ' ')}"
        for seconds, name in more[:NAMED_LIMITS]
        if seconds > MIN_SHARE * winner.seconds
    ]
    memory = each.memory_bytes - winner.memory_bytes
    needs = f"{format_bytes(abs(memory))} {'more' if memory > 0 else 'less'}" if memory else "the same"
    as_fast = f"no part of the step is slower by more than {MIN_SHARE:.1%} of it; needs {needs} memory per rank"
    return f"{choice_text(each)}; {', '.join(slower) or as_fast}"


def _too_large(found: Found) -> Iterator[tuple[int, int, float]]:
    """Yield for each tensor degree: how many legal plans exceed the memory, and the bytes of the smallest of them."""
    priced = found.ranking.priced
    over = priced.memory_bytes > priced.memory_limit
    tensor = priced.candidates.grid["tensor"]
    for degree in np.unique(tensor[over]).tolist():
        held = priced.memory_bytes[over & (tensor == degree)]
        yield degree, len(held), float(held.min())
