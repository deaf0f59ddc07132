"""This process's place in the layout, and its groups. A mesh is built once and passed down."""

from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from trivium.comms.group import ROLES, Group
from trivium.comms.launch import COLLECTIVE_TIMEOUT_SECONDS, lends_memory
from trivium.comms.transports import meet_on_host, transport_of
from trivium.config import written
from trivium.errors import ConfigError
from trivium.plan.layout import AXES, Axis, Coordinate, Layout

URGENT = ("tensor", "context", "pipeline", "expert")  # the next computation waits for messages of these groups


@dataclass(frozen=True, eq=False)
class Mesh:
    """The groups of one rank.

    replicas: the ranks that hold the same weights (data and context). ends: the pipeline ranks with the first and the
    last stage, which share a tied embedding; all of them with a round-robin head (`zb-turns`). sharers: the replicas
    that share one copy of the state that ZeRO shards, possibly all. holders: the ranks with the same slice, one of each
    copy. expert: the neighbouring replicas that divide the experts of each layer. expert_replicas, expert_sharers:
    those of the replicas and of the sharers that hold the same experts. Slices of experts have the same holders.
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
    sharers: Group
    holders: Group
    expert: Group
    expert_replicas: Group
    expert_sharers: Group

    @property
    def at(self) -> Coordinate:
        """This rank's coordinate: its index in each group. It is also valid where each replica runs on its own."""
        groups = (self.pipeline, self.data, self.tensor, self.context)
        return Coordinate(*(group.index for group in groups))

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups without repetition; a group may have several roles."""
        return tuple(dict.fromkeys(getattr(self, role) for role in ROLES))

    def group(self, axis: Axis) -> Group:
        """Return the group along an axis."""
        group: Group = getattr(self, axis)
        return group

    def joins(self, ends: tuple[int, ...]) -> bool:
        """Return whether this rank shares a group with the pipeline ranks `ends`, or is none of them."""
        return self.pipeline.index not in ends or {self.pipeline.ranks[n] for n in ends} <= {*self.ends.ranks}

    def refuse_other(self, layout: Layout, ends: tuple[int, ...]) -> None:
        """Raise ConfigError unless the mesh was connected for this layout and these ends; otherwise nobody would do the
        work of the missing ranks."""
        for name in (*AXES, "shards", "expert"):
            asked, here = getattr(layout, name), getattr(self.layout, name)
            if asked != here:
                raise ConfigError(
                    f"plan.layout.{name} is {written(asked)}, and the mesh was connected for {written(here)}; connect "
                    f"it for the plan's: Mesh.connect(plan.layout, …, ends=plan.ends), on each of its ranks"
                )
        if not self.joins(ends):
            raise ConfigError(
                f"the mesh was connected for other ends of the model than the plan's, the pipeline ranks {list(ends)}; "
                f"connect it for these: Mesh.connect(plan.layout, …, ends=plan.ends)"
            )

    def wait_at_most(self, seconds: float) -> None:
        """Set the timeout in seconds of later messages."""
        for group in self.groups:
            group.wait_at_most(seconds)
        if dist.group.WORLD is not None and any(group.handle is not None for group in self.groups):
            dist.group.WORLD.set_timeout(timedelta(seconds=seconds))

    @classmethod
    def connect(
        cls,
        layout: Layout,
        rank: int,
        world_size: int,
        device: torch.device | None = None,
        timeout_seconds: float = COLLECTIVE_TIMEOUT_SECONDS,
        ends: tuple[int, ...] | None = None,
        by_memory: bool = True,
    ) -> "Mesh":
        """Create the groups of a layout. Every rank of the process group must call this with the same arguments.

        timeout_seconds: of each collective, until `wait_at_most`; torch's groups do not inherit it from the process
        group. ends: the pipeline ranks of Plan.ends, by default the first and the last. by_memory: whether CPU ranks
        of one host read each other's memory instead of sending messages, if the host allows it.
        """
        problems = layout.problems(world_size)
        if problems:
            raise ConfigError("\n".join(problems))
        device = device or torch.device("cpu")
        sets = _sets_of_ranks(layout, ends or (0, layout.pipeline - 1))
        near: dict[int, Any] = {}
        if world_size > 1 and device.type == "cpu" and dist.get_backend() == "gloo":
            wanted = {r for each in sets.values() for ranks in each if rank in ranks for r in ranks}
            near = meet_on_host(rank, wanted, timeout_seconds, lends=by_memory and lends_memory())
        join = partial(_join, rank, device, timedelta(seconds=timeout_seconds), near)
        groups = {role: join(role, each) for role, each in sets.items()}
        # With one context rank the replicas are the data ranks, so they share one communicator.
        groups.setdefault("replicas", groups["data"])
        groups.setdefault("sharers", groups["replicas"])
        groups.setdefault("holders", Group("holders", (rank,), 0, None))
        groups.setdefault("expert", Group("expert", (rank,), 0, None))
        groups.setdefault("expert_replicas", groups["replicas"])
        groups.setdefault("expert_sharers", groups["expert_replicas" if layout.copies == 1 else "sharers"])
        if groups["pipeline"].size > 1 and dist.get_backend() == "nccl":
            greet_neighbours(groups["pipeline"], device)
        return cls(layout=layout, rank=rank, device=device, **groups)

    def disconnect(self) -> None:
        """Destroy the groups, so that the process can connect another mesh. Every rank calls this after its last
        message. Each group of gloo has threads, one of which wakes a hundred times a second."""
        handles = dict.fromkeys(group.handle for group in self.groups)
        if any(handles):
            dist.barrier()
        for handle in filter(None, handles):
            dist.destroy_process_group(handle)

    @classmethod
    def single(cls, device: torch.device | None = None) -> "Mesh":
        """Return the mesh of one process."""
        return cls.connect(Layout(), 0, 1, device)


def _sets_of_ranks(layout: Layout, held: tuple[int, ...]) -> dict[str, list[tuple[int, ...]]]:
    """Return the groups of all ranks, by role. held: the pipeline ranks of the first and the last stage, or all with a
    round-robin head."""
    found: dict[str, list[tuple[int, ...]]] = {axis: layout.peer_sets(axis) for axis in AXES}
    if layout.context > 1:
        found["replicas"] = layout.peer_sets(*layout.replica_axes)
    if layout.copies > 1:
        found["sharers"], found["holders"] = layout.sharer_sets(), layout.holder_sets()
    if layout.expert > 1:
        found["expert"], found["expert_replicas"] = layout.expert_sets(), layout.expert_replica_sets()
        if layout.copies > 1:
            found["expert_sharers"] = layout.expert_sharer_sets()
    found["ends"] = [tuple(peers[rank] for rank in sorted(held)) for peers in found["pipeline"]]
    return found


def _join(
    rank: int, device: torch.device, timeout: timedelta, near: dict[int, Any], role: str, groups: list[tuple[int, ...]]
) -> Group:
    """Create every group of a role and return the one to which this rank belongs. torch requires that every process
    creates every group, in the same order."""
    mine = Group(role, (rank,), 0, None)
    for members in groups:
        distinct = tuple(dict.fromkeys(members))
        # torch numbers the members of a group in the order of their ranks, and our index must agree with it.
        assert list(distinct) == sorted(distinct), f"group {role} lists its ranks {distinct} out of order"
        handle: Any = None
        if len(distinct) > 1:
            asked = _asked_of_nccl(role, timeout, device) if dist.get_backend() == "nccl" else {}
            handle = dist.new_group(list(distinct), timeout=timeout, **asked)
        if rank in distinct:
            mine = Group(role, distinct, distinct.index(rank), handle)
    if mine.handle is None:
        return mine
    return replace(mine, carrier=transport_of(mine.handle, mine.ranks, mine.index, near))


def _asked_of_nccl(role: str, timeout: timedelta, device: torch.device) -> dict[str, Any]:
    """Return NCCL's options. With a named device the ranks connect now. Otherwise they would connect at the first
    message, and the later ranks of a pipeline would time out while the first one compiles. Urgent messages get a
    high-priority stream, so that they progress on a GPU that is busy with a product."""
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=role in URGENT)
    options._timeout = timeout  # otherwise torch warns that it differs from the group's timeout
    return {"device_id": device, "pg_options": options}


def greet_neighbours(ring: Group, device: torch.device) -> tuple[int, int]:
    """Exchange indices with both neighbours at once. Return those received from the previous and the next rank.

    NCCL connects two ranks when they start their first message, and both hosts wait for that. In the first step each
    stage could therefore start to compile only after the previous stage had compiled and sent.
    """
    ahead, behind = ring.ranks[(ring.index + 1) % ring.size], ring.ranks[ring.index - 1]
    own = torch.full((1,), float(ring.index), device=device)
    got = torch.empty(2, 1, device=device)
    messages = [(dist.isend, own, ahead, 0), (dist.irecv, got[0], behind, 0)]
    messages += [(dist.isend, own, behind, 1), (dist.irecv, got[1], ahead, 1)]
    works = dist.batch_isend_irecv([dist.P2POp(f, x, peer, ring.handle, tag) for f, x, peer, tag in messages])
    for work in works:
        work.wait()
    first, second = got.flatten().tolist()
    return int(first), int(second)
