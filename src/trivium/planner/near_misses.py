"""Near misses: slightly different models, batches or machines, and what they would allow and save.

A choice that breaks a law is made legal by moving the number that forbids it to its nearest legal value. The resulting
plans are priced like all others and compared by device time per useful FLOP, the inverse of utilisation, so that
different batches, models and machines compare fairly.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from trivium.cost.estimate import estimate
from trivium.cost.hardware import USABLE_MEMORY_SHARE, Machine
from trivium.cost.memory import worst_rank
from trivium.plan.experts import Experts
from trivium.plan.model_shape import ModelShape
from trivium.plan.partition import Partition
from trivium.plan.plan import Plan, head_length
from trivium.plan.schedule import HEAD_UNITS
from trivium.planner.config import SearchSpace
from trivium.planner.grid import MODE_NAMES, Candidates, Grid, Subject, columns_of
from trivium.planner.laws import INTERLEAVED, LAWS, batch_unit, legal, told
from trivium.planner.pricing import Ranking, Winner, price, rank, utilisation
from trivium.planner.search import Found, legal_plans, memory_limit
from trivium.units import counted, format_bytes

MIN_SAVED_FRACTION = 0.01  # share of the device time; smaller savings are not reported
MAX_BATCH_CHANGE = 1 / 16  # as a fraction of the batch
NODE_CHANGES = (1, 2, 4)  # nodes more or fewer
SIMULATED_PLANS = 8  # for each change
MAX_BATCHES = 3  # reported for each search
SPLITS = ("sequence_parallel", "overlap_tensor")  # choices that are true or false
MIN_HEAD_EIGHTHS = 2  # eighths of a stage; a shorter head delays the pipeline little


@dataclass(frozen=True)
class NearMiss:
    """A change that would help.

    change: what would be different. obstacle: what forbids it now. plan: the best plan that it allows. saves: the
    saved fraction of the device time.
    """

    change: str
    obstacle: str
    plan: Plan
    seconds: float
    saves: float


def near_misses(found: Found) -> list[NearMiss]:
    """Return the near misses of a search, the largest saving first."""
    winners = found.ranking.winners(1)
    if not winners:
        return []
    best, space = winners[0], _space_of_finalists(found)
    misses = [*_batches(found, space, best), *_models(found, space, best), *_nodes(found, space, best)]
    if "interleaved" in found.space.schedules:  # The winner's own layout, even if other layouts save more.
        plans = [miss.plan for miss in misses]
        own = interleaving_misses(best.plan, found.machine, best.seconds, found.space.memory_fraction)
        misses += [miss for miss in own if miss.plan not in plans]
    misses += turns_misses(best.plan, found.machine, best.seconds, found.ranking.priced.memory_limit)
    return _worthwhile(misses)


def interleaving_misses(
    plan: Plan, machine: Machine, seconds: float, share: float = USABLE_MEMORY_SHARE
) -> list[NearMiss]:
    """Return the batches with which a plan of `seconds` per step could interleave its stages. share: of a device's
    memory.

    The result is empty for a plan with choices that a search does not vary, such as its own order of ranks: the
    saving would include that of leaving these choices.
    """
    subject, layers, pipeline = Subject.of(plan), plan.model.layers, plan.layout.pipeline
    one = Grid({name: np.array([value]) for name, value in columns_of(plan).items()})
    plain = plan.schedule in ("gpipe", "1f1b", "1f1b-split") and layers >= 2 * pipeline > 2
    if not plain or Candidates(subject, one).plan_at(0) != plan:
        return []
    # The plan keeps its own choice of recompute.
    space = SearchSpace(
        schedules=("interleaved",), recompute_every=(1,), activation_function=False, memory_fraction=share
    )
    chunks = [n for n in space.chunks_for("interleaved", layers) if n * pipeline <= layers]
    others = {name: column for name, column in one.columns.items() if name not in ("schedule", "chunks")}
    grid = _with_legal_batches(subject, Grid(others).cross(schedule=[INTERLEAVED]).cross(chunks=chunks))
    ranking = _ranking(Candidates(subject, grid), machine, plan.layout.world_size, space)
    return _worthwhile(_best_by_batch(subject, ranking, utilisation(plan, machine, seconds)))


def turns_misses(plan: Plan, machine: Machine, seconds: float, limit: float) -> list[NearMiss]:
    """Return whether the round-robin head (`zb-turns`) would save time of a plan of `seconds` per step within `limit`
    bytes per rank: one near miss or none.

    Searches skip this schedule, because only a simulation of its order gives its time.
    """
    layout, stages = plan.layout, 2 * plan.layout.pipeline
    eighths = head_length(plan.model, stages)
    has_own = plan.schedule == "given" or plan.partition != Partition()  # the saving would include that of leaving it
    if layout.pipeline == 1 or plan.heads_in_turns or has_own or eighths < MIN_HEAD_EIGHTHS:
        return []
    chunked = layout.model_copy(update={"chunks": 2})
    turns = plan.model_copy(update={"schedule": "zb-turns", "layout": chunked, "partition": Partition()})
    if turns.check() or worst_rank(turns)[1].total > limit:
        return []
    obstacle = f"the head is as much work as {eighths / HEAD_UNITS:.2g} of {stages} stages, and one rank has it"
    turns_seconds = estimate(turns, machine).seconds
    return _worthwhile([NearMiss("a round-robin head", obstacle, turns, turns_seconds, 1 - turns_seconds / seconds)])


def _worthwhile(misses: Iterable[NearMiss]) -> list[NearMiss]:
    return sorted((miss for miss in misses if miss.saves > MIN_SAVED_FRACTION), key=lambda miss: -miss.saves)


def _space_of_finalists(found: Found) -> SearchSpace:
    """Return the space of the choices that the finalists of a search made."""
    ranking = found.ranking
    rows = ranking.priced.fitting[ranking.order[: len(ranking.simulated)]][: found.space.finalists]
    grid = ranking.priced.candidates.grid.take(rows)
    chosen = {
        name: np.unique(grid[name]).tolist()
        for name in ("micro", "context", "expert", "zero", "shards", "recompute", *SPLITS)
    }
    chosen["shards"] = [number or None for number in chosen["shards"]]
    chosen["recompute"] = [MODE_NAMES[mode] for mode in chosen["recompute"]]
    chosen |= {name: list(map(bool, chosen[name])) for name in SPLITS}
    return found.space.model_copy(update={name: tuple(values) for name, values in chosen.items()})


def _batches(found: Found, space: SearchSpace, best: Winner) -> Iterator[NearMiss]:
    every = legal_plans(found.subject, found.machine, found.ranks, space, ("batch", "interleaving"))
    grid = _with_legal_batches(found.subject, every.candidates.grid)
    ranking = _ranking(Candidates(found.subject, grid), found.machine, found.ranks, space)
    return _best_by_batch(found.subject, ranking, best.utilisation)


def _with_legal_batches(subject: Subject, grid: Grid) -> Grid:
    """Return the rows that are illegal with the subject's batch, each with the nearest batches that make it legal."""
    broken = grid.take(~legal(subject, grid))
    unit = batch_unit(broken)
    below = subject.sequences // unit * unit
    rows = Grid({**broken.columns, "sequences": below}).joined(Grid({**broken.columns, "sequences": below + unit}))
    near = np.abs(rows["sequences"] - subject.sequences) <= MAX_BATCH_CHANGE * subject.sequences
    return rows.take(near & (rows["sequences"] > 0))


