"""The learning rate as a function of tokens, and the checks of a training config. No torch."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from trivium.plan.batch import nearest_multiples
from trivium.plan.plan import Plan
from trivium.redact import redact
from trivium.training.config import TrainingConfig
from trivium.units import format_count

ENDLESS = ("constant", "inverse_sqrt")  # decays that do not depend on the end of the training


class Decay(NamedTuple):
    """The tokens, counted from the first of the training, between which the rate falls."""

    begin: int
    end: int


def learning_rate(config: TrainingConfig, tokens: int, last_tokens: int) -> float:
    """Return the learning rate: a linear warm-up to the peak, then the decay down to `lr_final_fraction` of the peak.

    tokens: consumed at the end of the step. last_tokens: the end of the decay if the config does not set it.
    Cosine: MT-NLG section 3.2. inverse_sqrt: arXiv 1706.03762. wsd: arXiv 2404.06395; 1-sqrt: arXiv 2405.18392.
    """
    if tokens < config.warmup_tokens:
        return config.lr * tokens / config.warmup_tokens
    if config.decay == "constant":
        return config.lr
    final = config.lr * config.lr_final_fraction
    if config.decay == "inverse_sqrt":
        return max(final, config.lr * math.sqrt(config.warmup_tokens / tokens))
    begin, end = decay_of(config, last_tokens)
    if config.decay == "wsd" and tokens <= begin:
        return config.lr  # bit for bit as under "constant"
    done = min(1.0, (tokens - begin) / max(1, end - begin))
    left = {
        "linear": lambda: 1 - done,
        "1-sqrt": lambda: 1 - math.sqrt(done),
        "cosine": lambda: 0.5 * (1 + math.cos(math.pi * done)),
    }[_shape(config)]()
    return final + (config.lr - final) * left


def _shape(config: TrainingConfig) -> str:
    return config.final_decay_shape if config.decay == "wsd" else config.decay


def decay_of(config: TrainingConfig, last_tokens: int) -> Decay:
    """Return where a decay begins and ends."""
    end = config.decay_tokens or last_tokens
    return Decay(end - config.final_decay_tokens if config.decay == "wsd" else config.warmup_tokens, end)


def ends_with_training(training: Mapping[str, Any]) -> bool:
    """Whether the learning rate depends on the number of steps. training: the config as plain data."""
    return not training.get("decay_tokens") and training.get("decay") not in ENDLESS


def last_tokens_of(config: TrainingConfig, plan: Plan) -> int:
    """Return the number of tokens consumed by all steps."""
    return plan.tokens(plan.batch.at(config.steps).first_sample)


def lr_of_step(config: TrainingConfig, plan: Plan, step: int) -> float:
    """Return the learning rate of a step, counted from 0."""
    after = plan.tokens(plan.batch.at(step + 1).first_sample)
    return learning_rate(config, after, last_tokens_of(config, plan))


def rate_problems(config: TrainingConfig, plan: Plan) -> list[str]:
    """Return an error for each contradiction between the fields of the learning rate."""
    decay, final, warmup = config.decay, config.final_decay_tokens, config.warmup_tokens
    found = []
    if decay == "inverse_sqrt" and not warmup:
        found.append(
            f"training.warmup_tokens ({warmup}) must be above 0 under training.decay=inverse_sqrt: the rate falls by "
            f"the root of warmup_tokens / tokens; give the tokens of the warm-up"
        )
    if decay == "wsd" and not final:
        found.append(
            f"training.final_decay_tokens ({final}) must be above 0 under training.decay=wsd: it is the number "
            f"of tokens of the last decay; set it, or set training.decay=constant for the stable part alone"
        )
    if decay in ("cosine", "linear") and 0 < config.decay_tokens < warmup:
        found.append(
            f"training.decay_tokens ({config.decay_tokens}) is where the decay ends, and training.warmup_tokens "
            f"({warmup}) are not over then: the rate would fall at once from the middle of its rise; put it at "
            f"{warmup} or later, or shorten the warm-up"
        )
    end = config.decay_tokens or last_tokens_of(config, plan)
    if decay == "wsd" and warmup + final > end:
        where = "training.decay_tokens" if config.decay_tokens else f"{config.steps} training.steps"
        found.append(
            f"training.warmup_tokens ({warmup}) and training.final_decay_tokens ({final}) must fit into the {end} "
            f"tokens before the end of the decay ({where}): the rate rises before it falls; lower them to at most "
            f"{max(0, end - final)} or {max(0, end - warmup)}, or put the end later"
        )
    return found


def recipe_problems(config: TrainingConfig, plan: Plan) -> list[str]:
    """Return an error for each contradiction in a training config, and between it and its plan."""
    found = [*config.objective.problems(plan.model), *rate_problems(config, plan)]
    if config.start_with == "state" and not config.start_from:
        found.append(
            "training.start_with is state, and training.start_from names no checkpoint that has one; name it, or set "
            "training.start_with=weights"
        )
    if config.keep_every % config.checkpoint_every:
        near = nearest_multiples(config.keep_every, config.checkpoint_every)
        found.append(
            f"training.keep_every ({config.keep_every}) must be a multiple of training.checkpoint_every "
            f"({config.checkpoint_every}): only what is saved can be spared; nearest: {near}"
        )
    if config.store is not None and config.near.every:
        found.append(
            f"training.near.every ({config.near.every}) publishes copies in --out, and training.store "
            f"({redact(config.store)}) has the checkpoints at a URL; set one of the two"
        )
    return [*found, *config.profile.problems(config.steps, plan.layout.world_size)]


def rate_line(config: TrainingConfig, plan: Plan) -> str:
    """Return a sentence that describes the learning rate over the training."""
    last, warmup = last_tokens_of(config, plan), config.warmup_tokens
    peak, at_last = f"{config.lr:.3g}", f"{learning_rate(config, last, last):.3g}"
    ending = f"{at_last} at the last step ({format_count(last)})"
    if last <= warmup:
        return f"learning rate: warm-up to the end: {ending}; {peak} is reached only at {format_count(warmup)} tokens"
    rise = f"up to {peak} at {format_count(warmup)} tokens" if warmup else f"{peak} from the start"
    if config.decay in ENDLESS:
        fall = "" if config.decay == "constant" else ", then by the inverse root"
        return f"learning rate: {rise}{fall}, {ending}"
    begin, end = decay_of(config, last)
    stays = f", stable until {format_count(begin)}" if config.decay == "wsd" else ""
    final = f"{config.lr * config.lr_final_fraction:.3g} at {format_count(end)}"
    return f"learning rate: {rise}{stays}, {_shape(config)} to {final}" + (f", {ending}" if end != last else "")
