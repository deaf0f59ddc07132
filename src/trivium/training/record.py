"""The records of a training, and the test whether a checkpoint belongs to it. This module does not import torch.

run.json       plan, training config, seed, and the directory of the tokens
left_out.json  each rewind: its step, its cause, and the gaps that it leaves in the order of the samples
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trivium.checkpoint.lease import LEASE
from trivium.config import Tree, build, differences, first_lines, to_tree
from trivium.errors import CheckpointError, ConfigError, DataError
from trivium.plan.model_shape import ModelShape
from trivium.plan.plan import Plan
from trivium.provenance import write_json
from trivium.stores.remote import Location, Remote
from trivium.tokens.left_out import LeftOut
from trivium.tokens.samples import TokenDataset
from trivium.training.config import TrainingConfig
from trivium.training.metrics import METRICS, records
from trivium.training.rates import decay_of, ends_with_training, last_tokens_of
from trivium.untrusted import read_json

RUN, LEFT_OUT, CHECKPOINTS = "run.json", "left_out.json", "checkpoints"
RECORDS = "records"  # at the URL of a store: a copy of the records
CURATED = "curated"  # in a run directory, like `tokens` and `training`
Entry = dict[str, Any]  # step, cause, gaps: [[first, stop], …]
# Fields of `plan` that may change when a training is resumed.
CHANGEABLE_PLAN = (
    "layout",
    "schedule",
    "rows",
    "partition",
    "zero",
    "recompute",
    "offload",
    "sequence_parallel",
    "context_attention",
    "row_chunks",
    "overlap_tensor",
    "compiled",
    "cuda_graphs",
)
# Sections of a checkpoint's manifest that must equal those of the run.
SECTIONS = (*(f"plan.{name}" for name in Plan.model_fields if name not in CHANGEABLE_PLAN), "data")
# Fields of `training` that may change when a training is resumed.
CHANGEABLE_TRAINING = (
    "fastest_after",
    "checkpoint_every",
    "store",
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
    "near",
    "read_back",
    "profile",
)


@dataclass(frozen=True)
class Record:
    """A training, with everything needed to reproduce one of its steps."""

    folder: Path
    tokens: Path
    plan: Plan
    training: TrainingConfig
    seed: int
    entries: tuple[Entry, ...]

    @cached_property
    def data(self) -> TokenDataset:
        """The training samples, without those that rewinds skipped."""
        data = TokenDataset.open(self.tokens, "train", sequence=self.plan.model.sequence, seed=self.seed)
        return data.leaving_out(left_out_of(self.entries))

    @property
    def curated(self) -> Path | None:
        """The curated corpus of the tokens: next to the tokens or, if they were moved, next to the training."""
        candidates = (self.tokens.absolute().parent / CURATED, self.folder.parent / CURATED)
        return next((folder for folder in candidates if folder.is_dir()), None)

    def logged(self) -> Iterator[dict[str, Any]]:
        """Yield the metrics of each step, in the order of the file. Steps are numbered from 1."""
        return (m for m in records(self.folder / METRICS) if "step" in m and "sequences" in m)

    def logged_of(self, step: int) -> dict[str, Any]:
        """Return the metrics of one step; empty if there are none."""
        return next((m for m in self.logged() if m["step"] == step), {})

    @cached_property
    def last_logged(self) -> dict[str, Any]:
        """The metrics of the last step; empty if there are none."""
        return max(self.logged(), key=lambda m: m["step"], default={})

    @property
    def steps_done(self) -> int:
        return int(self.last_logged.get("step", 0))


def checkpoints_of(folder: Path, store: str | None) -> Location:
    """Return the place of the checkpoints of the training in `folder`. store: the URL of `training.store`."""
    return folder / CHECKPOINTS if store is None else Remote(store) / CHECKPOINTS


def records_in(folder: Path) -> list[str]:
    """Return the names of the records of the training in `folder`: its small files but for the lease."""
    return sorted(p.name for p in folder.glob("[a-z]*.json*") if p.is_file() and p.name != LEASE)


def write_record(record: Record) -> None:
    """Write run.json. The entries have a separate file."""
    tree = {
        "plan": to_tree(record.plan),
        "training": to_tree(record.training),
        "seed": record.seed,
        "tokens": str(record.tokens.resolve()),
    }
    write_json(record.folder / RUN, tree)


def read_record(folder: Path, tokens: Path | None = None) -> Record:
    """Read the record of the training in `folder`; raises DataError if there is none.

    tokens: the directory of the token shards, if they were moved.
    """
    path = folder / RUN
    try:
        tree = read_json(path)
        plan, training = build(Plan, tree["plan"]), build(TrainingConfig, tree["training"])
        recorded, seed = Path(tree["tokens"]), int(tree["seed"])
    except FileNotFoundError:
        raise DataError(f"{path} is missing: no training began there; name a run directory") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({error!r}); run `trivium train` again to write it") from None
    tokens = tokens or (recorded if recorded.is_dir() else folder.parent / "tokens")
    return Record(folder, tokens, plan, training, seed, tuple(entries_of(folder)))


def entries_of(folder: Path) -> list[Entry]:
    """Return the entries of left_out.json, one for each rewind; empty without the file."""
    path = folder / LEFT_OUT
    if not path.is_file():
        return []
    try:
        entries: list[Entry] = read_json(path)
        left_out_of(entries)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is damaged ({error!r}); without it the order of samples is unknown: restore it, or delete it to "
            f"take it from the newest checkpoint"
        ) from None
    return entries


def write_entries(folder: Path, entries: Sequence[Entry]) -> None:
    """Write left_out.json durably."""
    write_json(folder / LEFT_OUT, list(entries))


def left_out_of(entries: Iterable[Entry]) -> LeftOut:
    """Return all gaps of the entries."""
    return LeftOut((gap[0], gap[1]) for entry in entries for gap in entry["gaps"])


def entry(step: int, cause: str, before: LeftOut, after: LeftOut) -> Entry:
    """Return an entry with the gaps of `after` that are not in `before`."""
    old = {place for gap in before.gaps for place in range(*gap)}
    new = LeftOut((p, p + 1) for gap in after.gaps for p in range(*gap) if p not in old)
    return {"step": step, "cause": cause, "gaps": [list(gap) for gap in new.gaps]}


# Remedies for a checkpoint of other work: the run's own, or one named by training.start_from, as another --out would
# start from that one again.
OWN = "another --out"
GIVEN = "begin with another checkpoint (training.start_from)"
STATE_GIVEN = f"{GIVEN}, or with its weights alone (training.start_with=weights)"


def recipe_of(training: Mapping[str, Any]) -> Tree:
    """Return the settings of a training that must not change when it is resumed. The number of steps is one of them
    if the learning rate depends on it."""
    dropped = {*CHANGEABLE_TRAINING} if ends_with_training(training) else {*CHANGEABLE_TRAINING, "steps"}
    return {k: v for k, v in training.items() if k not in dropped}


def refuse_other_work(
    directory: Location, about: Mapping[str, Any], now: Mapping[str, Any], *, otherwise: str = OWN
) -> None:
    """Raise CheckpointError with every difference if a checkpoint is of another seed, or differs in `SECTIONS`.

    about: the checkpoint's manifest. now: `plan`, `seed` and `data` of this run, as in a manifest. otherwise: the
    remedy for a user who wants to keep the settings of this run.
    """
    found = differences({"seed": about.get("seed")}, {"seed": now.get("seed")})
    for path in SECTIONS:
        was, wanted = (lasting_section(_section(tree, path), now["plan"]) for tree in (about, now))
        found += differences(was, wanted, f"{path}.")
    if found:
        raise CheckpointError(
            f"{directory} belongs to a different run; settings that differ (checkpoint -> this run):\n"
            f"{first_lines(found)}\n"
            f"use the same config, tokenizer and tokens, or {otherwise}"
        )


def refuse_other_recipe(directory: Location, about: Mapping[str, Any], training: TrainingConfig) -> None:
    """Raise CheckpointError with every difference if a run's own checkpoint was written under other settings. A
    checkpoint of `save_state` has no settings."""
    recorded = about.get("training")
    found = differences(recipe_of(recorded), recipe_of(to_tree(training)), "training.") if recorded else []
    if found:
        raise CheckpointError(
            f"{directory} was made under other training settings, which must not change (checkpoint -> this run):\n"
            f"{first_lines(found)}\n"
            f"use the same ones, or begin another run, in another --out, with training.start_from={directory} and "
            f"training.start_with=state"
        )


def refuse_other_weights(directory: Location, about: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise CheckpointError if a new run cannot start from a checkpoint's weights: it has another model, or another
    tokenizer if the checkpoint names one."""
    try:
        model = build(ModelShape, _section(about, "plan.model")).of_weights()
    except ConfigError as error:
        raise CheckpointError(f"{directory}: its plan has no model: {error}; {GIVEN}") from None
    there: Tree = {"plan": {"model": model}, "data": {}}
    own = build(ModelShape, now["plan"]["model"])
    if not model["adapters"]:  # the weights of a model fit its adapted form
        own = own.model_copy(update={"adapters": ()})
    here: Tree = {"plan": {"model": own.of_weights()}, "data": {}}
    if about.get("data", {}).get("tokenizer_sha256"):
        for tree, source in ((there, about), (here, now)):
            tree["data"] = {"tokenizer_sha256": source["data"].get("tokenizer_sha256")}
    refuse_other_work(directory, there, here, otherwise=GIVEN)


