"""Back to a checkpoint, and on without the samples of a spike; a crash at any moment loses neither."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trivium.checkpoint.agree import found_by_first
from trivium.checkpoint.durable import remove
from trivium.checkpoint.format import published, read_manifest, step_of
from trivium.errors import CheckpointError, DataError, TriviumError
from trivium.parallel.mesh import Mesh
from trivium.plan.batch import Batch
from trivium.training.config import TrainingConfig
from trivium.training.metrics import EVENTS, read, warn
from trivium.training.record import Entry, entry, left_out_of, write_entries


def leave_out(
    mesh: Mesh,
    folder: Path,
    root: Path,
    entries: Sequence[Entry],
    batch: Batch,
    *,
    step: int,
    config: TrainingConfig,
    cause: str,
) -> None:
    """Record that the last `spikes.batches` batches up to `step` (counted from 0) are left out, for good; every rank
    must ask. DataError, and nothing recorded, where no state from before them is left.

    folder: where the record and the events are. root: where the checkpoints are.
    """
    found_by_first(lambda: refuse_no_way_back(folder, root, config, step), mesh, DataError)
    before, last = left_out_of(entries), batch.at(step)
    first = batch.at(max(0, step + 1 - config.spikes.batches)).first_sample
    after = before.without(first, last.first_sample + last.sequences)
    now = [*entries, entry(step + 1, cause, before, after)]
    found_by_first(lambda: write_entries(folder, now), mesh, TriviumError)


def refuse_no_way_back(folder: Path, root: Path, config: TrainingConfig, step: int) -> None:
    """DataError when the checkpoints that a rewind at `step` (counted from 0) could go back to were deleted since.

    To its own beginning a training goes back only where none so old was ever saved, and that is told.
    """
    batches = config.spikes.batches
    begin = max(0, step + 1 - batches)
    kept = [s for path in published(root) if (s := step_of(path.name)) is not None]
    if any(s <= begin for s in kept):
        return
    origin, saved = _origin(config), [e["step"] for e in read(folder / EVENTS) if e.get("event") == "saved"]
    if origin <= begin and not (kept and any(s <= begin for s in saved)):
        warn(f"{root} has no checkpoint of step {begin} or before: training begins again with step {origin}")
        return
    oldest = origin if origin > begin else min(kept)
    raise DataError(
        f"step {step + 1}: a rewind by training.spikes.batches ({batches}) needs the state after step {begin} or one "
        f"before, and the oldest left is that of step {oldest}; nothing was left out or deleted. Lower "
        f"training.spikes.batches to {step + 1 - oldest}, or set training.spikes.policy to skip, and run again"
    )


def _origin(config: TrainingConfig) -> int:
    """The steps done before a run's own first one."""
    if config.start_from is None or config.start_with != "state":
        return 0
    return int(read_manifest(Path(config.start_from))["step"])


def abandoned(root: Path, entries: Sequence[Entry]) -> list[str]:
    """The names of the checkpoints that saw a sample which is left out by now.

    A damaged manifest is left for the loader to tell of. Without entries nothing is known, and none is one.
    """
    if not entries:
        return []
    now, found = left_out_of(entries), []
    for path in published(root):
        try:
            manifest = read_manifest(path)
        except CheckpointError:
            continue
        then = left_out_of(manifest.get("left_out", ()))
        if then.before(manifest["samples"]) != now.before(manifest["samples"]):
            found.append(path.name)
    return found


def drop_abandoned(root: Path, names: Sequence[str]) -> None:
    """Delete them; only when training has the state that it goes on from."""
    for name in names:
        remove(root / name)


def refuse_other_order(directory: Path, manifest: Mapping[str, Any], entries: Sequence[Entry]) -> None:
    """DataError when a checkpoint saw samples that are left out by now; a run's own are `abandoned`."""
    seen = manifest["samples"]
    if left_out_of(manifest.get("left_out", ())).before(seen) != left_out_of(entries).before(seen):
        raise DataError(
            f"{directory} (training.start_from) saw samples that a rewind left out; begin with an earlier checkpoint, "
            f"or lower training.spikes.batches"
        )


def entries_in(manifest: dict[str, Any]) -> list[Entry]:
    """The entries that a checkpoint's manifest keeps."""
    return list(manifest.get("left_out", ()))
