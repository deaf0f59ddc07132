"""A single process that acts as one rank of many: its collectives return at once and exchange nothing.

It serves to count what a layout allocates without running it. The results of its collectives have no meaning.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from trivium.comms.mesh import Mesh
from trivium.plan.layout import Layout


@contextmanager
def pretended(
    layout: Layout, rank: int, ends: tuple[int, ...] | None = None, device: torch.device | None = None
) -> Iterator[Mesh]:
    """Yield the mesh of one rank of a layout whose other ranks do not exist. The process must not be connected.

    ends, device: as for Mesh.connect.
    """
    if layout.world_size == 1:
        yield Mesh.connect(layout, 0, 1, device)
        return
    assert not dist.is_initialized(), f"rank {dist.get_rank()} is connected; it cannot pretend to be {rank}"
    dist.init_process_group("fake", rank=rank, world_size=layout.world_size, store=FakeStore())
    try:
        yield Mesh.connect(layout, rank, layout.world_size, device, ends=ends)
    finally:
        dist.destroy_process_group()
