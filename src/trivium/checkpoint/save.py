"""Write a checkpoint so that a name that exists is complete.

Temporary directory; every rank writes its pieces, hashing them, syncs them and reads them back; manifest; sync;
rename; sync of the parent; and only then acknowledged. The writing happens in a thread, so that training can go
on beside it; the ranks agree on how far it is only where training calls `advance`.
"""

import json
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trivium.checkpoint.agree import found_by_first, sums, told_by_first, wait_for_all
from trivium.checkpoint.durable import check_room, explained, remove, write_text
from trivium.checkpoint.format import FORMAT, MANIFEST, manifest_hash, manifest_text, step_name, step_of
from trivium.checkpoint.pieces import DTYPES, Entry, write_pieces
from trivium.comms.mesh import Mesh
from trivium.errors import CheckpointError
from trivium.kernels.crossing import fetched
from trivium.plan.parameters import Box
from trivium.provenance import sync_directory, unheard
from trivium.untrusted import read_json


@dataclass(frozen=True)
class Fragment:
    """Values of a box of the unsplit tensor `name` of `shape`; `values` is contiguous and has the box's size."""

    name: str
    shape: tuple[int, ...]
    box: Box
    values: torch.Tensor

    @property
    def bytes(self) -> int:
        return self.values.numel() * self.values.element_size()


def copies(fragments: Sequence[Fragment]) -> list[Fragment]:
    """The same with values of their own, which later training does not change."""
    values = fetched([f.values.detach() for f in fragments])
    return [replace(f, values=v) for f, v in zip(fragments, values, strict=True)]


class _Progress(NamedTuple):
    finished: float  # ranks that are through with the phase
    failed: float  # of these, ranks that met a problem


def save(root: Path, step: int, fragments: Sequence[Fragment], mesh: Mesh, about: dict[str, Any]) -> Path:
    """Write and publish the checkpoint of a step; called by every rank, returns when it is durable.

    about: plain data kept in the manifest (progress, config, hashes). On failure of any rank nothing is
    published, the temporary directory is removed, and every rank raises CheckpointError.
    """
    saving = Saving(root, step, fragments, mesh, about)
    saving.advance(wait=True)
    return saving.final