def refuse_other_state(directory: Location, there: Plan, here: Plan) -> None:
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


def refuse_weights_alone(directory: Location, about: Mapping[str, Any]) -> None:
    """Raise CheckpointError if a checkpoint has no optimizer state, so that no training can continue from it."""
    if all(name.startswith(("weights/", "master/")) for name in about["tensors"]):
        raise CheckpointError(
            f"{directory} holds weights alone, and training.start_with=state takes moments too; set "
            f"training.start_with=weights"
        )


def refuse_given(
    directory: Location, about: Mapping[str, Any], now: Mapping[str, Any], training: TrainingConfig
) -> None:
    """Raise if a new run cannot start from the checkpoint of `training.start_from`."""
    if training.start_with == "weights":
        refuse_other_weights(directory, about, now)
        return
    refuse_other_work(directory, about, now, otherwise=STATE_GIVEN)
    refuse_weights_alone(directory, about)
    done = int(about["step"])
    if done >= training.steps:
        raise ConfigError(
            f"training.steps ({training.steps}) are the steps of the whole training, and {directory} has done {done}: "
            f"none is left; raise it, or set training.start_with=weights to begin at step 0"
        )
    if training.decay == "wsd":
        _refuse_cut_decay(directory, about, training, build(Plan, now["plan"]))


