"""Write a checkpoint such that a name that exists is complete.

Every rank writes its pieces into a temporary directory, hashes, syncs and reads them back. Then rank 0 writes the
manifest, syncs, renames the directory and syncs its parent; only then is the checkpoint acknowledged. A thread does
this while training continues; the ranks exchange their progress only when training calls `advance`. At a URL there is
no temporary directory (`in_store`).
"""

import json
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from trivium.checkpoint.agree import first_message, found_by_first, sums, wait_for_all
from trivium.checkpoint.durable import check_room, explained, write_text
from trivium.checkpoint.format import MANIFEST, manifest_of, manifest_text, step_name, step_of
from trivium.checkpoint.in_store import InStore, remove, remove_unfinished
from trivium.checkpoint.pieces import Part, write_parts
from trivium.comms.mesh import Mesh
from trivium.errors import CheckpointError
from trivium.kernels.crossing import fetched
from trivium.plan.parameters import Box
from trivium.provenance import sync_directory, unheard
from trivium.stores.remote import Location
from trivium.untrusted import read_json

ReadBack = Literal["always", "never", "by size"]
MOST_READ_BYTES = 1 << 30  # larger files are not read back by default


@dataclass(frozen=True)
class Fragment:
    """Values of a box of the unsplit tensor `name` of `shape`; `values` is contiguous and has the box's size."""

    name: str
    shape: tuple[int, ...]
    box: Box
    values: torch.Tensor

    def part(self) -> Part:
        """Return the part of a file that has these values."""
        return Part(self.name, self.shape, self.box, self.values.dtype, lambda: self.values)


def copies(fragments: Sequence[Fragment]) -> list[Fragment]:
    """Copy the values, so that later training does not change them."""
    values = fetched([f.values.detach() for f in fragments])
    return [replace(f, values=v) for f, v in zip(fragments, values, strict=True)]


def save(root: Location, step: int, fragments: Sequence[Fragment], mesh: Mesh, about: dict[str, Any]) -> Location:
    """Write and publish the checkpoint of a step. Collective; returns when it is durable.

    about: JSON data for the manifest (progress, config, hashes). If any rank fails, nothing is published, the
    temporary directory is removed, and every rank raises CheckpointError.
    """
    saving = Saving(root, step, fragments, mesh, about)
    saving.advance(wait=True)
    return saving.final


class Saving:
    """A save in progress. Every rank creates one and calls `advance` at the same places until it returns True."""

    def __init__(
        self,
        root: Location,
        step: int,
        fragments: Sequence[Fragment],
        mesh: Mesh,
        about: dict[str, Any],
        alive: Callable[[], None] = unheard,
        read_back: ReadBack = "by size",
    ) -> None:
        """Check that there is room, then start writing in a thread. The fragments must not change until the end.

        alive: a heartbeat, called while training waits for the save. read_back: whether written files are read again.
        """
        self.step, self.final = step, root / step_name(step)
        self._files = OnDisk(self.final, read_back) if isinstance(self.final, Path) else InStore(self.final)
        self._fragments, self._mesh, self._about = fragments, mesh, about
        self._cancelled, self._alive, self._awaited = threading.Event(), alive, False
        self.bytes = int(sums([sum(f.values.nbytes for f in fragments)], mesh)[0])
        self._phases: list[Callable[[], None]] = [self._write, self._publish]
        self._start(self._prepare)
        self._is_phase_over(wait=True)
        self._start(self._phases.pop(0))

    def advance(self, *, wait: bool = False) -> bool:
        """Return whether the checkpoint is published and durable, on all ranks.

        wait: return only then. Raises CheckpointError on every rank if one failed; the partial files are removed.
        """
        while True:
            if self._is_phase_over(wait=wait):
                if not self._phases:
                    return True
                self._start(self._phases.pop(0))
            if not wait:
                return False

    def _start(self, phase: Callable[[], None]) -> None:
        self._problem = ""
        self._thread = threading.Thread(target=self._attempt, args=(phase,), daemon=True, name="checkpoint")
        self._thread.start()

    def _attempt(self, phase: Callable[[], None]) -> None:
        try:
            phase()
        except Exception as error:  # Every rank must reach the collective that follows.
            self._problem = explained(error, self.final.parent, self.bytes)

    def _is_phase_over(self, *, wait: bool) -> bool:
        """Return whether all ranks have finished the current phase; raise CheckpointError if one failed."""
        if wait:
            self._wait()
        finished = not self._thread.is_alive()
        problem = self._problem if finished else ""
        ranks_finished, ranks_failed = sums([finished, bool(problem)], self._mesh)
        if ranks_failed:
            self._give_up(problem)
        return ranks_finished == self._mesh.layout.world_size

    def _wait(self) -> None:
        self._awaited = True
        wait_for_all(self._thread, self._mesh, self._alive)
        self._awaited = False

    def _heartbeat(self) -> None:
        """Report progress of the thread only if training waits for it: otherwise it would hide a training that
        hangs."""
        if self._awaited:
            self._alive()

    def _give_up(self, problem: str) -> None:
        """Raise CheckpointError after removing the files. problem: this rank's error, or "" if others failed."""
        self._cancelled.set()
        self._wait()
        told = first_message(problem, self._mesh)  # After this, no rank uses the files any more.
        found_by_first(self._files.clear, self._mesh, CheckpointError)
        raise CheckpointError(f"checkpoint {self.final} was not saved: {told}")

    def _prepare(self) -> None:
        if self._mesh.rank == 0:
            self._files.prepare(self.bytes)

    def _write(self) -> None:
        parts = [fragment.part() for fragment in self._fragments]
        self._files.write(self._mesh.rank, parts, self._cancelled.is_set, self._heartbeat)
        self._fragments = []  # Their memory is free as soon as they are written.

    def _publish(self) -> None:
        if self._mesh.rank == 0:
            self._files.publish({"step": self.step, **self._about}, self._mesh.layout.world_size)


