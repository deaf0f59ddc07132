"""What the optimizer takes of a recipe: AdamW's constants, and the learning rate as a function of tokens."""

import math
from dataclasses import fields

from trivium.parallel.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.training.config import TrainingConfig


def adam_rule(config: TrainingConfig) -> AdamRule:
    """AdamW's constants."""
    names = (field.name for field in fields(AdamRule))
    return AdamRule(**{name: getattr(config, name) for name in names})


def learning_rate(config: TrainingConfig, tokens: int, last_tokens: int) -> float:
    """Linear warm-up, then cosine to `lr_final_fraction` of the peak (MT-NLG section 3.2).

    tokens: consumed at the end of the step. last_tokens: where the decay ends if the config does not say.
    """
    if tokens < config.warmup_tokens:
        return config.lr * tokens / config.warmup_tokens
    end = config.decay_tokens or last_tokens
    span = max(1, end - config.warmup_tokens)
    progress = min(1.0, (tokens - config.warmup_tokens) / span)
    final = config.lr * config.lr_final_fraction
    return final + (config.lr - final) * 0.5 * (1 + math.cos(math.pi * progress))


def lr_of_step(config: TrainingConfig, plan: Plan, step: int) -> float:
    """The learning rate of a step, counted from 0."""
    after, last = (plan.batch.at(n).first_sample for n in (step + 1, config.steps))
    return learning_rate(config, plan.tokens(after), plan.tokens(last))