def _refuse_cut_decay(directory: Location, about: Mapping[str, Any], training: TrainingConfig, plan: Plan) -> None:
    """Raise ConfigError if the final decay would have begun before the checkpoint's state: the learning rate would
    jump. A decay that the checkpoint's own training had begun is continued."""
    if "tokens_seen" not in about:
        raise CheckpointError(f"{directory}: its manifest has no `tokens_seen`; {GIVEN}")
    seen, decay = int(about["tokens_seen"]), decay_of(training, last_tokens_of(training, plan))
    recorded = about.get("training") or {}
    fields = ("decay", "decay_tokens", "final_decay_tokens", "steps")
    was = training.model_copy(update={name: recorded.get(name) for name in fields})
    continued = was.decay == "wsd" and decay_of(was, last_tokens_of(was, plan)) == decay
    if seen > decay.begin and not continued:
        raise ConfigError(
            f"training.final_decay_tokens ({training.final_decay_tokens}) begin at token {decay.begin}, and "
            f"{directory} has seen {seen}: the learning rate would jump into the middle of its fall; lower them to "
            f"{max(0, decay.end - seen)} at most, raise training.steps (or training.decay_tokens), or start from an "
            f"earlier checkpoint"
        )


def _section(tree: Mapping[str, Any], path: str) -> dict[str, Any]:
    for key in path.split("."):
        tree = tree.get(key) or {}
    return dict(tree)


def lasting_section(section: Mapping[str, Any], plan: Tree) -> dict[str, Any]:
    """Return a section of a plan without the size of a micro-batch, which may change in a training if the loss does not
    depend on it."""
    if "micro" in section:
        with suppress(ConfigError):  # a plan of other code, whose differences are told
            if build(Plan, plan).micro_changes_loss:
                return dict(section)
    return {k: v for k, v in section.items() if k != "micro"}
