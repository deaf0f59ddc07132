"""The settings of a tuning that follow from its method, its conversations and its model. No torch."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from trivium.config import Tree, to_tree
from trivium.errors import ConfigError, nearest
from trivium.plan.adapters import adapter_kinds
from trivium.plan.model_shape import ModelShape
from trivium.plan.optimizer import Optimizer
from trivium.plan.plan import Plan
from trivium.training.config import TrainingConfig

FULL = "full"  # the method that trains every parameter
FULL_LR, ADAPTER_LR = 2e-5, 2e-4
WARMUP_SHARE = 0.03  # of the steps
CONVERSATIONS_PER_STEP = 32
MICRO_TOKENS = 4096  # of a micro-batch, at most, unless one sequence has more
LONGEST = 2048  # tokens of a sequence, unless a conversation has more
LEAST_PER_SEQUENCE = 4  # conversations of any length, while the sequence stays below LONGEST
CHECKS = 5  # checkpoints and validations of a training


class Size(NamedTuple):
    """How much there is to learn: conversations, and the sequences into which they were packed."""

    conversations: int
    sequences: int


def methods() -> dict[str, Tree]:
    """Return the groups of adapters of each method by its name. The method "full" has none: it trains every
    parameter."""
    found: dict[str, Tree] = {kind: {"kind": kind} for kind in adapter_kinds()}
    if "lora" in found:
        found["rslora"] = {"kind": "lora", "settings": {"rslora": True}}
    return {**found, FULL: {}}


def length_for(longest: int, model: ModelShape) -> int:
    """Return the length of the sequences, a power of two: enough for the longest conversation, and for several of them
    where they are short.

    A model with learned positions keeps its length, because its table of positions has as many rows.
    """
    if model.positions == "learned":
        return model.sequence
    several = min(LONGEST, _power_above(LEAST_PER_SEQUENCE * longest))
    return min(model.sequence, max(several, _power_above(longest)))


def _power_above(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


def settings_for(method: str) -> Tree:
    """Return the settings that depend on the method alone, for all of `training` and the optimizer. Raises ConfigError
    for a method that does not exist."""
    if method not in methods():
        raise ConfigError(f"--method {method}: there is no such method; {nearest(method, methods())}")
    group = methods()[method]
    lr = ADAPTER_LR if group else FULL_LR
    training = TrainingConfig(lr=lr, lr_final_fraction=0.0, beta2=0.999, weight_decay=0.0)
    model = {"documents": "apart", "dropout": 0.0, "adapters": [group] if group else []}
    return {"plan": {"model": model, "optimizer": to_tree(Optimizer())}, "training": to_tree(training)}


def sequences_for(size: Size, wave: int) -> int:
    """Return the sequences of a step: as many as hold CONVERSATIONS_PER_STEP conversations, if there are so many,
    rounded to a power of two, so that layouts whose degrees are powers of two can divide it.

    wave: the number that the batch has to be a multiple of.
    """
    wanted = max(1.0, CONVERSATIONS_PER_STEP * size.sequences / max(1, size.conversations))
    sequences = min(1 << round(math.log2(wanted)), 1 << max(1, size.sequences).bit_length() - 1)
    return -(-sequences // wave) * wave


def micro_for(plan: Plan, ranks: int) -> int:
    """Return the sequences of a micro-batch: the most that divide the batch over so many ranks and have at most
    MICRO_TOKENS tokens."""
    most = max(1, min(MICRO_TOKENS // plan.model.sequence, plan.batch.sequences // ranks))
    return next(n for n in range(most, 0, -1) if plan.batch.sequences % (n * ranks) == 0 or n == 1)


def steps_for(packed: int, sequences: int, epochs: float) -> int:
    """Return the number of steps of `sequences` sequences that read all `packed` ones `epochs` times."""
    return max(1, math.ceil(epochs * packed / sequences))


def course_for(steps: int, plan: Plan) -> Mapping[str, Any]:
    """Return the settings of `training` that depend on the number of steps: warm-up, checkpoints and validations."""
    warmup = plan.tokens(plan.batch.at(round(WARMUP_SHARE * steps)).first_sample)
    every = max(1, math.ceil(steps / CHECKS))
    return {"steps": steps, "warmup_tokens": warmup, "checkpoint_every": every, "validate_every": every}
