"""The format of checkpoints: a directory of safetensors files with pieces of tensors, and a manifest.

    step-00000100/
      manifest.json             tensors: name -> dtype, shape, pieces; files: sha256; progress; config; its own sha256
      pieces-00000.safetensors  written by rank 0
      ...

A tensor is named and shaped as in the unsplit model, and a piece is a box of it, independent of any layout. The
directory is renamed last, so a name that exists is complete. At a URL, where nothing can be renamed, the manifest is
written last. This file does without torch, so that listing is fast.
"""

import hashlib
import json
import re
import secrets
import shlex
from collections import defaultdict
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, overload

from pydantic import ConfigDict, Field

from trivium.config import Config, NotNegative, Positive, build
from trivium.errors import CheckpointError, ConfigError
from trivium.plan.parameters import Box
from trivium.stores.remote import Location, Remote, contents
from trivium.units import shown
from trivium.untrusted import parse_json, read_json

FORMAT = "trivium-checkpoint-1"
MANIFEST = "manifest.json"
STRUCTURE = ("format", "step", "tensors", "files", "sha256")  # keys of every manifest; training adds others
DTYPE_NAMES = {  # safetensors' names of dtypes, and torch's
    "F64": "float64",
    "F32": "float32",
    "BF16": "bfloat16",
    "F16": "float16",
    "I64": "int64",
}
ITEM_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8}
# of an entry in its file's header, without data
MIN_PIECE_BYTES = len('"":{"dtype":"F64","shape":[],"data_offsets":[0,0]}')
_STEP = re.compile(r"step-(\d{8,})")
_PRIME = 2**127 - 1


class _Form(Config):
    """A part of a manifest. Other fields, as of later versions, are allowed. A right hash only shows that the manifest
    was written so, not that its values have the right types."""

    model_config = ConfigDict(extra="allow")
    remedy: ClassVar[str] = "every manifest has it"


class _File(_Form):
    sha256: str
    bytes: NotNegative


class _Piece(_Form):
    file: str
    key: str
    start: tuple[NotNegative, ...]
    shape: tuple[NotNegative, ...]


class _Tensor(_Form):
    dtype: Literal["F64", "F32", "BF16", "F16", "I64"]
    shape: tuple[NotNegative, ...]
    pieces: tuple[_Piece, ...]


class _Layout(_Form):
    tensor: Positive = 1
    pipeline: Positive = 1
    data: Positive = 1
    context: Positive = 1
    chunks: Positive = 1


class _Precision(_Form):
    weights: str | None = None


class _Plan(_Form):
    """The parts of a plan that a listing shows; `Checkpoint.plan` checks the rest."""

    layout: _Layout | None = None
    precision: _Precision | None = None
    model: dict[str, Any] | None = None
    batch: dict[str, Any] | None = None


class _Data(_Form):
    tokenizer_sha256: str | None = None
    files: dict[str, Any] | None = None


class _Import(_Form):
    marks: dict[str, NotNegative | list[NotNegative] | None] | None = None
    left_out: dict[str, NotNegative] = Field(default={})


class _Rewind(_Form):
    gaps: tuple[tuple[NotNegative, NotNegative], ...]


class _Spikes(_Form):
    losses: tuple[float, ...] = ()
    norms: tuple[float, ...] = ()
    in_a_row: NotNegative = 0


class _LossScale(_Form):
    value: float
    finite_steps: NotNegative


class _Manifest(_Form):
    format: str
    sha256: str
    step: NotNegative
    tensors: Annotated[dict[str, _Tensor], Field(min_length=1)]
    files: dict[str, _File]
    plan: _Plan | None = None
    data: _Data = _Data()
    imported_from: _Import = _Import()
    left_out: tuple[_Rewind, ...] = ()
    training: dict[str, Any] | None = None
    tokens_seen: NotNegative = 0
    samples: NotNegative = 0
    updates: NotNegative = 0
    spikes: _Spikes | None = None
    loss_scale: _LossScale | None = None


class FlatBox(NamedTuple):
    """A box that is contiguous in the flattened array, from element `first` on."""

    first: int
    box: Box


def step_name(step: int) -> str:
    """Return the directory name of a step's checkpoint."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """Return the step of a published checkpoint's directory name; None for any other name."""
    match = _STEP.fullmatch(name)
    return int(match.group(1)) if match else None