class OnDisk:
    """The files of a checkpoint that is being written to a folder, in a temporary one beside it."""

    def __init__(self, final: Path, read_back: ReadBack) -> None:
        self._read_back: ReadBack = read_back
        self._final, self._partial = final, final.with_name(f".{final.name}.partial")

    def prepare(self, needed: int) -> None:
        """Make an empty folder that has room for `needed` bytes. On the first rank, before all else."""
        root = self._final.parent
        if not root.is_dir():
            root.mkdir(parents=True)
            sync_directory(root.parent)
        self.clear()
        check_room(root, needed)
        self._partial.mkdir()

    def write(self, rank: int, parts: Sequence[Part], cancelled: Callable[[], bool], alive: Callable[[], None]) -> None:
        """Write a rank's pieces into one file, and a description of them for the manifest."""
        size = sum(part.bytes for part in parts)
        reads = self._read_back == "always" or (self._read_back == "by size" and size <= MOST_READ_BYTES)
        described = write_parts(self._partial, rank, parts, cancelled, alive, read_back=reads)
        write_text(self._partial / f"part-{rank:05d}.json", json.dumps(described))

    def publish(self, about: dict[str, Any], ranks: int) -> None:
        """Publish the checkpoint that all ranks have written. On the first rank."""
        paths = [self._partial / f"part-{rank:05d}.json" for rank in range(ranks)]
        files = [read_json(path) for path in paths]
        for path in paths:
            path.unlink()
        publish(self._partial, self._final, about, files)

    def clear(self) -> None:
        """Delete what was written. On the first rank, when no rank writes any more."""
        shutil.rmtree(self._partial, ignore_errors=True)


def publish(partial: Path, final: Path, about: dict[str, Any], files: Sequence[dict[str, Any]]) -> None:
    """Write the manifest of a complete temporary directory and rename it; returns when both are on disk.

    files: see `write_manifest`. An existing checkpoint of that name is moved aside before; `recover` restores it after
    a crash in between. Only for the job that holds the run directory.
    """
    write_manifest(partial, about, files)
    sync_directory(partial)
    replaced = final.with_name(f".{final.name}.replaced")
    if final.exists():
        final.rename(replaced)
    partial.rename(final)
    sync_directory(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def write_manifest(partial: Path, about: dict[str, Any], files: Sequence[dict[str, Any]]) -> None:
    """Write the manifest of a checkpoint. files: see `manifest_of`."""
    write_text(partial / MANIFEST, manifest_text(manifest_of(about, files)))


def recover(root: Location) -> None:
    """Remove or restore what a crash left under `root`. Only for the job that holds the run directory. In a store
    it does nothing: the next save of a step uses the files that are there."""
    if not isinstance(root, Path) or not root.is_dir():
        return
    for path in sorted(root.glob(".step-*")):
        name, _, kind = path.name.removeprefix(".").partition(".")
        if step_of(name) is None or kind not in ("partial", "replaced", "removed"):
            continue
        if kind == "replaced" and not (root / name).exists():
            path.rename(root / name)
        else:
            shutil.rmtree(path, ignore_errors=True)
    sync_directory(root)


def prune(root: Location, doomed: Sequence[Location], newest: Location) -> None:
    """Delete checkpoints if `newest` is published, whose files were read back when they were written; in a store also
    what saves left unfinished before it."""
    if doomed and not (newest / MANIFEST).is_file():
        raise CheckpointError(f"{newest} is not published; {len(doomed)} older checkpoints under {root} are kept")
    for place in doomed:
        remove(place)
    if not isinstance(root, Path):
        remove_unfinished(root, newest.name)
