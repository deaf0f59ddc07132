"""What a slightly different model, batch or machine would allow, and save.

A choice that breaks a law is made legal by moving the number that forbids it to its nearest legal value; the plans
that this opens are priced like all others. They are compared by the devices' time for a useful FLOP, the inverse of
utilisation, so that other batches, models and machines compare fairly.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from trivium.cost.estimate import estimate
from trivium.cost.hardware import USABLE, Machine
from trivium.cost.memory import worst_rank
from trivium.plan.model_shape import ModelShape
from trivium.plan.partition import Partition
from trivium.plan.plan import Plan, head_length
from trivium.plan.schedule import HEAD_UNITS, SCHEDULE_NAMES
from trivium.planner.config import SearchSpace
from trivium.planner.grid import MODE_NAMES, Candidates, Grid, Subject, columns_of
from trivium.planner.laws import INTERLEAVED, LAWS, batch_unit, legal, told
from trivium.planner.pricing import Ranking, Winner, price, rank, utilisation
from trivium.planner.search import Found, legal_plans, memory_limit
from trivium.units import counted, format_bytes

WORTH = 0.01  # of the devices' time: what saves less is not told
NEAR = 1 / 16  # of the batch: how far another one may be
NODES = (1, 2, 4)  # how many more or fewer
FEW = 8  # plans of each change that are simulated
BATCHES = 3  # other batches that are told
LONG_HEAD = 2  # eighths of a stage: a shorter one holds nobody up for long


@dataclass(frozen=True)
class NearMiss:
    """change: what would be different. obstacle: what forbids it now. plan: the best it allows; saves: fraction."""

    change: str
    obstacle: str
    plan: Plan
    seconds: float
    saves: float


def near_misses(found: Found) -> list[NearMiss]:
    """Of a search, largest saving first."""
    winners = found.ranking.winners(1)
    if not winners:
        return []
    best, space = winners[0], _narrow(found)
    seen = [*_batches(found, space, best), *_models(found, space, best), *_nodes(found, space, best)]
    if "interleaved" in found.space.schedules:  # with the winner's own layout, where others save more
        plans = [miss.plan for miss in seen]
        own = interleaving_misses(best.plan, found.machine, best.seconds, found.space.memory_fraction)
        seen += [miss for miss in own if miss.plan not in plans]
    seen += turns_misses(best.plan, found.machine, best.seconds, found.ranking.priced.memory_limit)
    return sorted((miss for miss in seen if miss.saves > WORTH), key=lambda miss: -miss.saves)


def interleaving_misses(plan: Plan, machine: Machine, seconds: float, share: float = USABLE) -> list[NearMiss]:
    """Of one plan that takes `seconds` a step: batches that would allow its stages to be interleaved, in a share of a
    device's memory. Nothing of a plan with choices that rows do not have, such as its own order of ranks: others would
    be credited with leaving them."""
    subject = Subject.of(plan)
    layout, columns = plan.layout, columns_of(plan)
    row = Candidates(subject, Grid({name: np.array([value]) for name, value in columns.items()}))
    if (
        layout.pipeline == 1
        or plan.schedule not in ("gpipe", "1f1b", "1f1b-split")
        or plan.model.layers < 2 * layout.pipeline
        or row.plan_at(0) != plan
    ):
        return []
    # What the plan computes again stays its own choice.
    space = SearchSpace(
        schedules=("interleaved",), recompute_every=(1,), activation_function=False, memory_fraction=share
    )
    columns |= {"schedule": INTERLEAVED}
    one = Grid({name: np.array([value]) for name, value in columns.items() if name != "chunks"})
    chunks = [n for n in space.chunks_for("interleaved", plan.model.layers) if n * layout.pipeline <= plan.model.layers]
    opened = _opened(subject, one.cross(chunks=chunks))
    ranking = _ranking(Candidates(subject, opened), machine, layout.world_size, space)
    best = utilisation(plan, machine, seconds)
    misses = _by_batch(subject, ranking, best)
    return sorted((miss for miss in misses if miss.saves > WORTH), key=lambda miss: -miss.saves)


def turns_misses(plan: Plan, machine: Machine, seconds: float, limit: float) -> list[NearMiss]:
    """Of one plan that takes `seconds` a step: the same ranks with heads taken in turns, where the head is long, that
    fits in `limit` bytes a rank and saves. Searches leave this schedule out, as its order must be simulated to be
    known."""
    layout, model = plan.layout, plan.model
    eighths = head_length(model, 2 * layout.pipeline)
    if layout.pipeline == 1 or plan.heads_in_turns or plan.schedule == "given" or eighths < LONG_HEAD:
        return []
    turns = plan.model_copy(
        update={"schedule": "zb-turns", "layout": layout.model_copy(update={"chunks": 2}), "partition": Partition()}
    )
    if turns.check() or worst_rank(turns)[1].total > limit:
        return []
    took = estimate(turns, machine).seconds
    stages = f"{eighths / HEAD_UNITS:.2g} of {2 * layout.pipeline} stages"
    obstacle = f"the head is as much work as {stages}, and one rank has it"
    miss = NearMiss("taking heads in turns", obstacle, turns, took, 1 - took / seconds)
    return [miss] if miss.saves > WORTH else []


def _narrow(found: Found) -> SearchSpace:
    """The choices that the finalists made."""
    ranking = found.ranking
    rows = ranking.priced.fitting[ranking.order[: len(ranking.simulated)]][: found.space.finalists]
    grid = ranking.priced.candidates.grid.take(rows)
    return found.space.model_copy(
        update={
            "micro": tuple(np.unique(grid["micro"]).tolist()),
            "context": tuple(np.unique(grid["context"]).tolist()),
            "zero": tuple(np.unique(grid["zero"]).tolist()),
            "shards": tuple(number or None for number in np.unique(grid["shards"]).tolist()),
            "recompute": tuple(MODE_NAMES[n] for n in np.unique(grid["recompute"]).tolist()),
            "sequence_parallel": tuple(bool(n) for n in np.unique(grid["sequence_parallel"]).tolist()),
        }
    )


def _batches(found: Found, space: SearchSpace, best: Winner) -> Iterator[NearMiss]:
    every = legal_plans(found.subject, found.machine, found.ranks, space, ("batch", "interleaving"))
    opened = _opened(found.subject, every.candidates.grid)
    ranking = _ranking(Candidates(found.subject, opened), found.machine, found.ranks, space)
    yield from _by_batch(found.subject, ranking, best.utilisation)


def _opened(subject: Subject, grid: Grid) -> Grid:
    """Rows that the batch forbids, with the nearest batches that allow them."""
    broken = grid.take(~legal(subject, grid))
    unit = batch_unit(broken)
    below = subject.sequences // unit * unit
    both = [Grid({**broken.columns, "sequences": batch}) for batch in (below, below + unit)]
    rows = both[0].joined(both[1])
    near = np.abs(rows["sequences"] - subject.sequences) <= NEAR * subject.sequences
    return rows.take(near & (rows["sequences"] > 0))


def _by_batch(subject: Subject, ranking: Ranking, best: float) -> Iterator[NearMiss]:
    """The best plan of each batch."""
    batches: set[int] = set()
    for winner in ranking.winners(len(ranking.simulated)):
        batch = winner.plan.batch.sequences
        if batch in batches or len(batches) == BATCHES:
            continue
        batches.add(batch)
        change = f"batch {batch:,} instead of {subject.sequences:,}"
        yield _miss(change, _batch_obstacle(subject, winner.plan), winner, best)


def _batch_obstacle(subject: Subject, plan: Plan) -> str:
    layout = plan.layout
    row = {
        "sequences": subject.sequences,
        "data": layout.data,
        "micro": plan.batch.micro,
        "pipeline": layout.pipeline,
        "schedule": SCHEDULE_NAMES.index(plan.schedule),
    }
    grid = Grid({name: np.array([value]) for name, value in row.items()})
    broken = [law for law in LAWS if law.name in ("batch", "interleaving") and not law.keeps(subject, grid).all()]
    return "; ".join(told(law, subject, row) for law in broken)


def _models(found: Found, space: SearchSpace, best: Winner) -> Iterator[NearMiss]:
    for change, obstacle, model in _other_models(found.subject.model, found.machine, best.plan):
        if model.problems():
            continue
        subject = replace(found.subject, model=model)
        for miss in _best_of(change, obstacle, replace(found, subject=subject), space, best):
            yield replace(miss, obstacle=_memory_obstacle(found, miss.plan) or obstacle)


def _memory_obstacle(found: Found, plan: Plan) -> str | None:
    """Where the plan is legal for the model asked for, but holds too much."""
    same = plan.model_copy(update={"model": found.subject.model})
    if same.check():
        return None
    held, limit = worst_rank(same)[1].total, found.ranking.priced.memory_limit
    return (
        f"unchanged, the plan holds {format_bytes(held)} of {format_bytes(limit)} that a rank may hold"
        if held > limit
        else None
    )


def _other_models(model: ModelShape, machine: Machine, plan: Plan) -> Iterator[tuple[str, str, ModelShape]]:
    """One layer more or fewer, heads that tensor ranks divide, a vocabulary without padding."""
    stages, tensor = plan.layout.stages, plan.layout.tensor
    for layers in (model.layers - 1, model.layers + 1):
        if layers > 0:
            each = f"{model.layers} layers over {stages} stages are {model.layers / stages:.3g} each"
            obstacle = f"{each}, and the first and last stage hold the model's ends besides"
            yield _changed(model, "layers", layers, obstacle)
    for degree in (n for n in (2, 4, 8, 16) if machine.devices_per_node % n == 0 and model.heads % n):
        below = model.heads // degree * degree
        for heads in (below, below + degree):
            if heads > 0 and model.kv_heads is None:
                yield _changed(model, "heads", heads, f"tensor {degree} does not divide the {model.heads} heads")
    padded = model.padded_vocabulary(tensor)
    if padded != model.vocabulary:
        below = padded - model.vocabulary_multiple * tensor
        if below > 0:
            yield _changed(model, "vocabulary", below, f"vocabulary {model.vocabulary:,} is padded to {padded:,} rows")


def _changed(model: ModelShape, field: str, value: int, obstacle: str) -> tuple[str, str, ModelShape]:
    change = f"{field} {value:,} instead of {getattr(model, field):,}"
    return change, obstacle, model.model_copy(update={field: value})


def _nodes(found: Found, space: SearchSpace, best: Winner) -> Iterator[NearMiss]:
    machine, per_node = found.machine, found.machine.devices_per_node
    if machine.sharing == "shared" or found.ranks % per_node:
        return
    now = found.ranks // per_node
    for nodes in sorted({now + sign * n for n in NODES for sign in (-1, 1)}):
        if nodes < 1:
            continue
        other = machine.with_nodes(max(nodes, machine.nodes))
        asked = replace(found, machine=other, ranks=nodes * per_node)
        change = f"{counted(nodes, 'node')} instead of {now:,}"
        obstacle = f"its layout is one of {counted(nodes * per_node, 'rank')}"
        yield from _best_of(change, obstacle, asked, space, best)


def _best_of(change: str, obstacle: str, asked: Found, space: SearchSpace, best: Winner) -> Iterator[NearMiss]:
    """The best plan of another subject or machine, if it saves."""
    legal = legal_plans(asked.subject, asked.machine, asked.ranks, space).candidates
    for winner in _ranking(legal, asked.machine, asked.ranks, space).winners(1):
        yield _miss(change, obstacle, winner, best.utilisation)


def _ranking(candidates: Candidates, machine: Machine, ranks: int, space: SearchSpace) -> Ranking:
    return rank(price(candidates, machine, memory_limit(machine, ranks, space), space), machine, FEW)


def _miss(change: str, obstacle: str, winner: Winner, best: float) -> NearMiss:
    return NearMiss(change, obstacle, winner.plan, winner.seconds, 1 - best / winner.utilisation)
