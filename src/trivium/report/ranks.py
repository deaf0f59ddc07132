"""Group ranks with identical memory, so that they are drawn once."""

from itertools import groupby
from typing import Any, NamedTuple


class Alike(NamedTuple):
    """Ranks with identical memory, their common coordinates, and their bytes by category."""

    ranks: tuple[int, ...]
    where: str
    predicted: dict[str, float]
    counted: dict[str, float]

    @property
    def name(self) -> str:
        """The name of the group, such as `ranks 0-3`."""
        return f"rank{'' if len(self.ranks) == 1 else 's'} {_runs(self.ranks)}"


def alike(rows: list[dict[str, Any]]) -> list[Alike]:
    """Group rows with equal figures, in the order of their first ranks."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: int(row["rank"])):
        key = (tuple(sorted(row["predicted"].items())), tuple(sorted(row["categories"].items())))
        found.setdefault(key, []).append(row)
    return [
        Alike(
            tuple(int(row["rank"]) for row in group),
            _common([row["coordinate"] for row in group]),
            group[0]["predicted"],
            group[0]["categories"],
        )
        for group in found.values()
    ]


def categories(groups: list[Alike]) -> list[str]:
    """Return all categories in a fixed order, the longest-lived first."""
    names = dict.fromkeys(name for group in groups for name in (*group.predicted, *group.counted))
    order = ("weights", "gradients", "optimizer", "activations")
    return sorted(names, key=lambda name: order.index(name) if name in order else len(order))


def _common(coordinates: list[dict[str, int]]) -> str:
    """Return the coordinates that all ranks share, such as `pipeline 0`."""
    first, *others = coordinates
    return ", ".join(f"{axis} {at}" for axis, at in first.items() if all(o.get(axis) == at for o in others))


def _runs(numbers: tuple[int, ...]) -> str:
    """Format numbers as runs, such as `0-3, 8, 10-11`."""
    parts = []
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        parts.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ", ".join(parts)
