"""The settings of a tuning that follow from its method, its conversations and its model. No torch."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from trivium.config import Tree, to_tree
from trivium.errors import ConfigError, nearest
from trivium.objectives.config import NEXT_TOKEN_METHOD, ObjectiveConfig
from trivium.objectives.preferences.losses import PREFERENCES
from trivium.plan.adapters import adapter_kinds
from trivium.plan.model_shape import ModelShape
from trivium.plan.optimizer import Optimizer
from trivium.plan.plan import Plan
from trivium.training.config import TrainingConfig
from trivium.training.rates import ENDLESS

FULL = "full"  # the method that trains every parameter
ADAPTERS = "lora"  # the method of a tuning that names no other
# Learning rates by what is trained, on conversations and on preference pairs.
FULL_LR, ADAPTER_LR = 2e-5, 2e-4
FULL_PAIRS_LR, ADAPTER_PAIRS_LR = 1e-6, 1e-5
WARMUP_SHARE = 0.03  # share of the steps
CONVERSATIONS_PER_STEP = 32
MICRO_TOKENS = 4096  # most tokens of a micro-batch, unless one sequence has more
DEFAULT_SEQUENCE_TOKENS = 2048  # tokens of a sequence
CHECKPOINTS_PER_TRAINING = 5  # checkpoints and validations of a training


class Method(NamedTuple):
    """How a model is tuned. trains: a name of `methods`. objective: of the training, such as dpo."""

    trains: str
    objective: str

    @property
    def of_pairs(self) -> bool:
        """Whether it learns from preference pairs."""
        return self.objective in PREFERENCES


class Size(NamedTuple):
    """How much there is to learn: conversations or pairs, and the sequences into which they were packed."""

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
    """Return the length of the sequences: that of the model, or where this is above DEFAULT_SEQUENCE_TOKENS, the power
    of two that holds the longest conversation, at least DEFAULT_SEQUENCE_TOKENS.

    A model with learned positions keeps its length, because its table of positions has as many rows.
    """
    if model.positions == "learned":
        return model.sequence
    return min(model.in_use.sequence, max(DEFAULT_SEQUENCE_TOKENS, 1 << max(0, longest - 1).bit_length()))


def method_named(text: str) -> Method:
    """Return the method that one or two names say, separated by a comma: what is trained, and an objective of
    preference pairs. Raises ConfigError for a name that does not exist, and for two of a kind."""
    names = [part.strip() for part in text.split(",")]
    known = [*methods(), *PREFERENCES]
    for name in names:
        if name not in known:
            raise ConfigError(f"--method {text}: there is no method '{name}'; {nearest(name, known)}")
    trains = [name for name in names if name in methods()]
    objectives = [name for name in names if name in PREFERENCES]
    for kind in (trains, objectives):
        if len(kind) > 1:
            raise ConfigError(f"--method {text}: {kind[0]} and {kind[1]} exclude each other; name one of them")
    return Method(next(iter(trains), ADAPTERS), next(iter(objectives), NEXT_TOKEN_METHOD))


def settings_for(method: Method) -> Tree:
    """Return the settings that depend on the method alone, for all of `training` and the optimizer."""
    group = methods()[method.trains]
    rates = (ADAPTER_PAIRS_LR, FULL_PAIRS_LR) if method.of_pairs else (ADAPTER_LR, FULL_LR)
    training = TrainingConfig(
        lr=rates[0] if group else rates[1],
        lr_final_fraction=0.0,
        beta2=0.999,
        weight_decay=0.0,
        objective=ObjectiveConfig(method=method.objective),
    )
    model = {"documents": "apart", "dropout": 0.0, "z_loss": 0.0, "adapters": [group] if group else []}
    return {"plan": {"model": model, "optimizer": to_tree(Optimizer())}, "training": to_tree(training)}


def sequences_for(size: Size, wave: int) -> int:
    """Return the sequences of a step: as many as hold CONVERSATIONS_PER_STEP conversations, if there are enough,
    rounded to a power of two, so that layouts whose degrees are powers of two can divide it.

    wave: the number that the batch has to be a multiple of.
    """
    wanted = max(1.0, CONVERSATIONS_PER_STEP * size.sequences / max(1, size.conversations))
    sequences = min(1 << round(math.log2(wanted)), 1 << max(1, size.sequences).bit_length() - 1)
    return -(-sequences // wave) * wave


def micro_for(plan: Plan, ranks: int) -> int:
    """Return the sequences of a micro-batch: the most that divide the batch over `ranks` ranks and have at most
    MICRO_TOKENS tokens."""
    most = max(1, min(MICRO_TOKENS // plan.model.sequence, plan.batch.sequences // ranks))
    return next(n for n in range(most, 0, -1) if plan.batch.sequences % (n * ranks) == 0 or n == 1)


def steps_for(packed: int, sequences: int, epochs: float) -> int:
    """Return the number of steps of `sequences` sequences that read all `packed` ones `epochs` times."""
    return max(1, math.ceil(epochs * packed / sequences))


def course_for(training: TrainingConfig, plan: Plan) -> Mapping[str, Any]:
    """Return the settings of `training` that depend on the number of steps: warm-up, decay, checkpoints, validations.

    A step has the rate of the tokens consumed at its end. The first step after the warm-up has the peak, and the decay
    ends one step after the last, so that every step has a rate above 0, and step k of N, counted from 0, has after the
    warm-up the rate of `get_cosine_schedule_with_warmup` and its like in transformers.
    """

    def tokens_after(steps: int) -> int:
        return plan.tokens(plan.batch.at(steps).first_sample)

    steps = training.steps
    every = max(1, math.ceil(steps / CHECKPOINTS_PER_TRAINING))
    course = {"warmup_tokens": tokens_after(round(WARMUP_SHARE * steps) + 1)}
    if training.decay not in ENDLESS:
        course["decay_tokens"] = tokens_after(steps + 1)
    return {**course, "checkpoint_every": every, "validate_every": every}
