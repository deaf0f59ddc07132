"""Results that a verb keeps in a run directory: what is there is joined with them, or set aside; nothing is lost."""

import json
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from trivium.cli.show import say
from trivium.provenance import write_json

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
        self._is_there = self._own is not None and self._own.is_file()
        self._earlier = _read(self._own) if self._own is not None else None

    def write(self, found: Tree) -> list[Path]:
        """Write what was found so far; returns where."""
        places = []
        if self._own is not None:
            try:
                tree = found if self._earlier is None else self._join(self._earlier, found)
                lost = self._is_there and (self._earlier is None or self._loses(self._earlier, tree))
            except (KeyError, TypeError, AttributeError):  # results of an older version, or of other hands
                tree, lost = found, True
            self._put(self._own, tree, aside=lost)
            places.append(self._own)
        if self._also is not None:
            self._also.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._also, found)
            places.append(self._also)
        return places

    def _put(self, place: Path, tree: Tree, *, aside: bool) -> None:
        if aside:
            to = _free(place)
            place.rename(to)
            say(f"  earlier results, of another checkpoint or asked otherwise, are now in {to}")
            self._is_there = False
        place.parent.mkdir(parents=True, exist_ok=True)
        write_json(place, tree)


def _free(place: Path) -> Path:
    names = (f"{place.stem}.previous{f'-{n}' if n > 1 else ''}{place.suffix}" for n in count(1))
    return next(path for path in map(place.with_name, names) if not path.exists())


def _read(place: Path) -> Tree | None:
    """What was kept there; None where there is nothing, or nothing that can be read."""
    try:
        tree = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return tree if isinstance(tree, dict) else None
