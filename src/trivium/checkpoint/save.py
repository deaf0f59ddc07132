"""Write a checkpoint so that a name that exists is complete: temporary directory, hash while writing, fsync,
rename, fsync of the parent, and only then acknowledged."""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trivium.checkpoint.format import FORMAT, MANIFEST, manifest_hash, step_name
from trivium.errors import CheckpointError
from trivium.parallel.collectives import count_over_all
from trivium.parallel.mesh import Mesh
from trivium.plan.parameters import Box

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
}
_MARGIN_BYTES = 1 << 20


@dataclass(frozen=True)
class Fragment:
    """Values of a box of the unsplit tensor `name` of `shape`; `values` is contiguous and has the box's size."""

    name: str
    shape: tuple[int, ...]
    box: Box
    values: torch.Tensor


def save(root: Path, step: int, fragments: Sequence[Fragment], mesh: Mesh, about: dict[str, Any]) -> Path:
    """Write and publish the checkpoint of a step; called by every rank, returns when it is durable.

    about: plain data kept in the manifest (progress, config, hashes). On failure of any rank nothing is
    published, the temporary directory is removed, and every rank raises CheckpointError.
    """
    partial, final = root / f".{step_name(step)}.partial", root / step_name(step)
    problem = _attempt(lambda: _prepare(partial, fragments, mesh)) if mesh.rank == 0 else ""
    _agree(problem, partial, mesh)
    problem = _attempt(lambda: _write_part(partial, mesh.rank, fragments))
    _agree(problem, partial, mesh)
    problem = _attempt(lambda: _publish(partial, final, step, about, mesh)) if mesh.rank == 0 else ""
    _agree(problem, partial, mesh)
    return final


def _prepare(partial: Path, fragments: Sequence[Fragment], mesh: Mesh) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    # Ranks hold nearly equal parts, so this rank's times their number is what all will write here.
    needed = sum(f.values.numel() * f.values.element_size() for f in fragments) * mesh.layout.world_size
    free = shutil.disk_usage(partial).free
    if free < needed + _MARGIN_BYTES:
        raise CheckpointError(
            f"{partial} needs about {needed} bytes, and {free} are free; make room or move --out"
        )


def _write_part(partial: Path, rank: int, fragments: Sequence[Fragment]) -> None:
    """This rank's pieces in one safetensors file, hashed as they are written, and a note of what they are."""
    file = f"pieces-{rank:05d}.safetensors"
    header: dict[str, Any] = {}
    pieces, offset = [], 0
    for number, fragment in enumerate(fragments):
        size = fragment.values.numel() * fragment.values.element_size()
        key, dtype = f"{number}:{fragment.name}", _DTYPES[fragment.values.dtype]
        header[key] = {"dtype": dtype, "shape": fragment.box.shape, "data_offsets": [offset, offset + size]}
        where = {"file": file, "key": key, "start": fragment.box.start, "shape": fragment.box.shape}
        pieces.append({"name": fragment.name, "dtype": dtype, "shape": fragment.shape, "piece": where})
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format wants the data aligned
    digest = hashlib.sha256()
    with open(partial / file, "wb") as out:
        for block in (len(text).to_bytes(8, "little"), text, *(_bytes(f.values) for f in fragments)):
            digest.update(block)
            out.write(block)
        out.flush()
        os.fsync(out.fileno())
        size = out.tell()
    note = {"file": file, "sha256": digest.hexdigest(), "bytes": size, "pieces": pieces}
    _write_durably(partial / f"part-{rank:05d}.json", json.dumps(note))


def _publish(partial: Path, final: Path, step: int, about: dict[str, Any], mesh: Mesh) -> None:
    tensors: dict[str, dict[str, Any]] = {}
    files: dict[str, dict[str, Any]] = {}
    for rank in range(mesh.layout.world_size):
        path = partial / f"part-{rank:05d}.json"
        note = json.loads(path.read_text(encoding="utf-8"))
        files[note["file"]] = {"sha256": note["sha256"], "bytes": note["bytes"]}
        for item in note["pieces"]:
            entry = tensors.setdefault(
                item["name"], {"dtype": item["dtype"], "shape": item["shape"], "pieces": []}
            )
            entry["pieces"].append(item["piece"])
        path.unlink()
    manifest = {"format": FORMAT, "step": step, **about, "tensors": tensors, "files": files}
    manifest = json.loads(json.dumps(manifest))  # as it will be read
    manifest["sha256"] = manifest_hash(manifest)
    _write_durably(partial / MANIFEST, json.dumps(manifest, sort_keys=True))
    _sync_directory(partial)
    replaced = final.with_name(f".{final.name}.replaced")
    if final.exists():
        final.rename(replaced)
    partial.rename(final)
    _sync_directory(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _attempt(action: Any) -> str:
    """Why an action failed, or nothing: every rank must reach the agreement that follows."""
    try:
        action()
    except (OSError, CheckpointError) as error:
        return str(error) or type(error).__name__
    return ""


def _agree(problem: str, partial: Path, mesh: Mesh) -> None:
    """Go on only if no rank met a problem."""
    failures = count_over_all(bool(problem), mesh)
    if failures == 0:
        return
    if mesh.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
    told = problem or f"{failures} other ranks could not write their part"
    raise CheckpointError(f"checkpoint {partial} was not saved: {told}")


def _bytes(values: torch.Tensor) -> memoryview:
    # numpy has no bfloat16; the bytes are the same under any dtype of the same width.
    return memoryview(values.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy())


def _write_durably(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
