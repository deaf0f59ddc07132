"""The bytes of a checkpoint by rank, and the time of copying them near the ranks (`training.near`)."""

from typing import NamedTuple

from trivium.cost.hardware import Machine
from trivium.cost.memory import memory_of_rank
from trivium.plan.layout import Layout
from trivium.plan.offload import NO_OFFLOAD
from trivium.plan.partition import Partition
from trivium.plan.plan import Plan

# From a device to its host's memory: most of PCIe 4.0 x16 (32 GB/s). Assumed, not measured.
HOST_COPY_BYTES_PER_SECOND = 20e9


class Saved(NamedTuple):
    """Bytes of a checkpoint. largest: most bytes that one rank writes. total: bytes of all tensors. writers: number of
    ranks that write."""

    largest: float
    total: float
    writers: int


class NearCopy(NamedTuple):
    """Time of a copy near the ranks. stops_seconds: how long training waits for it. sends_seconds: how long the network
    then takes to send it to a second host."""

    stops_seconds: float
    sends_seconds: float


def saved_bytes(plan: Plan) -> Saved:
    """Return the bytes of weights, masters and moments that ranks write; each element is written once.

    With ZeRO, the ranks that replicate a slice share it; without ZeRO, the first of them writes it. Ranks also write
    the state that their host keeps.
    """
    plan, layout = plan.model_copy(update={"offload": NO_OFFLOAD}), plan.layout
    held = [memory_of_rank(plan, layout.coordinate(0)._replace(pipeline=rank)) for rank in range(layout.pipeline)]
    copies = {0: 1, 1: layout.replicas, 2: layout.replicas, 3: layout.copies}[plan.zero]
    over = layout.copies if plan.zero else 1  # replicas of a sharded state
    largest = max(h.optimizer / over + h.weights / copies for h in held)
    # Tensors that several ranks replicate, such as norms and tied tables, are written once.
    changes = {"layout": Layout(), "schedule": "1f1b", "rows": None, "partition": Partition(), "zero": 0}
    whole = memory_of_rank(plan.model_copy(update=changes), Layout().coordinate(0))
    writers = layout.tensor * layout.pipeline * (layout.replicas if plan.zero else 1)
    return Saved(largest, whole.weights + whole.optimizer, writers)


def near_copy(plan: Plan, machine: Machine) -> NearCopy:
    """Return the time of a copy to the memory of each host and of a second one. A host's ranks share no link."""
    largest = saved_bytes(plan).largest
    return NearCopy(largest / HOST_COPY_BYTES_PER_SECOND, largest / machine.fabric_link.effective_bandwidth)
