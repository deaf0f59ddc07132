"""Verify that a checkpoint agrees with its manifest and that its tensors are finite; summarise it. No torch."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from trivium.checkpoint.format import MANIFEST, covers, read_manifest, step_of
from trivium.errors import CheckpointError
from trivium.plan.parameters import Box
from trivium.provenance import file_sha256, fingerprint, unheard
from trivium.stores.remote import Location
from trivium.units import shown
from trivium.untrusted import open_regular, parse_json

NOT_FINITE = "holds a NaN or an infinity"
# Integers as wide as each float, and the bits of infinity. Without the sign bit, only NaN and infinity are as large.
_INFINITY = {
    "F64": ("<i8", 0x7FF0000000000000),
    "F32": ("<i4", 0x7F800000),
    "BF16": ("<i2", 0x7F80),
    "F16": ("<i2", 0x7C00),
}
MAX_SHOWN_FIGURES = 8
_BLOCK_BYTES = 1 << 18  # stays in the CPU's cache while it is searched


def verify(
    directory: Location,
    manifest: Mapping[str, Any],
    share: int = 0,
    shares: int = 1,
    alive: Callable[[], None] = unheard,
) -> None:
    """Check every `shares`-th tensor and file: the pieces cover the tensor; the file has its size and sha256, and its
    pieces have the dtypes and shapes of the manifest.

    alive: called after every block that was read. Raises CheckpointError naming the first that differs.
    """
    own_files = {name for n, name in enumerate(sorted(manifest["files"])) if n % shares == share}
    declared: dict[str, list[tuple[str, str, Sequence[int]]]] = {name: [] for name in own_files}
    for number, (name, tensor) in enumerate(sorted(manifest["tensors"].items())):
        for piece in tensor["pieces"]:
            if piece["file"] in own_files:
                declared[piece["file"]].append((piece["key"], tensor["dtype"], piece["shape"]))
        if number % shares != share:
            continue
        boxes = [Box(tuple(piece["start"]), tuple(piece["shape"])) for piece in tensor["pieces"]]
        if not covers(tuple(tensor["shape"]), boxes):
            raise CheckpointError(
                f"{directory}: the pieces of {name} overlap, or are not all of its {tensor['shape']}; use an older "
                f"checkpoint"
            )
    for name, pieces in sorted(declared.items()):
        known = manifest["files"][name]
        with on_disk(directory / name) as path:
            _verify_file(path, known["bytes"], known["sha256"], alive)
            if pieces:
                _verify_pieces(path, pieces)


def refuse_not_finite(
    directory: Location,
    manifest: Mapping[str, Any],
    share: int = 0,
    shares: int = 1,
    alive: Callable[[], None] = unheard,
) -> None:
    """Raise CheckpointError naming the first tensor with a NaN or an infinity in every `shares`-th file.

    Training cannot continue from such a tensor, even if its bytes are intact. Call this after `verify`, which shows
    that the files have the pieces.
    """
    own_files = sorted(manifest["files"])[share::shares]
    names: dict[str, dict[str, str]] = {file: {} for file in own_files}  # names of tensors by key, per file
    for name, tensor in sorted(manifest["tensors"].items()):
        for piece in tensor["pieces"]:
            if piece["file"] in names and tensor["dtype"] in _INFINITY:
                names[piece["file"]][piece["key"]] = name
    for file, pieces in names.items():
        with on_disk(directory / file) as path:
            bad = _first_not_finite(path, pieces, alive)
        if bad:
            raise CheckpointError(f"{directory}: {pieces[bad]} {NOT_FINITE}; use an older checkpoint")


@contextmanager
def on_disk(place: Location) -> Iterator[Path]:
    """Yield the path of a file; of an object in a store, that of a copy with its name, which is then deleted."""
    if isinstance(place, Path):
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="trivium-store-") as folder:
        path = Path(folder, place.name)
        with suppress(FileNotFoundError):
            path.write_bytes(place.read())
        try:
            yield path
        except CheckpointError as error:  # the copy is deleted, so the message must name the object
            raise CheckpointError(str(error).replace(str(path), str(place))) from None


def _first_not_finite(path: Path, keys: Iterable[str], alive: Callable[[], None]) -> str:
    """Return the first piece of a safetensors file with a NaN or an infinity, or ""."""
    try:
        with open_regular(path) as file:
            size = int.from_bytes(file.read(8), "little")
            header = parse_json(file.read(size))
            for key in keys:
                begin, end = header[key]["data_offsets"]
                file.seek(8 + size + begin)
                kind, infinity = _INFINITY[header[key]["dtype"]]
                for first in range(begin, end, _BLOCK_BYTES):
                    bits = np.frombuffer(file.read(min(_BLOCK_BYTES, end - first)), kind)
                    if (bits & np.iinfo(kind).max).max() >= infinity:
                        return key
                    alive()
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}; fix the disk or the permissions, or use an older checkpoint"
        ) from None
    return ""


def refuse_incomplete(directory: Location) -> None:
    """Raise CheckpointError if the manifest is damaged, or a file that it lists is missing or of another size. Does not
    read the files."""
    files = read_manifest(directory)["files"]
    if isinstance(directory, Path):
        held = {path.name: path.stat().st_size for path in directory.iterdir() if path.is_file()}
    else:
        held = directory.sizes()
    for name, known in sorted(files.items()):
        _refuse_other_size(directory / name, held.get(name), known["bytes"])


def _refuse_other_size(place: Location, found: int | None, size: int) -> None:
    if found is None:
        raise CheckpointError(f"{place} is missing, but {MANIFEST} lists it; use an older checkpoint")
    if found != size:
        raise CheckpointError(f"{place} has {found} bytes and should have {size}: truncated")


def _verify_file(path: Path, size: int, sha256: str, alive: Callable[[], None]) -> None:
    try:
        _refuse_other_size(path, path.stat().st_size if path.is_file() else None, size)
        if file_sha256(path, alive) != sha256:
            raise CheckpointError(f"{path} does not have its sha256 ({sha256[:12]}…): damaged")
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}; fix the disk or the permissions, or use an older checkpoint"
        ) from None


def _verify_pieces(path: Path, pieces: Iterable[tuple[str, str, Sequence[int]]]) -> None:
    """Compare key, dtype and shape of pieces with what a file's header says."""
    try:
        with safe_open(str(path), framework="numpy") as file:
            held = set(file.keys())
            for key, dtype, shape in pieces:
                if key not in held:
                    raise CheckpointError(
                        f"{path} has no piece '{shown(key)}', but {MANIFEST} lists it; use an older checkpoint"
                    )
                piece = file.get_slice(key)
                found = piece.get_dtype(), list(piece.get_shape())
                if found != (dtype, list(shape)):
                    raise CheckpointError(
                        f"{path}: '{shown(key)}' is {found[0]} {found[1]}, and {MANIFEST} says {dtype} {list(shape)}; "
                        f"use an older checkpoint"
                    )
    except (SafetensorError, UnicodeError) as error:
        raise CheckpointError(f"{path} is not a safetensors file: {error}; use an older checkpoint") from None