def _best_by_batch(subject: Subject, ranking: Ranking, best: float) -> Iterator[NearMiss]:
    """Yield the best plan of each of the first batches in a ranking. best: the utilisation to compare with."""
    batches: set[int] = set()
    for winner in ranking.winners(len(ranking.simulated)):
        batch = winner.plan.batch.sequences
        if batch not in batches and len(batches) < MAX_BATCHES:
            batches.add(batch)
            change = f"batch {batch:,} instead of {subject.sequences:,}"
            yield _miss(change, _batch_obstacle(subject, winner.plan), winner, best)


def _batch_obstacle(subject: Subject, plan: Plan) -> str:
    row = {**columns_of(plan), "sequences": subject.sequences}
    grid = Grid({name: np.array([value]) for name, value in row.items()})
    broken = [law for law in LAWS if law.name in ("batch", "interleaving") and not law.keeps(subject, grid).all()]
    return "; ".join(told(law, subject, row) for law in broken)


def _models(found: Found, space: SearchSpace, best: Winner) -> Iterator[NearMiss]:
    asked = found.subject.model
    for field, value, obstacle in _other_sizes(asked, found.machine, best.plan):
        model = asked.model_copy(update={field: value})
        if value > 0 and not model.problems():
            change = f"{field} {value:,} instead of {getattr(asked, field):,}"
            yield from _with_model(change, obstacle, model, found, space, best)
    widened = space.model_copy(update={"expert": found.space.expert})
    for experts, obstacle in _other_experts(asked, found.ranks):
        model = asked.model_copy(update={"experts": experts})
        if not model.problems():
            change = f"{experts.count:,} experts instead of {asked.expert_counts[0]:,}"
            yield from _with_model(change, obstacle, model, found, widened, best)


