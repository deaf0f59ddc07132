"""This process's place in the layout, and the groups it talks to. Built once, passed down."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from trivium.errors import ConfigError
from trivium.plan.layout import AXES, Axis, Coordinate, Layout

TAGS = range(1 << 30, (1 << 31) - 1)  # below are the numbers of pipeline transfers


def _tags() -> Iterator[int]:
    while True:
        yield from TAGS


@dataclass(frozen=True, eq=False)
class Group:
    """Ranks that differ along one axis, and this process's index among them.

    traffic: bytes this rank handed to each collective, for comparison with the cost model.
    tags: numbers for direct messages, drawn alike on every rank of the group.
    """

    role: str  # the axis, or "ends"
    ranks: tuple[int, ...]
    index: int
    handle: dist.ProcessGroup | None  # None when alone: collectives become no-ops
    traffic: Counter[str] = field(default_factory=Counter)
    tags: Iterator[int] = field(default_factory=_tags)

    def count(self, collective: str, tensor: torch.Tensor) -> None:
        """Add a tensor's bytes to the traffic of a collective."""
        self.traffic[collective] += tensor.numel() * tensor.element_size()

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def is_gloo(self) -> bool:
        """Whether the ranks talk over gloo, which lacks or is slow at some collectives."""
        return self.handle is not None and dist.get_backend(self.handle) == "gloo"


@dataclass(frozen=True, eq=False)
class Mesh:
    """The groups of one rank.

    replicas: the ranks that hold the same weights (data and context). ends: the first and the last pipeline rank,
    which share a tied embedding.
    """

    layout: Layout
    rank: int
    device: torch.device
    tensor: Group
    data: Group
    pipeline: Group
    context: Group
    replicas: Group
    ends: Group

    @property
    def at(self) -> Coordinate:
        """This rank's coordinate."""
        return self.layout.coordinate(self.rank)

    def group(self, axis: Axis) -> Group:
        """The group along an axis."""
        group: Group = getattr(self, axis)
        return group

    @property
    def is_first_of(self) -> dict[Axis, bool]:
        """Whether this rank is the first along each axis."""
        return {axis: self.group(axis).index == 0 for axis in AXES}

    @classmethod
    def connect(
        cls, layout: Layout, rank: int, world_size: int, device: torch.device | None = None
    ) -> "Mesh":
        """Create the groups of a layout; every rank of the process group must call this alike."""
        problems = layout.problems(world_size)
        if problems:
            raise ConfigError("\n".join(problems))
        groups = {axis: _join(axis, rank, _all_peers(layout, axis)) for axis in AXES}
        # Where there is one context rank the replicas are the data ranks: one communicator serves both.
        alike = layout.context == 1
        replicas = groups["data"] if alike else _join("replicas", rank, _all_peers(layout, "data", "context"))
        return cls(
            layout=layout,
            rank=rank,
            device=device or torch.device("cpu"),
            replicas=replicas,
            ends=_join("ends", rank, [(peers[0], peers[-1]) for peers in _all_peers(layout, "pipeline")]),
            **groups,
        )

    @classmethod
    def single(cls, device: torch.device | None = None) -> "Mesh":
        """The mesh of one process."""
        return cls.connect(Layout(), 0, 1, device)


def barrier(mesh: Mesh) -> None:
    """Wait until every rank of the mesh is here."""
    if mesh.layout.world_size > 1:
        dist.barrier()


def _all_peers(layout: Layout, *axes: Axis) -> list[tuple[int, ...]]:
    # Sorted by their ranks, not by the order within: layouts may list axes in any order.
    return sorted({layout.peers(r, *axes) for r in range(layout.world_size)})


def _join(role: str, rank: int, groups: list[tuple[int, ...]]) -> Group:
    """Every process creates every group, in the same order, as torch requires; it belongs to at most one."""
    mine = Group(role, (rank,), 0, None)
    for peers in groups:
        distinct = tuple(dict.fromkeys(peers))
        handle = dist.new_group(list(distinct)) if len(distinct) > 1 else None
        if rank in distinct:
            mine = Group(role, distinct, distinct.index(rank), handle)
    return mine