def summary(path: Location, *, verified: bool = False) -> dict[str, Any]:
    """Return step, size, layout, dtype and state of a checkpoint, also of a damaged or non-finite one.

    verified: also verify its files and search them for non-finite values.
    """
    row: dict[str, Any] = {"step": step_of(path.name), "path": str(path)}
    state = "damaged"
    try:
        manifest = read_manifest(path)
        if verified:
            verify(path, manifest)
            state = "not finite"
            refuse_not_finite(path, manifest)
    except CheckpointError as error:
        return {**row, "state": state, "problem": str(error)}
    plan = manifest.get("plan") or {}
    return {
        **row,
        "step": int(manifest["step"]),
        "state": "verified" if verified else "not read",
        "bytes": sum(f["bytes"] for f in manifest["files"].values()),
        "files": len(manifest["files"]),
        "tensors": len(manifest["tensors"]),
        "parameters": sum(prod(t["shape"]) for n, t in manifest["tensors"].items() if n.startswith("weights/")),
        "kinds": sorted({n.split("/")[0] for n in manifest["tensors"]}),
        "dtype": (plan.get("precision") or {}).get("weights"),
        "layout": plan.get("layout"),
        "tokens_seen": manifest.get("tokens_seen"),
    }


def abbreviated(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Replace long lists of numbers in a manifest, such as the losses of many steps, by their length and hash."""

    def shown(value: Any) -> Any:
        if isinstance(value, Mapping):
            return abbreviated(value)
        is_long = isinstance(value, list) and len(value) > MAX_SHOWN_FIGURES and isinstance(value[0], float)
        return f"{len(value)} figures, hash {fingerprint(value)}" if is_long else value

    return {key: shown(value) for key, value in tree.items()}
