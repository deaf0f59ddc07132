"""The placement of ranks on nodes, and the groups that cross the borders of nodes.

Ranks fill nodes in order, as launchers number them: node 0 first. So the layout's order decides what stays inside
a node. Tensor ranks exchange activations twice per layer and direction, far more than any other axis moves, so
their groups belong inside a node, on its fast links (MT-NLG, section 2).
"""

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple

from trivium.errors import ConfigError
from trivium.plan.layout import AXES, Axis, Layout, degrees_dividing
from trivium.units import counted


class Crossing(NamedTuple):
    """Groups of one axis: how many there are, how many span nodes, and over how many nodes the widest goes."""

    groups: int
    spanning: int
    nodes: int


def node_of(rank: int, per_node: int) -> int:
    """The node that holds a rank."""
    return rank // _positive(per_node)


def crossings(layout: Layout, per_node: int) -> dict[Axis, Crossing]:
    """Return which groups of each axis span nodes, slowest axis first."""
    found: dict[Axis, Crossing] = {}
    unnamed = [axis for axis in AXES if axis not in layout.order]  # axes of degree 1, unless the layout is illegal
    for axis in (*layout.order, *unnamed):
        firsts = (rank for rank in range(layout.world_size) if getattr(layout.coordinate(rank), axis) == 0)
        widths = [len({node_of(r, per_node) for r in layout.peers(first, axis)}) for first in firsts]
        found[axis] = Crossing(len(widths), sum(width > 1 for width in widths), max(widths))
    return found


def problems(layout: Layout, per_node: int, *, tensor_unit: int = 0, tensor_across_nodes: bool = False) -> list[str]:
    """Return why the layout should not be placed on nodes of `per_node` devices; empty if it may.

    tensor_unit: what every degree divides that the plan allows (`Plan.tensor_unit`); 0: it allows any.
    tensor_across_nodes: the user said that tensor groups may span nodes.
    """
    found = layout.problems()
    if found or tensor_across_nodes:
        return found
    crossing = crossings(layout, per_node)["tensor"]
    if not crossing.spanning:
        return []
    return [
        f"{crossing.spanning} of {crossing.groups} tensor groups of {layout.tensor} ranks would span nodes of "
        f"{per_node} devices (up to {crossing.nodes} nodes each): every layer would wait for the slow links between "
        f"nodes, twice forward and twice backward; {_remedy(layout, per_node, tensor_unit)}, or pass "
        f"--allow-tensor-across-nodes"
    ]


def draw(layout: Layout, per_node: int, *, nodes: Sequence[int] | None = None) -> list[str]:
    """One line per node (by default of every node): the ranks on it, and each device's coordinate in their order.

    A coordinate is written with the letters of its axes, slowest first, without axes of degree 1: p3d0t7.
    """
    world = layout.world_size
    if nodes is None:
        nodes = range(node_of(world - 1, per_node) + 1)
    axes = _shown(layout)
    width = sum(1 + len(str(layout.degree(axis) - 1)) for axis in axes)  # width of the widest coordinate
    rows = []
    for node in nodes:
        ranks = range(node * per_node, min((node + 1) * per_node, world))
        places = [layout.coordinate(rank) for rank in ranks]
        cells = ["".join(f"{axis[0]}{getattr(at, axis)}" for axis in axes).ljust(width) for at in places]
        rows.append((f"node {node}", _span(ranks), " ".join(cells)))
    columns = [max(len(row[c]) for row in rows) for c in (0, 1)] if rows else [0, 0]
    return [f"{name:<{columns[0]}}  {ranks:<{columns[1]}}  {cells.rstrip()}" for name, ranks, cells in rows]


def legend(layout: Layout) -> str:
    """Return the meaning of the letters in a drawing."""
    return ", ".join(f"{axis[0]} {axis}" for axis in _shown(layout))


def describe(layout: Layout, per_node: int) -> list[str]:
    """One line per axis: whether its groups cross the borders of nodes."""
    lines = []
    width = max(map(len, AXES))
    shown = _shown(layout)
    for axis, crossing in crossings(layout, per_node).items():
        if axis not in shown:
            continue
        lines.append(f"{axis:<{width}}  {_crossing_text(layout.degree(axis), crossing)}")
    return lines


def _shown(layout: Layout) -> list[Axis]:
    """The axes that have groups, slowest first; of a single rank, all."""
    return [axis for axis in layout.order if layout.degree(axis) > 1] or list(layout.order)


def _crossing_text(degree: int, crossing: Crossing) -> str:
    if degree == 1:
        return "one rank: nothing is exchanged"
    groups = f"{counted(crossing.groups, 'group')} of {degree}"
    if not crossing.spanning:
        return f"{groups}: inside a node"
    if crossing.spanning == crossing.groups:
        return f"{groups}: {'each' if crossing.groups > 1 else 'it'} spans up to {crossing.nodes} nodes"
    return f"{groups}: {crossing.spanning:,} span up to {crossing.nodes} nodes, the others stay inside one"


def _remedy(layout: Layout, per_node: int, tensor_unit: int) -> str:
    """The nearest layout whose tensor groups stay inside a node."""
    if per_node % layout.tensor == 0 and layout.order[-1] != "tensor":
        inner = [axis for axis in layout.order if axis != "tensor"]
        return f"set plan.layout.order=[{','.join([*inner, 'tensor'])}], so that tensor ranks are neighbours"
    legal = degrees_dividing(gcd(per_node, tensor_unit), layout.tensor)
    return f"set plan.layout.tensor to {' or '.join(map(str, legal))}, which divides the {per_node} devices of a node"


def _span(ranks: range) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"


def _positive(per_node: int) -> int:
    if per_node < 1:
        raise ConfigError(f"a node of {per_node} devices cannot hold a rank; give 1 or more per node")
    return per_node
