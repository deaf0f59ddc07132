"""Back to a checkpoint, and on without the samples of a spike; a crash at any moment loses neither."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trivium.checkpoint.durable import remove
from trivium.checkpoint.format import published, read_manifest
from trivium.errors import CheckpointError, DataError
from trivium.plan.batch import Batch
from trivium.training.record import Entry, entry, left_out_of, write_entries


def leave_out(
    folder: Path, entries: Sequence[Entry], batch: Batch, *, step: int, batches: int, cause: str
) -> None:
    """Record that the last `batches` batches up to `step` (counted from 0) are left out, for good."""
    before, last = left_out_of(entries), batch.at(step)
    first = batch.at(max(0, step + 1 - batches)).first_sample
    after = before.without(first, last.first_sample + last.sequences)
    write_entries(folder, [*entries, entry(step + 1, cause, before, after)])


def drop_abandoned(root: Path, entries: Sequence[Entry]) -> list[int]:
    """Delete the checkpoints that saw a sample which is left out by now; returns their steps.

    A damaged manifest is left for the loader to tell of. Without entries nothing is known, and nothing dropped.
    """
    if not entries:
        return []
    now, dropped = left_out_of(entries), []
    for path in published(root):
        try:
            manifest = read_manifest(path)
        except CheckpointError:
            continue
        then = left_out_of(manifest.get("left_out", ()))
        if then.before(manifest["samples"]) != now.before(manifest["samples"]):
            remove(path)
            dropped.append(int(manifest["step"]))
    return dropped


def refuse_other_order(directory: Path, manifest: Mapping[str, Any], entries: Sequence[Entry]) -> None:
    """DataError when a checkpoint saw samples that are left out by now; of a run's own, `drop_abandoned` left none."""
    seen = manifest["samples"]
    if left_out_of(manifest.get("left_out", ())).before(seen) != left_out_of(entries).before(seen):
        raise DataError(
            f"{directory} (training.start_from) saw samples that a rewind left out; begin with an earlier checkpoint, "
            f"or lower training.spikes.batches"
        )


def entries_in(manifest: dict[str, Any]) -> list[Entry]:
    """The entries that a checkpoint's manifest keeps."""
    return list(manifest.get("left_out", ()))
