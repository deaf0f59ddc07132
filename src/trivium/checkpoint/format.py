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
import secrets
from collections import defaultdict
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from trivium.checkpoint.forms import ManifestForm
from trivium.config import build
from trivium.errors import CheckpointError, ConfigError
from trivium.plan.parameters import Box
from trivium.units import shown
from trivium.untrusted import parse_json, read_bytes

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
ITEM_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8}
# A piece has at least an entry in its file's header.
LEAST_PIECE_BYTES = len('"":{"dtype":"F64","shape":[],"data_offsets":[0,0]}')
_STEP = re.compile(r"step-(\d{8,})")
_PRIME = 2**127 - 1


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
    found = [(step, path) for path in root.iterdir() if (step := step_of(path.name)) is not None and path.is_dir()]
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
    """Whether boxes lie in an array of `shape`, do not overlap, and together are all of it. Linear in their number.

    Give every coordinate of every axis a secret random value r, and a box the product over its axes of r(end) -
    r(start), modulo a prime. The sum over the boxes less the product of the whole array is a polynomial in the values,
    whose coefficient for each cell of the array is the number of boxes that contain it, less one. So it is zero where
    each cell is in exactly one box, and otherwise with a probability of at most dimensions / 2^127 (Schwartz-Zippel).
    The author of a manifest cannot aim at zero without the values.
    """
    for box in boxes:
        if len(box.start) != len(shape) or len(box.shape) != len(shape):
            return False
        if any(first + size > whole for first, size, whole in zip(box.start, box.shape, shape, strict=True)):
            return False
    values: defaultdict[tuple[int, int], int] = defaultdict(lambda: secrets.randbelow(_PRIME))

    def weight(box: Box) -> int:
        product = 1
        for axis, (start, size) in enumerate(zip(box.start, box.shape, strict=True)):
            product = product * (values[axis, start + size] - values[axis, start]) % _PRIME
        return product

    whole = Box(tuple(0 for _ in shape), shape)
    return (sum(map(weight, boxes)) - weight(whole)) % _PRIME == 0


def manifest_hash(manifest: dict[str, Any]) -> str:
    """sha256 of a manifest without its own hash, in canonical form."""
    plain = {k: v for k, v in manifest.items() if k != "sha256"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def manifest_text(manifest: dict[str, Any]) -> str:
    """A manifest as it is written; no other spelling of the same content is accepted."""
    return json.dumps(manifest, sort_keys=True)


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return the manifest, checked against its own hash and form. Raises CheckpointError, which names the file and the
    field that is wrong. Files and pieces may still not be what it says: see `verify`."""
    path = directory / MANIFEST
    try:
        text = read_bytes(path).decode("utf-8")
        manifest = parse_json(text)
    except FileNotFoundError:
        raise CheckpointError(
            f"{directory} is not a checkpoint: {MANIFEST} is missing; name one that has it, or put it back"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}; use an older checkpoint") from None
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read: {error}; use an older checkpoint") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
        raise CheckpointError(f"{path} has format {shown(repr(found))}; this version reads {FORMAT!r}")
    # The text too: a flipped bit may leave JSON's content as it was (1e-5 and 1E-5).
    if manifest.get("sha256") != manifest_hash(manifest) or manifest_text(manifest) != text:
        raise CheckpointError(f"{path} does not match its own sha256: it was damaged; use an older checkpoint")
    try:
        checked = build(ManifestForm, manifest)
    except ConfigError as error:
        first = str(error).partition("\n")[0]
        raise CheckpointError(f"{path}: {first}; use an older checkpoint") from None
    problem = _contradiction(checked, step_of(directory.name))
    if problem:
        raise CheckpointError(f"{path}: {problem}; use an older checkpoint")
    return manifest


def _contradiction(manifest: ManifestForm, step: int | None) -> str:
    """The first statement of a manifest that another one rules out, or nothing. step: of the directory's name."""
    if step is not None and manifest.step != step:
        return f"step is {manifest.step}, and the directory's name says {step}"
    for name in manifest.files:
        if Path(name).name != name:
            return f"files has '{shown(name)}'; it must be the name of a file in the directory"
    held: dict[str, int] = defaultdict(int)  # bytes of the pieces of each file
    keys: set[tuple[str, str]] = set()
    for name, tensor in manifest.tensors.items():
        for piece in tensor.pieces:
            if piece.file not in manifest.files:
                return f"tensors.{shown(name)}: '{shown(piece.file)}' is not one of its own hashed files"
            if (piece.file, piece.key) in keys:
                return f"tensors.{shown(name)} has the piece '{shown(piece.key)}' of {piece.file} a second time"
            keys.add((piece.file, piece.key))
            held[piece.file] += prod(piece.shape) * ITEM_BYTES[tensor.dtype] + LEAST_PIECE_BYTES
    for name, count in held.items():
        if count > manifest.files[name].bytes:
            return f"the pieces in {name} have {count} bytes at least, and it has {manifest.files[name].bytes}"
    return ""


def _in_row(row: int, start: int, stop: int, shape: tuple[int, ...]) -> list[FlatBox]:
    size = prod(shape[1:])
    return [
        FlatBox(row * size + first, Box((row, *box.start), (1, *box.shape)))
        for first, box in boxes_of_range(start, stop, shape[1:])
    ]
