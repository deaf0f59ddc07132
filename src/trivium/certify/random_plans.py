"""Random legal plans: what no list of choices thought of, drawn by name, so that a seed gives the same plans anywhere.

Beside the choices of the sweep they draw the order of the ranks, the sizes of batches and micro-batches, and tables
that nobody named: stages on any rank, actions in any order in which each finds its inputs.
"""

import itertools
from collections.abc import Iterator

import numpy as np

from trivium.certify.layouts import CHOICES, Base, bases, plan_of
from trivium.certify.reduce import reduced
from trivium.config import Tree, merge
from trivium.plan.layout import AXES, Axis
from trivium.plan.plan import Plan
from trivium.plan.schedule import Action, Schedule, inputs, ops, render
from trivium.seeds import generator_for

DRAWN_AGAIN = ("order",)  # choices of the sweep that are drawn here from all there are
GIVEN_SHARE = 0.5  # share of the pipelines without a ramp that get a random table
MAX_MICRO = 3  # sequences
MAX_MICRO_BATCHES_PER_RANK = 3  # pipeline x this + 1 in a step


def random_plans(count: int, max_ranks: int, seed: int) -> list[Plan]:
    """`count` different legal plans of at most `max_ranks` ranks, reduced; the first ones of a longer list."""
    found: dict[str, Plan] = {}
    for plan in _drawn(max_ranks, seed):
        if len(found) == count:
            break
        if not plan.check():
            small = reduced(plan)
            found.setdefault(small.model_dump_json(), small)
    return list(found.values())


def random_order(generator: np.random.Generator) -> tuple[Axis, ...]:
    """The axes, slowest first, in any order."""
    return tuple(AXES[n] for n in generator.permutation(len(AXES)))


def with_random_table(plan: Plan, generator: np.random.Generator) -> Plan:
    """The plan with a table that nobody named in place of its schedule."""
    table = random_table(
        generator,
        pipeline=plan.layout.pipeline,
        stages=plan.layout.stages,
        micro_batches=plan.batch.micro_batches(plan.layout),
        split=bool(generator.integers(2)),
    )
    return plan.model_copy(update={"schedule": "given", "rows": tuple(render(table).splitlines())})


def random_table(
    generator: np.random.Generator, *, pipeline: int, stages: int, micro_batches: int, split: bool
) -> Schedule:
    """A table that can be run: stages anywhere, at least one on each rank, actions in a random order in which each
    comes after its inputs. split: backwards in two parts."""
    rank_of = generator.permutation([*range(pipeline), *generator.integers(pipeline, size=stages - pipeline)])
    every = itertools.product(ops(split=split), range(micro_batches), range(stages))
    waiting = [Action(*parts) for parts in every]
    done: set[Action] = set()
    rows: list[list[Action]] = [[] for _ in range(pipeline)]
    while waiting:
        ready = [a for a in waiting if done.issuperset(inputs(a, stages - 1, split=split))]
        action = ready[int(generator.integers(len(ready)))]
        waiting.remove(action)
        done.add(action)
        rows[int(rank_of[action.stage])].append(action)
    return tuple(map(tuple, rows))


def _drawn(max_ranks: int, seed: int) -> Iterator[Plan]:
    """Plans without end, some of which are not legal."""
    every = list(bases(max_ranks))
    for number in itertools.count():
        generator = generator_for(seed, "certify", "random", max_ranks, number)
        yield _draw(every[int(generator.integers(len(every)))], generator)


def _draw(base: Base, generator: np.random.Generator) -> Plan:
    tree: Tree = {"layout": {"order": random_order(generator)}}
    for key, choices in CHOICES.items():
        if key not in DRAWN_AGAIN:
            tree = merge(tree, choices[int(generator.integers(len(choices)))])
    plan = plan_of(base, tree)
    if plan.batch.ramp is not None:
        return plan
    micro = int(generator.integers(1, MAX_MICRO + 1))
    # Fewer than there are ranks, and more.
    micro_batches = int(generator.integers(1, MAX_MICRO_BATCHES_PER_RANK * plan.layout.pipeline + 2))
    batch = plan.batch.model_copy(update={"micro": micro, "sequences": micro * micro_batches * plan.layout.data})
    plan = plan.model_copy(update={"batch": batch})
    if plan.layout.pipeline == 1 or generator.random() >= GIVEN_SHARE:
        return plan
    return with_random_table(plan, generator)
