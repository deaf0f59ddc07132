"""Kill work before or after one of its pieces is renamed to its final place."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class Killed(BaseException):
    """Stands for SIGKILL: no handler for Exception catches it."""


def is_piece(target: Path, work: Path) -> bool:
    """Return whether a file or folder is renamed to a piece, and not to a part of one that is being made."""
    return work in target.parents and not any(n.startswith(".") for n in target.relative_to(work).parts)


def ends(job: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, work: Path, *, survive: int, before: bool) -> bool:
    """Work until `survive` pieces are in place, then die before the next or right after; return whether it finished."""
    placed = 0

    def dying(real: Callable[[Path, Any], Path]) -> Callable[[Path, Any], Path]:
        def take_place(self: Path, target: Any) -> Path:
            nonlocal placed
            if not is_piece(Path(target), work):
                return real(self, target)
            if before and placed == survive:
                raise Killed
            result = real(self, target)
            placed += 1
            if not before and placed == survive:
                raise Killed
            return result

        return take_place

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dying(Path.rename))
        patch.setattr(Path, "replace", dying(Path.replace))
        try:
            job()
        except Killed:
            return False
    return True


def digests(folder: Path) -> dict[Path, str]:
    """Return the sha256 of every file below a folder, by its relative path."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
