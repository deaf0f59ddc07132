"""Whether a checkpoint is what its manifest says: every byte of its files, every element of its tensors. No torch."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from trivium.checkpoint.format import MANIFEST, covers, read_manifest
from trivium.errors import CheckpointError
from trivium.plan.parameters import Box
from trivium.provenance import file_sha256, unheard
from trivium.units import shown


def verify(
    directory: Path,
    manifest: Mapping[str, Any],
    share: int = 0,
    shares: int = 1,
    alive: Callable[[], None] = unheard,
) -> None:
    """Check every `shares`-th tensor and file: the pieces make up the tensor; the file has its size and sha256, and its
    pieces have the dtypes and shapes that the manifest declares.

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
        _verify_file(directory / name, known["bytes"], known["sha256"], alive)
        if pieces:
            _verify_pieces(directory / name, pieces)


def refuse_incomplete(directory: Path) -> None:
    """CheckpointError where the manifest is damaged, or a file that it lists is missing or of another size: what is
    found without reading the files."""
    for name, known in sorted(read_manifest(directory)["files"].items()):
        _verify_size(directory / name, known["bytes"])


def _verify_size(path: Path, size: int) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing, but {MANIFEST} lists it; use an older checkpoint")
    if (found := path.stat().st_size) != size:
        raise CheckpointError(f"{path} has {found} bytes and should have {size}: truncated")


def _verify_file(path: Path, size: int, sha256: str, alive: Callable[[], None]) -> None:
    try:
        _verify_size(path, size)
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
