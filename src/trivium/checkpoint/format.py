"""A checkpoint is a directory: safetensors files of pieces, and a manifest that says what they are.

    step-00000100/
      manifest.json             tensors: name -> dtype, shape, pieces; files: sha256; progress; config; its own sha256
      pieces-00000.safetensors  written by rank 0
      ...

A tensor is named and shaped as in the unsplit model; a piece is a box in it. Nothing here knows a layout. The
directory takes its final name last, so a name that exists is complete. No torch: what is listed is not loaded.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from trivium.errors import CheckpointError
from trivium.plan.parameters import Box

FORMAT = "trivium-checkpoint-1"
MANIFEST = "manifest.json"
STRUCTURE = ("format", "step", "tensors", "files", "sha256")  # of a manifest; the rest is what training adds
DTYPE_NAMES = {  # safetensors' names of dtypes, and torch's
    "F64": "float64",
    "F32": "float32",
    "BF16": "bfloat16",
    "F16": "float16",
    "I64": "int64",
}
_STEP = re.compile(r"step-(\d{8,})")


class FlatBox(NamedTuple):
    """A box whose elements lie in order, from element `first` of the flattened array."""

    first: int
    box: Box


def step_name(step: int) -> str:
    """The directory of a step's checkpoint."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step of a published checkpoint's directory name; None for any other name."""
    match = _STEP.fullmatch(name)
    return int(match.group(1)) if match else None


def published(root: str | Path) -> list[Path]:
    """The checkpoints under `root`, oldest first."""
    root = Path(root)
    if not root.is_dir():
        return []
    found = [
        (step, path) for path in root.iterdir() if (step := step_of(path.name)) is not None and path.is_dir()
    ]
    return [path for _, path in sorted(found)]


def boxes_of_range(start: int, stop: int, shape: tuple[int, ...]) -> list[FlatBox]:
    """The elements [start, stop) of a flattened array of `shape` as boxes, each contiguous.

    At most 2 x dimensions - 1 of them: a part of a first row, whole rows, a part of a last row, recursively.
    """
    if start >= stop:
        return []
    if len(shape) <= 1:
        return [FlatBox(start, Box((start,), (stop - start,)) if shape else Box((), ()))]
    row = prod(shape[1:])
    (first, offset), (last, end) = divmod(start, row), divmod(stop, row)
    if first == last:
        return _in_row(first, offset, end, shape)
    found = []
    if offset:
        found += _in_row(first, offset, row, shape)
        first += 1
    if first < last:
        rest = shape[1:]
        found.append(FlatBox(first * row, Box((first, *(0 for _ in rest)), (last - first, *rest))))
    return found + (_in_row(last, 0, end, shape) if end else [])


def covers(shape: tuple[int, ...], boxes: Sequence[Box]) -> bool:
    """Whether boxes lie in an array of `shape`, do not overlap, and together are all of it."""
    for box in boxes:
        if len(box.start) != len(shape) or len(box.shape) != len(shape):
            return False
        if any(first + size > whole for first, size, whole in zip(box.start, box.shape, shape, strict=True)):
            return False
    # Along the dimension in which most of them follow one another, few are beside any one.
    starts = [len({box.start[axis] for box in boxes}) for axis in range(len(shape))]
    axis = starts.index(max(starts)) if starts else 0
    beside: list[Box] = []
    for box in sorted(boxes, key=lambda b: b.start[axis:]):
        beside = [b for b in beside if not shape or b.start[axis] + b.shape[axis] > box.start[axis]]
        if any(box.intersect(b) for b in beside):
            return False
        beside.append(box)
    return sum(box.elements for box in boxes) == prod(shape)


def manifest_hash(manifest: dict[str, Any]) -> str:
    """sha256 of a manifest without its own hash, in canonical form."""
    plain = {k: v for k, v in manifest.items() if k != "sha256"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def manifest_text(manifest: dict[str, Any]) -> str:
    """A manifest as it is written; no other spelling of the same content is accepted."""
    return json.dumps(manifest, sort_keys=True)


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest, checked against its own hash; CheckpointError says what is wrong with which file."""
    path = directory / MANIFEST
    try:
        text = path.read_bytes().decode("utf-8")
        manifest = json.loads(text)
    except FileNotFoundError:
        raise CheckpointError(
            f"{directory} is not a checkpoint: {MANIFEST} is missing; name one that has it, or put it back"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; use an older checkpoint") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
        raise CheckpointError(f"{path} has format {found!r}; this version reads {FORMAT!r}")
    # The text too: a flipped bit may leave JSON's content as it was (1e-5 and 1E-5).
    if manifest.get("sha256") != manifest_hash(manifest) or manifest_text(manifest) != text:
        raise CheckpointError(
            f"{path} does not match its own sha256: it was damaged; use an older checkpoint"
        )
    malformed = _malformed(manifest)
    if malformed:
        raise CheckpointError(f"{path}: {malformed} is not as a manifest has it; use an older checkpoint")
    stray = sorted(
        {p["file"] for t in manifest["tensors"].values() for p in t["pieces"]} - set(manifest["files"])
    )
    stray += [name for name in manifest["files"] if Path(name).name != name]
    if stray:
        raise CheckpointError(f"{path} names '{stray[0]}', which is not one of its own hashed files")
    return manifest


def _malformed(manifest: dict[str, Any]) -> str:
    """The first part that has not the form it must have, or nothing: a hash says only that it was written so."""
    tensors, files = manifest.get("tensors"), manifest.get("files")
    if not (_is_count(manifest.get("step")) and isinstance(tensors, dict) and isinstance(files, dict)):
        return "step, tensors or files"
    for name, file in files.items():
        if not (
            isinstance(file, dict) and isinstance(file.get("sha256"), str) and _is_count(file.get("bytes"))
        ):
            return f"files.{name}"
    for name, tensor in tensors.items():
        if not (
            isinstance(tensor, dict)
            and tensor.get("dtype") in [*DTYPE_NAMES]  # what has no hash may stand there
            and _are_counts(tensor.get("shape"))
            and isinstance(tensor.get("pieces"), list)
            and all(map(_is_piece, tensor["pieces"]))
        ):
            return f"tensors.{name}"
    about = [
        name for name in ("plan", "data", "imported_from") if not isinstance(manifest.get(name, {}), dict)
    ]
    return about[0] if about else ""


def _is_piece(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("file"), str)
        and isinstance(value.get("key"), str)
        and _are_counts(value.get("start"))
        and _are_counts(value.get("shape"))
    )


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0  # a truth value is no number


def _in_row(row: int, start: int, stop: int, shape: tuple[int, ...]) -> list[FlatBox]:
    size = prod(shape[1:])
    return [
        FlatBox(row * size + first, Box((row, *box.start), (1, *box.shape)))
        for first, box in boxes_of_range(start, stop, shape[1:])
    ]
