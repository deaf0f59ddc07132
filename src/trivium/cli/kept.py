"""Results that a verb keeps in a run directory: what is there is joined with them, or set aside; nothing is lost."""

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from trivium.cli.show import say
from trivium.provenance import write_json
from trivium.untrusted import parse_json, read_bytes

Tree = Mapping[str, Any]
Join = Callable[[Tree, Tree], Tree]
Loses = Callable[[Tree, Tree], bool]


class Kept:
    """Where results of one call go, `RUN/name/results.json` and a file of the user's: the latter has this call's alone.

    join: earlier results and those of now as one. loses: whether the joined ones lack something of the earlier; then
    the earlier file stays beside them as `results.previous.json`, `results.previous-2.json`, …, and that is said.
    """

    def __init__(self, run: Path | None, name: str, also: Path | None, join: Join, loses: Loses) -> None:
        self._own = None if run is None else run / name / "results.json"
        self._also, self._join, self._loses = also, join, loses
        self._earlier: Tree | None = None
        self._is_there = False  # a file that is not this call's
        self._written: bytes | None = None

    def write(self, found: Tree) -> list[Path]:
        """Write what was found so far; returns where."""
        places = []
        if self._own is not None:
            self._own.parent.mkdir(parents=True, exist_ok=True)
            with _alone_in(self._own.parent):
                self._keep(self._own, found)
            places.append(self._own)
        if self._also is not None:
            self._also.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._also, found)
            places.append(self._also)
        return places

    def _keep(self, place: Path, found: Tree) -> None:
        there = _bytes(place)
        if there != self._written:  # an earlier call's, or that of one at work beside this
            self._earlier, self._is_there = _tree(there), there is not None
        try:
            tree = found if self._earlier is None else self._join(self._earlier, found)
            lost = self._is_there and (self._earlier is None or self._loses(self._earlier, tree))
        except (KeyError, TypeError, AttributeError):  # results of an older version, or of other hands
            tree, lost = found, True
        if lost:
            to = _free(place)
            place.rename(to)
            say(f"  earlier results, of another checkpoint or asked otherwise, are now in {to}")
            self._is_there = False
        write_json(place, tree)
        self._written = _bytes(place)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Inside, no other call joins its results with those of a folder; on file systems without locks two may, in the
    moment of writing."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _free(place: Path) -> Path:
    names = (f"{place.stem}.previous{f'-{n}' if n > 1 else ''}{place.suffix}" for n in count(1))
    return next(path for path in map(place.with_name, names) if not path.exists())


def _bytes(place: Path) -> bytes | None:
    """What is there; None where there is nothing, nothing where it cannot be read."""
    try:
        return read_bytes(place) if place.is_file() else None
    except OSError:
        return b""


def _tree(found: bytes | None) -> Tree | None:
    """The results that bytes say; None of those that say none."""
    try:
        tree = parse_json(found or b"")
    except ValueError:
        return None
    return tree if isinstance(tree, dict) else None
