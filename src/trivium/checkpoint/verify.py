"""Whether a checkpoint is what its manifest says: every byte of its files, every element of its tensors. No torch."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trivium.checkpoint.format import MANIFEST, covers, read_manifest
from trivium.errors import CheckpointError
from trivium.plan.parameters import Box
from trivium.provenance import file_sha256, unheard


def verify(
    directory: Path,
    manifest: Mapping[str, Any],
    share: int = 0,
    shares: int = 1,
    alive: Callable[[], None] = unheard,
) -> None:
    """Compare every `shares`-th file with its sha256, and see that its pieces make up every `shares`-th tensor.

    alive: called after every block that was read. Raises CheckpointError naming the first that differs.
    """
    for number, (name, tensor) in enumerate(sorted(manifest["tensors"].items())):
        boxes = [Box(tuple(piece["start"]), tuple(piece["shape"])) for piece in tensor["pieces"]]
        if number % shares == share and not covers(tuple(tensor["shape"]), boxes):
            raise CheckpointError(
                f"{directory}: the pieces of {name} overlap, or are not all of its {tensor['shape']}; use an older "
                f"checkpoint"
            )
    for number, (name, known) in enumerate(sorted(manifest["files"].items())):
        if number % shares == share:
            _verify_file(directory / name, known["bytes"], known["sha256"], alive)


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
            f"{path} cannot be read: {error.strerror}; mend the disk or the rights, or use an older checkpoint"
        ) from None
