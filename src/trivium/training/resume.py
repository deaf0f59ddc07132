"""Finds the state that a training starts from: its newest good checkpoint, a given checkpoint, or initial weights."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trivium.checkpoint.agree import found_by_first
from trivium.checkpoint.format import published, read_manifest
from trivium.checkpoint.in_store import remove
from trivium.checkpoint.load import Checkpoint, newest_good
from trivium.comms.mesh import Mesh
from trivium.errors import CheckpointError, ConfigError, DataError, TriviumError
from trivium.stores.remote import Location
from trivium.training.config import TrainingConfig
from trivium.training.metrics import warn
from trivium.training.record import (
    LEFT_OUT,
    Entry,
    entries_of,
    left_out_of,
    refuse_given,
    refuse_other_recipe,
    refuse_other_work,
)


class Start(NamedTuple):
    """The start of a training.

    state: the checkpoint whose full state is restored. weights: the checkpoint of which only the weights are read.
    Without either, weights are initialized. entries: the samples that rewinds skipped; entries_are_new: they come from
    the checkpoint, because the run has no record of its own. abandoned: names of checkpoints to delete once the state
    is restored.
    """

    state: Checkpoint | None
    weights: Checkpoint | None
    entries: list[Entry]
    entries_are_new: bool
    abandoned: list[str]


def find_start(
    out: Path,
    root: Location,
    config: TrainingConfig,
    mesh: Mesh,
    identity: Mapping[str, Any],
    alive: Callable[[], None],
    back: Checkpoint | None = None,
) -> Start:
    """Return what the run in `out` continues from; every rank calls this.

    root: the directory of its checkpoints. identity: see `loop.identity_of`. back: the checkpoint of a rewind. Raises
    CheckpointError if a checkpoint is of other work, and ConfigError if it has done too many steps.
    """
    entries: list[Entry] = found_by_first(lambda: entries_of(out), mesh, DataError)
    abandoned: list[str] = found_by_first(lambda: abandoned_in(root, entries), mesh, TriviumError)
    state = back or newest_not_abandoned(root, mesh, alive, abandoned)
    weights: Checkpoint | None = None
    if state is not None:
        refuse_other_work(state.directory, state.manifest, identity)
        refuse_other_recipe(state.directory, state.manifest, config)
    elif config.start_from is not None:
        given = Checkpoint.open_together(config.start_from, mesh, alive)
        refuse_given(given.directory, given.manifest, identity, config)
        state, weights = (given, None) if config.start_with == "state" else (None, given)
    brought = [] if entries or state is None else list(state.manifest.get("left_out", ()))
    entries += brought  # entries of a checkpoint that was copied here without its run
    if state is not None:
        refuse_other_order(state.directory, state.manifest, entries)
        if state.step > config.steps:
            raise ConfigError(
                f"training.steps ({config.steps}) is below the {state.step} steps that {state.directory} has done; "
                f"raise it, or choose another --out"
            )
    return Start(state, weights, entries, bool(brought), abandoned)


def abandoned_in(root: Location, entries: Sequence[Entry]) -> list[str]:
    """Return the names of the checkpoints that saw a sample that was skipped later. A damaged manifest is ignored: the
    loader reports it."""
    if not entries:
        return []
    abandoned = []
    for path in published(root):
        try:
            if not same_order(path, read_manifest(path), entries):
                abandoned.append(path.name)
        except CheckpointError:
            continue
    return abandoned


def same_order(directory: Location, manifest: Mapping[str, Any], entries: Sequence[Entry]) -> bool:
    """Whether a checkpoint saw no sample that the entries skip. Raises CheckpointError if its manifest does not tell
    how many samples it saw."""
    if "samples" not in manifest:
        raise CheckpointError(f"{directory}: its manifest has no `samples`; use an older checkpoint")
    seen = int(manifest["samples"])
    return left_out_of(manifest.get("left_out", ())).before(seen) == left_out_of(entries).before(seen)


def newest_not_abandoned(
    root: Location, mesh: Mesh, alive: Callable[[], None], abandoned: Sequence[str]
) -> Checkpoint | None:
    """Return the newest good checkpoint that is not abandoned, if there is one."""
    try:
        return newest_good(root, mesh, warn, alive, abandoned)
    except CheckpointError as error:
        if not abandoned:
            raise
        raise CheckpointError(
            f"{error}, or restore one, or delete {root.parent / LEFT_OUT} to resume from {abandoned[-1]}, which saw "
            f"samples that a rewind left out, as if there had been no rewind"
        ) from None


def drop_abandoned(root: Location, names: Sequence[str]) -> None:
    """Delete abandoned checkpoints. Call this only when the state that training continues from is restored."""
    for name in names:
        remove(root / name)


def refuse_other_order(directory: Location, manifest: Mapping[str, Any], entries: Sequence[Entry]) -> None:
    """Raise DataError if a given checkpoint saw samples that were skipped later."""
    if not same_order(directory, manifest, entries):
        raise DataError(
            f"{directory} (training.start_from) saw samples that a rewind left out; begin with an earlier checkpoint, "
            f"or lower training.spikes.batches"
        )
