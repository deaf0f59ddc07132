"""Whether a checkpoint belongs to this work: resuming another's would silently mix the two."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trivium.config import Config, Tree, build, completed, differences, first_lines, to_tree
from trivium.errors import CheckpointError, ConfigError
from trivium.plan.batch import Batch
from trivium.plan.model_shape import ModelShape
from trivium.plan.optimizer import Optimizer
from trivium.plan.plan import Plan
from trivium.plan.precision import Precision
from trivium.provenance import LOCK
from trivium.training.config import TrainingConfig
from trivium.training.rates import decay_of, ends_with_training, last_tokens_of

# What is compared. How the work is divided may change: layout, schedule, ZeRO stage, size of a micro-batch.
SECTIONS: Mapping[str, type[Config] | None] = {
    "plan.model": ModelShape,
    "plan.batch": Batch,
    "plan.precision": Precision,
    "plan.optimizer": Optimizer,
    "data": None,
}
# What of a recipe may change between two parts of one training: how often it is looked at, and what follows a fault.
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
    """Of the settings of a training, stored maybe by an older version, those that it is never continued without; its
    steps are one where the learning rate depends on them."""
    whole = completed(TrainingConfig, training)
    dropped = CHANGEABLE_TRAINING if ends_with_training(whole) else (*CHANGEABLE_TRAINING, "steps")
    # Older versions took any final rate where none is ever reached.
    idle = ("lr_final_fraction",) if whole.get("decay") == "constant" else ()
    return {k: v for k, v in whole.items() if k not in (*dropped, *idle)}


def refuse_other_work(
    directory: Path, about: Mapping[str, Any], now: Mapping[str, Any], *, otherwise: str = OWN
) -> None:
    """CheckpointError with every difference when a checkpoint is of another model, batch, dtype, seed or corpus.

    about: the checkpoint's manifest. now: `plan`, `seed` and `data` of this run, as a manifest holds them. A section
    that neither has is not compared; fields that a checkpoint of an older version lacks have their defaults.
    otherwise: what to do who wants this work and no other.
    """
    found = differences({"seed": about.get("seed")}, {"seed": now.get("seed")})
    for path, kind in SECTIONS.items():
        there, here = _section(about, path, kind), _section(now, path, kind)
        if "blend" not in there:  # older versions did not say which it was
            here.pop("blend", None)
        found += differences(there, here, f"{path}.")
    if found:
        raise CheckpointError(
            f"{directory} was written by other work (there -> here):\n{first_lines(found)}\n"
            f"use the same config, tokenizer and tokens, or {otherwise}"
        )


def refuse_other_recipe(directory: Path, about: Mapping[str, Any], training: TrainingConfig) -> None:
    """CheckpointError with every difference when a run's own checkpoint was made under another recipe; one that
    `save_state` wrote, outside a run, tells of none. about: as in `refuse_other_work`.
    """
    there = about.get("training")
    found = differences(recipe_of(there), recipe_of(to_tree(training)), "training.") if there else []
    if found:
        raise CheckpointError(
            f"{directory} was made under another recipe (there -> here), and a training keeps its own:\n"
            f"{first_lines(found)}\n"
            f"use the same one, or begin a run of its own, in another --out, with training.start_from={directory} and "
            f"training.start_with=state"
        )


def refuse_other_weights(directory: Path, about: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """CheckpointError when a new run cannot begin with a checkpoint's weights: another model, or another tokenizer
    where the checkpoint names one. about, now: as in `refuse_other_work`.
    """
    try:
        model = build(ModelShape, _section(about, "plan.model", None)).of_weights()
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
    """CheckpointError when weights, masters and moments of a checkpoint's plan are not those of another plan."""
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
    """ConfigError when a checkpoint has done more steps than the whole training is to do."""
    if done > training.steps:
        raise ConfigError(
            f"training.steps ({training.steps}) is below the {done} steps that {directory} has done; raise it, or "
            f"choose another --out"
        )


def refuse_no_steps_left(directory: Path, done: int, training: TrainingConfig) -> None:
    """ConfigError when a training that takes a checkpoint's state would have no step to do."""
    if done >= training.steps:
        raise ConfigError(
            f"training.steps ({training.steps}) are the steps of the whole training, and {directory} has done {done}: "
            f"none is left; raise it, or set training.start_with=weights to begin at step 0"
        )


def refuse_weights_alone(directory: Path, about: Mapping[str, Any]) -> None:
    """CheckpointError when a checkpoint has no moments, so that no training can go on with its state."""
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
    there = completed(TrainingConfig, about.get("training") or {})
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


def _section(tree: Mapping[str, Any], path: str, kind: type[Config] | None) -> dict[str, Any]:
    for key in path.split("."):
        tree = tree.get(key) or {}
    whole = completed(kind, tree) if kind and tree else tree
    if whole.get("files"):  # of the tokens, among which older versions counted the lock of the writing
        whole = {**whole, "files": {k: v for k, v in whole["files"].items() if k != LOCK}}
    return {k: v for k, v in whole.items() if k != "micro"}