def _with_model(
    change: str, obstacle: str, model: ModelShape, found: Found, space: SearchSpace, best: Winner
) -> Iterator[NearMiss]:
    """Yield the best plan of another model, if there is one."""
    subject = replace(found.subject, model=model)
    for miss in _best_of(change, obstacle, replace(found, subject=subject), space, best):
        yield replace(miss, obstacle=_memory_obstacle(found, miss.plan) or obstacle)


def _other_experts(model: ModelShape, ranks: int) -> Iterator[tuple[Experts, str]]:
    """Yield the nearest numbers of experts that more expert ranks would divide, and why they do not now."""
    if model.experts is None or len(model.expert_counts) != 1:
        return
    count, seen = model.experts.count, set[int]()
    for degree in (n for n in (2, 4, 8, 16, 32, 64) if ranks % n == 0 and n < count and count % n):
        below = count // degree * degree
        for other in {below, below + degree} - seen:
            yield (
                model.experts.model_copy(update={"count": other}),
                f"expert {degree} does not divide the {count} experts",
            )
        seen |= {below, below + degree}


def _memory_obstacle(found: Found, plan: Plan) -> str | None:
    """Explain that a plan is legal for the requested model but needs too much memory, if that is so."""
    same = plan.model_copy(update={"model": found.subject.model})
    if same.check():
        return None
    held, limit = worst_rank(same)[1].total, found.ranking.priced.memory_limit
    told = f"unchanged, the plan needs {format_bytes(held)} of the {format_bytes(limit)} available per rank"
    return told if held > limit else None


def _other_sizes(model: ModelShape, machine: Machine, plan: Plan) -> Iterator[tuple[str, int, str]]:
    """Yield field, value and obstacle: one layer more or fewer, heads that tensor ranks divide, an unpadded
    vocabulary."""
    stages, tensor = plan.layout.stages, plan.layout.tensor
    each = f"{model.layers} layers over {stages} stages are {model.layers / stages:.3g} each"
    for layers in (model.layers - 1, model.layers + 1):
        yield "layers", layers, f"{each}, and the first and last stages also contain the embedding and the output head"
    for degree in (n for n in (2, 4, 8, 16) if machine.devices_per_node % n == 0 and model.heads % n):
        below = model.heads // degree * degree
        for heads in (below, below + degree) if model.kv_heads is None else ():
            yield "heads", heads, f"tensor {degree} does not divide the {model.heads} heads"
    padded = model.padded_vocabulary(tensor)
    if padded != model.vocabulary:
        below = padded - model.vocabulary_multiple * tensor
        yield "vocabulary", below, f"vocabulary {model.vocabulary:,} is padded to {padded:,} rows"


def _nodes(found: Found, space: SearchSpace, best: Winner) -> Iterator[NearMiss]:
    machine, per_node = found.machine, found.machine.devices_per_node
    if machine.sharing == "shared" or found.ranks % per_node:
        return
    now = found.ranks // per_node
    for nodes in sorted(now + sign * n for n in NODE_CHANGES for sign in (-1, 1) if now + sign * n > 0):
        asked = replace(found, machine=machine.with_nodes(max(nodes, machine.nodes)), ranks=nodes * per_node)
        change = f"{counted(nodes, 'node')} instead of {now:,}"
        obstacle = f"its layout is one of {counted(nodes * per_node, 'rank')}"
        yield from _best_of(change, obstacle, asked, space, best)


def _best_of(change: str, obstacle: str, asked: Found, space: SearchSpace, best: Winner) -> Iterator[NearMiss]:
    """Yield the best plan of another model or machine, if there is a legal one that fits."""
    candidates = legal_plans(asked.subject, asked.machine, asked.ranks, space).candidates
    for winner in _ranking(candidates, asked.machine, asked.ranks, space).winners(1):
        yield _miss(change, obstacle, winner, best.utilisation)


def _ranking(candidates: Candidates, machine: Machine, ranks: int, space: SearchSpace) -> Ranking:
    return rank(price(candidates, machine, memory_limit(machine, ranks, space), space), machine, SIMULATED_PLANS)


def _miss(change: str, obstacle: str, winner: Winner, best: float) -> NearMiss:
    return NearMiss(change, obstacle, winner.plan, winner.seconds, 1 - best / winner.utilisation)
