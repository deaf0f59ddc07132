"""Where a training starts: its newest good checkpoint, a checkpoint that the config names, or the beginning."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trivium.checkpoint.agree import found_by_first
from trivium.checkpoint.durable import remove
from trivium.checkpoint.format import published, read_manifest
from trivium.checkpoint.load import Checkpoint, newest_good
from trivium.comms.mesh import Mesh
from trivium.errors import CheckpointError, DataError, TriviumError
from trivium.training.config import TrainingConfig
from trivium.training.metrics import warn
from trivium.training.record import LEFT_OUT, Entry, entries_of, left_out_of
from trivium.training.same_work import (
    STATE_GIVEN,
    refuse_fewer_steps,
    refuse_no_steps_left,
    refuse_other_recipe,
    refuse_other_weights,
    refuse_other_work,
)


class Start(NamedTuple):
    """What a training continues from.

    state: the checkpoint whose state it takes. weights: the one of which it takes the weights alone. Without either the
    weights are drawn. entries: the samples that rewinds left out; entries_are_new: read from the checkpoint, because
    the run has no record of its own. abandoned: names of checkpoints to delete once the state is loaded.
    """

    state: Checkpoint | None
    weights: Checkpoint | None
    entries: list[Entry]
    entries_are_new: bool
    abandoned: list[str]


def find_start(
    out: Path,
    root: Path,
    config: TrainingConfig,
    mesh: Mesh,
    identity: Mapping[str, Any],
    alive: Callable[[], None],
    back: Checkpoint | None = None,
) -> Start:
    """Return what the run in `out` continues from; every rank calls this.

    root: where its checkpoints are. identity: of this work. back: the checkpoint of a rewind. Raises CheckpointError if
    a checkpoint is of other work, and ConfigError if it has done too many steps.
    """
    entries: list[Entry] = found_by_first(lambda: entries_of(out), mesh, DataError)
    abandoned: list[str] = found_by_first(lambda: abandoned_in(root, entries), mesh, TriviumError)
    own = back or newest_not_abandoned(root, mesh, alive, abandoned)
    state = own or _given("state", config, mesh, identity, alive)
    brought = [] if entries or state is None else list(state.manifest.get("left_out", ()))
    entries += brought  # a checkpoint that was copied here without its run
    weights = _given("weights", config, mesh, identity, alive) if state is None else None
    if own is not None:  # a state that is given may have another recipe
        refuse_other_work(own.directory, own.manifest, identity)
        refuse_other_recipe(own.directory, own.manifest, config)
    if state is not None:
        refuse_other_order(state.directory, state.manifest, entries)
        refuse_fewer_steps(state.directory, state.step, config)
    return Start(state, weights, entries, bool(brought), abandoned)


def _given(
    what: str, config: TrainingConfig, mesh: Mesh, identity: Mapping[str, Any], alive: Callable[[], None]
) -> Checkpoint | None:
    """Return the checkpoint of `training.start_from`, if `what` of it is what a new run starts with."""
    if config.start_from is None or config.start_with != what:
        return None
    given = Checkpoint.open_together(Path(config.start_from), mesh, alive)
    if what == "weights":
        refuse_other_weights(given.directory, given.manifest, identity)
    else:
        refuse_other_work(given.directory, given.manifest, identity, otherwise=STATE_GIVEN)
        refuse_no_steps_left(given.directory, given.step, config)
    return given


def abandoned_in(root: Path, entries: Sequence[Entry]) -> list[str]:
    """Return the names of the checkpoints that saw a sample which is left out by now.

    A damaged manifest is skipped: the loader reports it. Without entries no checkpoint is abandoned.
    """
    if not entries:
        return []
    now, found = left_out_of(entries), []
    for path in published(root):
        try:
            manifest = read_manifest(path)
            seen = samples_in(path, manifest)
        except CheckpointError:
            continue
        if left_out_of(manifest.get("left_out", ())).before(seen) != now.before(seen):
            found.append(path.name)
    return found


def newest_not_abandoned(
    root: Path, mesh: Mesh, alive: Callable[[], None], abandoned: Sequence[str]
) -> Checkpoint | None:
    """Return the checkpoint to start from, if there is one."""
    try:
        return newest_good(root, mesh, warn, alive, abandoned)
    except CheckpointError as error:
        if not abandoned:
            raise
        raise CheckpointError(
            f"{error}, or restore one, or delete {root.parent / LEFT_OUT} to go on from {abandoned[-1]}, which saw "
            f"samples that a rewind left out, as if that had not been"
        ) from None


def drop_abandoned(root: Path, names: Sequence[str]) -> None:
    """Delete abandoned checkpoints. Call this only when the state that training continues from is loaded."""
    for name in names:
        remove(root / name)


def refuse_other_order(directory: Path, manifest: Mapping[str, Any], entries: Sequence[Entry]) -> None:
    """Raise DataError if a checkpoint saw samples that are left out by now. A run's own ones are `abandoned_in` it."""
    seen = samples_in(directory, manifest)
    if left_out_of(manifest.get("left_out", ())).before(seen) != left_out_of(entries).before(seen):
        raise DataError(
            f"{directory} (training.start_from) saw samples that a rewind left out; begin with an earlier checkpoint, "
            f"or lower training.spikes.batches"
        )


def samples_in(directory: Path, manifest: Mapping[str, Any]) -> int:
    """Return the number of samples that a checkpoint has seen. Raises CheckpointError if its manifest lacks it."""
    if "samples" not in manifest:
        raise CheckpointError(f"{directory}: its manifest has no `samples`; use an older checkpoint")
    return int(manifest["samples"])
