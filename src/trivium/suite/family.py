"""A family of models: its sizes, when their checkpoints are saved, and what is equal for all of them.

A shorter training keeps the proportions of the published one (arXiv 2304.01373): the warm-up is 1 % of the steps, and
equally spaced checkpoints are 1/143 of the steps apart, rounded up. Before the first of them are those after 0, 1, 2,
4, 8, … steps. 143,000 steps give the published 154 checkpoints, fewer steps at most as many.
"""

import math
from collections.abc import Mapping

from trivium.checkpoint.keep import Milestones, is_milestone
from trivium.config import Tree, differences, preset_names, to_tree
from trivium.errors import ConfigError, nearest
from trivium.plan.parameters import count
from trivium.plan.plan import Plan

FAMILIES = ("pythia",)
SPACED_CHECKPOINTS = 143
WARMUP_FRACTION = 0.01


def sizes_of(family: str) -> dict[str, str]:
    """Return {size: name of its preset} of a family, the smallest first. Raises ConfigError for an unknown family."""
    if family not in FAMILIES:
        raise ConfigError(f"there is no suite '{family}'; {nearest(family, FAMILIES)}")
    names = [name for name in preset_names() if name.startswith(f"{family}-")]
    ordered = sorted(names, key=lambda name: count(Plan.from_preset(name).model))
    return {name.removeprefix(f"{family}-"): name for name in ordered}


def chosen(family: str, sizes: str) -> dict[str, str]:
    """Return the sizes named in a list by commas, as `sizes_of` does. Raises ConfigError for an unknown one."""
    every = sizes_of(family)
    wanted = [size.strip().lower() for size in sizes.split(",") if size.strip()]
    for size in wanted:
        if size not in every:
            raise ConfigError(f"--sizes {size}: {family} has {', '.join(every)}; {nearest(size, every)}")
    if not wanted:
        raise ConfigError(f"--sizes '{sizes}' names no size; {family} has {', '.join(every)}")
    return {size: preset for size, preset in every.items() if size in wanted}


def schedule(plan: Plan, steps: int) -> dict[str, int]:
    """Return the settings that follow from the length of the training, by their paths."""
    warmup, every = round(WARMUP_FRACTION * steps), math.ceil(steps / SPACED_CHECKPOINTS)
    return {
        "training.milestones": every,
        "training.checkpoint_every": every,
        "training.warmup_tokens": plan.tokens(plan.batch.at(warmup).first_sample),
    }


def checkpoint_steps(steps: int, milestones: Milestones) -> list[int]:
    """Return the steps whose checkpoints are examined."""
    return [step for step in range(steps + 1) if is_milestone(step, milestones) or step == steps]


def order_of(plan: Plan, seed: int, steps: int) -> Tree:
    """Return everything that decides which samples of the tokens are in which batch."""
    batch = {name: value for name, value in to_tree(plan.batch).items() if name != "micro"}
    return {"seed": seed, "plan": {"model": {"sequence": plan.model.sequence}, "batch": batch}, "training.steps": steps}


def order_problems(orders: Mapping[str, Tree]) -> list[str]:
    """Return an error for each size whose batches differ from those of the first. orders: by size, from `order_of`."""
    (first, expected), *others = orders.items()
    return [
        f"{size} would not be trained on the batches of {first} ({line}); give all sizes the same value with --set"
        for size, order in others
        for line in differences(expected, order)
    ]