class Saving:
    """A save under way. Every rank makes one and calls `advance` in the same places, until it says True."""

    def __init__(
        self,
        root: Path,
        step: int,
        fragments: Sequence[Fragment],
        mesh: Mesh,
        about: dict[str, Any],
        alive: Callable[[], None] = unheard,
    ) -> None:
        """Begin: agree that there is room, then write in a thread. The fragments must not change until the end.

        alive: called as the work goes on, while training waits for it.
        """
        self.step, self.final = step, root / step_name(step)
        self._partial = root / f".{self.final.name}.partial"
        self._fragments, self._mesh, self._about = fragments, mesh, about
        self._cancelled, self._alive, self._awaited = threading.Event(), alive, False
        self.bytes = int(sums([sum(f.bytes for f in fragments)], mesh)[0])
        self._phases: list[Callable[[], None]] = [self._write, self._publish]
        self._start(self._prepare)
        self._agree(wait=True)
        self._start(self._phases.pop(0))

    def advance(self, *, wait: bool = False) -> bool:
        """Whether it is published, durable, and so acknowledged on all ranks.

        wait: return only then. Raises CheckpointError on every rank when one failed; nothing is left of it.
        """
        while True:
            if self._agree(wait=wait).finished == self._mesh.layout.world_size:
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
        except Exception as error:  # every rank must reach the agreement that follows
            self._problem = explained(error, self.final.parent, self.bytes)

    def _agree(self, *, wait: bool) -> _Progress:
        if wait:
            self._wait()
        finished = not self._thread.is_alive()
        problem = self._problem if finished else ""
        progress = _Progress(*sums([finished, bool(problem)], self._mesh))
        if progress.failed:
            self._give_up(problem)
        return progress

    def _wait(self) -> None:
        self._awaited = True
        wait_for_all(self._thread, self._mesh, self._alive)
        self._awaited = False

    def _goes_on(self) -> None:
        """A sign of life of the thread, which counts where training waits for it: beside a training that hangs it would
        hide that."""
        if self._awaited:
            self._alive()

    def _give_up(self, problem: str) -> None:
        """problem: of this rank, or "" where it only hears of others', and gives up because of them."""
        self._cancelled.set()
        self._wait()
        told = told_by_first(problem, self._mesh)  # all ranks are through with the files when this returns
        clear = partial(shutil.rmtree, self._partial, ignore_errors=True)
        found_by_first(clear, self._mesh, CheckpointError)  # nothing is left when any rank goes on
        raise CheckpointError(f"checkpoint {self.final} was not saved: {told}")

    def _prepare(self) -> None:
        if self._mesh.rank != 0:
            return
        root = self.final.parent
        if not root.is_dir():
            root.mkdir(parents=True)
            sync_directory(root.parent)
        shutil.rmtree(self._partial, ignore_errors=True)
        check_room(root, self.bytes)
        self._partial.mkdir()

    def _write(self) -> None:
        """This rank's pieces in one file, and a note of what they are."""
        file = f"pieces-{self._mesh.rank:05d}.safetensors"
        keys = [f"{n}:{f.name}" for n, f in enumerate(self._fragments)]
        entries = [
            Entry(k, f.values.dtype, f.box.shape, lambda f=f: f.values)  # type: ignore[misc]
            for k, f in zip(keys, self._fragments, strict=True)
        ]
        path, cancelled = self._partial / file, self._cancelled.is_set
        written = write_pieces(path, entries, cancelled=cancelled, alive=self._goes_on)
        pieces = [
            {
                "name": f.name,
                "dtype": DTYPES[f.values.dtype],
                "shape": f.shape,
                "piece": {"file": file, "key": k, "start": f.box.start, "shape": f.box.shape},
            }
            for k, f in zip(keys, self._fragments, strict=True)
        ]
        self._fragments = []  # their memory is free as soon as they are on the disk
        note = {"file": file, **written._asdict(), "pieces": pieces}
        write_text(self._partial / f"part-{self._mesh.rank:05d}.json", json.dumps(note))

    def _publish(self) -> None:
        if self._mesh.rank != 0:
            return
        paths = [self._partial / f"part-{rank:05d}.json" for rank in range(self._mesh.layout.world_size)]
        notes = [read_json(path) for path in paths]
        for path in paths:
            path.unlink()
        publish(self._partial, self.final, {"step": self.step, **self._about}, notes)


def publish(partial: Path, final: Path, about: dict[str, Any], notes: Sequence[dict[str, Any]]) -> None:
    """Give a complete temporary directory its manifest and its name; returns when both are on the disk.

    notes: as of `write_manifest`. A checkpoint that has the name already is moved aside until the new one has it;
    `recover` puts it back if a crash comes in between. Only for who alone may write there.
    """
    write_manifest(partial, about, notes)
    sync_directory(partial)
    replaced = final.with_name(f".{final.name}.replaced")
    if final.exists():
        final.rename(replaced)
    partial.rename(final)
    sync_directory(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def write_manifest(partial: Path, about: dict[str, Any], notes: Sequence[dict[str, Any]]) -> None:
    """Say what the files of a checkpoint are. notes: of each file, `file`, `sha256`, `bytes` and `pieces`."""
    tensors: dict[str, dict[str, Any]] = {}
    for item in (item for note in notes for item in note["pieces"]):
        entry = {"dtype": item["dtype"], "shape": item["shape"], "pieces": []}
        tensors.setdefault(item["name"], entry)["pieces"].append(item["piece"])
    files = {note["file"]: {"sha256": note["sha256"], "bytes": note["bytes"]} for note in notes}
    as_read = json.loads(json.dumps(about))  # keys that are numbers sort otherwise as text
    manifest = {"format": FORMAT, **as_read, "tensors": tensors, "files": files}
    write_text(partial / MANIFEST, manifest_text({**manifest, "sha256": manifest_hash(manifest)}))


def recover(root: Path) -> None:
    """Clear away what a crash left under `root`; only for who alone may write there."""
    if not root.is_dir():
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


def prune(root: Path, doomed: Sequence[Path], newest: Path) -> None:
    """Delete checkpoints, after making sure that `newest` is published; its files were read back when written."""
    if doomed and not (newest / MANIFEST).is_file():
        raise CheckpointError(f"{newest} is not published; {len(doomed)} older checkpoints under {root} are kept")
    for path in doomed:
        remove(path)
