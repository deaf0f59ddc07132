"""Checks that a checkpoint belongs to this run: resuming another run's would silently mix the two."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trivium.config import Tree, build, differences, first_lines, to_tree
from trivium.errors import CheckpointError, ConfigError
from trivium.plan.model_shape import ModelShape
from trivium.plan.plan import Plan
from trivium.training.config import TrainingConfig
from trivium.training.rates import decay_of, ends_with_training, last_tokens_of

# These sections must be equal. The layout, schedule, ZeRO stage and size of a micro-batch may change.
SECTIONS = ("plan.model", "plan.batch", "plan.precision", "plan.optimizer", "data")
# Fields of `training` that may change when a training is resumed.
CHANGEABLE_TRAINING = (
    "checkpoint_every",
    "keep_last",
    "keep_every",
    "milestones",
    "save",
    "save_failures",
    "validate_every",
    "evaluation",
    "validation_samples",
    "restarts",
    "supervision",
    "spikes",
    "profile",
)


# What else to do about a checkpoint of other work: a run's own, or one that training.start_from names, its weights or
# its state. Another --out would begin with the same one.
OWN = "another --out"
GIVEN = "begin with another checkpoint (training.start_from)"
STATE_GIVEN = f"{GIVEN}, or with its weights alone (training.start_with=weights)"


def recipe_of(training: Mapping[str, Any]) -> Tree:
    """Return the settings of a training that must not change when it is resumed. Its number of steps is one of them if
    the learning rate depends on it."""
    dropped = CHANGEABLE_TRAINING if ends_with_training(training) else (*CHANGEABLE_TRAINING, "steps")
    return {k: v for k, v in training.items() if k not in dropped}


def refuse_other_work(
    directory: Path, about: Mapping[str, Any], now: Mapping[str, Any], *, otherwise: str = OWN
) -> None:
    """Raise CheckpointError with every difference if a checkpoint is of another model, batch, dtype, seed or corpus.

    about: the checkpoint's manifest. now: `plan`, `seed` and `data` of this run, as a manifest holds them. otherwise:
    the remedy for a user who wants this work and no other.
    """
    found = differences({"seed": about.get("seed")}, {"seed": now.get("seed")})
    for path in SECTIONS:
        found += differences(_section(about, path), _section(now, path), f"{path}.")
    if found:
        raise CheckpointError(
            f"{directory} belongs to a different run; settings that differ (checkpoint -> this run):\n"
            f"{first_lines(found)}\n"
            f"use the same config, tokenizer and tokens, or {otherwise}"
        )


def refuse_other_recipe(directory: Path, about: Mapping[str, Any], training: TrainingConfig) -> None:
    """Raise CheckpointError with every difference if a run's own checkpoint was made under other settings. One that
    `save_state` wrote outside of a run has none. about: as in `refuse_other_work`.
    """
    there = about.get("training")
    found = differences(recipe_of(there), recipe_of(to_tree(training)), "training.") if there else []
    if found:
        raise CheckpointError(
            f"{directory} was made under other training settings, which must not change (checkpoint -> this run):\n"
            f"{first_lines(found)}\n"
            f"use the same ones, or begin another run, in another --out, with training.start_from={directory} and "
            f"training.start_with=state"
        )


def refuse_other_weights(directory: Path, about: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise CheckpointError if a new run cannot begin with a checkpoint's weights: it has another model, or another
    tokenizer if the checkpoint names one. about, now: as in `refuse_other_work`.
    """
    try:
        model = build(ModelShape, _section(about, "plan.model")).of_weights()
    except ConfigError as error:
        raise CheckpointError(f"{directory}: its plan has no model: {error}; {GIVEN}") from None
    there: Tree = {"plan": {"model": model}, "data": {}}
    here: Tree = {"plan": {"model": build(ModelShape, now["plan"]["model"]).of_weights()}, "data": {}}
    tokenizer = about.get("data", {}).get("tokenizer_sha256")
    if tokenizer:
        there["data"], here["data"] = (
            {"tokenizer_sha256": t} for t in (tokenizer, now["data"].get("tokenizer_sha256"))
        )
    refuse_other_work(directory, there, here, otherwise=GIVEN)


def refuse_other_state(directory: Path, there: Plan, here: Plan) -> None:
    """Raise CheckpointError if the state of a checkpoint's plan does not fit another plan."""
    was, now = (
        {
            "model": plan.model.of_weights(),
            "precision": {"weights": plan.precision.weights},
            "optimizer": to_tree(plan.optimizer),
        }
        for plan in (there, here)
    )
    found = differences(was, now, "plan.")
    if found:
        raise CheckpointError(
            f"{directory} holds the state of another model, precision or optimizer (there -> here):\n"
            f"{first_lines(found)}\n"
            f"restore it into a trainer of its own plan, or take its weights alone (training.state.begin_with)"
        )


def refuse_fewer_steps(directory: Path, done: int, training: TrainingConfig) -> None:
    """Raise ConfigError if a checkpoint has done more steps than the training is to do."""
    if done > training.steps:
        raise ConfigError(
            f"training.steps ({training.steps}) is below the {done} steps that {directory} has done; raise it, or "
            f"choose another --out"
        )


def refuse_no_steps_left(directory: Path, done: int, training: TrainingConfig) -> None:
    """Raise ConfigError if a training that starts from a checkpoint's state would have no step to do."""
    if done >= training.steps:
        raise ConfigError(
            f"training.steps ({training.steps}) are the steps of the whole training, and {directory} has done {done}: "
            f"none is left; raise it, or set training.start_with=weights to begin at step 0"
        )


def refuse_weights_alone(directory: Path, about: Mapping[str, Any]) -> None:
    """Raise CheckpointError if a checkpoint has no optimizer state, so that no training can continue from it."""
    if all(name.startswith(("weights/", "master/")) for name in about["tensors"]):
        raise CheckpointError(
            f"{directory} holds weights alone, and training.start_with=state takes moments too; set "
            f"training.start_with=weights"
        )


def refuse_cut_decay(directory: Path, about: Mapping[str, Any], training: TrainingConfig, plan: Plan) -> None:
    """ConfigError when a final decay, gone on with from a checkpoint's state, would have begun before it: the rate
    would jump into the middle of its fall. One that the checkpoint's own training had begun is gone on with."""
    if training.decay != "wsd":
        return
    if "tokens_seen" not in about:
        raise CheckpointError(f"{directory}: its manifest has no `tokens_seen`; {GIVEN}")
    seen, (begin, end) = int(about["tokens_seen"]), decay_of(training, last_tokens_of(training, plan))
    there = about.get("training") or {}
    asked = ("decay", "decay_tokens", "final_decay_tokens", "steps")
    was = training.model_copy(update={name: there.get(name) for name in asked})
    same = was.decay == "wsd" and decay_of(was, last_tokens_of(was, plan)) == (begin, end)
    if seen > begin and not same:
        raise ConfigError(
            f"training.final_decay_tokens ({training.final_decay_tokens}) begin at token {begin}, and {directory} has "
            f"seen {seen}: the learning rate would jump into the middle of its fall; lower them to "
            f"{max(0, end - seen)} at most, raise training.steps (or training.decay_tokens), or start from an earlier "
            f"checkpoint"
        )


def _section(tree: Mapping[str, Any], path: str) -> dict[str, Any]:
    for key in path.split("."):
        tree = tree.get(key) or {}
    return {k: v for k, v in tree.items() if k != "micro"}