@overload
def published(root: str | Path) -> list[Path]: ...
@overload
def published(root: Location) -> list[Location]: ...
def published(root: str | Location) -> Sequence[Location]:
    """Return the checkpoints under `root`, oldest first."""
    if isinstance(root, Remote):
        steps = [(step, place) for place in root.folders() if (step := step_of(place.name)) is not None]
        return [place for _, place in sorted(steps) if (place / MANIFEST).is_file()]
    root = Path(root)
    if not root.is_dir():
        return []
    found = [(step, path) for path in root.iterdir() if (step := step_of(path.name)) is not None and path.is_dir()]
    return [path for _, path in sorted(found)]


def store_of(run: Path) -> Remote | None:
    """Return the folder at a URL that has the checkpoints of the training in a run directory; None if they are in the
    run directory, or no training began there."""
    try:
        url = read_json(run / "training" / "run.json")["training"]["store"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Remote(url) / "checkpoints" if isinstance(url, str) else None


def refuse_at_url(run: Path) -> None:
    """Raise CheckpointError, which names the command that brings one, if the checkpoints of a run are at a URL."""
    if (store := store_of(run)) is not None:
        words = shlex.join(["trivium", "checkpoint", "reshard", "--out", str(run), "--to", str(run / "brought")])
        raise CheckpointError(
            f"{run} holds no checkpoint, because training.store has them in {store}; bring the newest with `{words}`, "
            f"and name the folder that this prints"
        )


def boxes_of_range(start: int, stop: int, shape: tuple[int, ...]) -> list[FlatBox]:
    """Return the elements [start, stop) of a flattened array of `shape` as contiguous boxes.

    There are at most 2 x dimensions - 1: part of a first row, full rows, and part of a last row, recursively.
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
    """Whether boxes cover an array of `shape` exactly, without overlap. Linear in the number of boxes.

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
    """Return the sha256 of a manifest without its own hash, in canonical form."""
    plain = {k: v for k, v in manifest.items() if k != "sha256"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def manifest_text(manifest: dict[str, Any]) -> str:
    """Return a manifest as it is written; no other spelling of the same content is accepted."""
    return json.dumps(manifest, sort_keys=True)


def manifest_of(about: dict[str, Any], files: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the manifest of a checkpoint. files: of each file, `file`, `sha256`, `bytes` and `pieces`, as returned by
    `write_parts`."""
    tensors: dict[str, dict[str, Any]] = {}
    for item in (item for file in files for item in file["pieces"]):
        entry = {"dtype": item["dtype"], "shape": item["shape"], "pieces": []}
        tensors.setdefault(item["name"], entry)["pieces"].append(item["piece"])
    hashes = {file["file"]: {"sha256": file["sha256"], "bytes": file["bytes"]} for file in files}
    as_read = json.loads(json.dumps(about))  # Numeric keys sort differently after they became text.
    manifest = {"format": FORMAT, **as_read, "tensors": tensors, "files": hashes}
    return {**manifest, "sha256": manifest_hash(manifest)}


def read_manifest(directory: Location) -> dict[str, Any]:
    """Return the manifest, checked against its own hash and form. Raises CheckpointError, which names the file and the
    field that is wrong. `verify` checks the files and pieces."""
    path = directory / MANIFEST
    try:
        text = contents(path).decode("utf-8")
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
    # Compare the text too: a flipped bit may leave the content of JSON unchanged (1e-5 and 1E-5).
    if manifest.get("sha256") != manifest_hash(manifest) or manifest_text(manifest) != text:
        raise CheckpointError(f"{path} does not match its own sha256: it was damaged; use an older checkpoint")
    try:
        checked = build(_Manifest, manifest)
    except ConfigError as error:
        first = str(error).partition("\n")[0]
        raise CheckpointError(f"{path}: {first}; use an older checkpoint") from None
    problem = _contradiction(checked, step_of(directory.name))
    if problem:
        raise CheckpointError(f"{path}: {problem}; use an older checkpoint")
    return manifest


def _contradiction(manifest: _Manifest, step: int | None) -> str:
    """Return the first contradiction in a manifest, or "". step: that of the directory's name."""
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
            held[piece.file] += prod(piece.shape) * ITEM_BYTES[tensor.dtype] + MIN_PIECE_BYTES
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
