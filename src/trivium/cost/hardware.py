"""Machines a plan can be priced on: figures of a data sheet, as data."""

from typing import Annotated, Literal

from pydantic import Field

from trivium.config import Config
from trivium.errors import ConfigError, nearest
from trivium.plan.precision import Dtype

Rate = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]

MINIMUM_CPU_FLOPS = 64e9  # two 256-bit fp32 multiply-adds per cycle at 2 GHz: any x86 server core since 2013


class Peak(Config):
    """Dense FLOP/s of one device, by the dtype of the operands."""

    fp64: Rate
    fp32: Rate
    bf16: Rate
    fp16: Rate


class Link(Config):
    """A connection, as one device sees it."""

    bandwidth: Rate  # bytes per second in each direction, from the data sheet
    efficiency: Annotated[float, Field(gt=0, le=1)]  # fraction of it that large collectives reach
    latency_seconds: Annotated[float, Field(ge=0)]  # of one hop of a collective

    @property
    def effective_bandwidth(self) -> float:
        """Bytes per second that a large collective reaches."""
        return self.bandwidth * self.efficiency


class Machine(Config):
    """`nodes` alike, each with `devices_per_node` devices.

    sharing "exclusive": at most one rank per device. "shared": ranks share the devices and their memory, as
    processes share the cores of a CPU; then a device is a core.
    """

    name: str
    device: str
    peak: Peak
    compute_efficiency: Annotated[float, Field(gt=0, le=1)]  # fraction of peak that a whole layer reaches
    memory_bytes: Count  # of one device
    memory_bandwidth: Rate  # bytes per second of one device
    devices_per_node: Count
    nodes: Count
    node_link: Link  # inside a node
    fabric_link: Link  # between nodes
    sharing: Literal["exclusive", "shared"] = "exclusive"

    @property
    def devices(self) -> int:
        return self.devices_per_node * self.nodes

    def flops_per_second(self, dtype: Dtype, ranks: int) -> float:
        """FLOP/s one of `ranks` ranks reaches while no other competes for its devices."""
        return float(getattr(self.peak, dtype)) * self.compute_efficiency * self._devices_per_rank(ranks)

    def crowding(self, ranks: int) -> float:
        """How many ranks want each device at once: 1 unless shared."""
        return max(1.0, ranks / self.devices) if self.sharing == "shared" else 1.0

    def memory_per_rank(self, ranks: int) -> float:
        """Bytes one of `ranks` ranks may use."""
        if self.sharing == "shared":
            return self.memory_bytes * self.devices / ranks
        return float(self.memory_bytes)

    def link_between(self, ranks: tuple[int, ...]) -> Link:
        """The slowest link a ring over `ranks` crosses."""
        if self.sharing == "shared" or len({rank // self.devices_per_node for rank in ranks}) == 1:
            return self.node_link
        return self.fabric_link

    def problems(self, ranks: int) -> list[str]:
        """Whether so many ranks find a place."""
        if self.sharing == "exclusive" and ranks > self.devices:
            return [
                f"the plan has {ranks} ranks but {self.name} has {self.devices} devices "
                f"({self.nodes} nodes x {self.devices_per_node}); use fewer ranks or a larger machine"
            ]
        return []

    def _devices_per_rank(self, ranks: int) -> int:
        return max(1, self.devices // ranks) if self.sharing == "shared" else 1


# compute_efficiency: median over twelve published Megatron-LM runs of 1.7B to 1T parameters on this machine, the
# one figure fitted (tests/cost/estimate_test.py repeats it). MT-NLG's own runs took no part: they ran slower than
# their Megatron-LM neighbours, and are predicted, not matched. Link efficiency inside a node: collectives
# measured with NCCL on 8 A100 reach 235 of 300 GB/s.
_SELENE = Machine(
    name="selene",
    device="A100 80 GB",
    peak=Peak(fp64=19.5e12, fp32=19.5e12, bf16=312e12, fp16=312e12),
    compute_efficiency=0.62,
    memory_bytes=80_000_000_000,
    memory_bandwidth=2.039e12,
    devices_per_node=8,
    nodes=560,
    node_link=Link(bandwidth=300e9, efficiency=0.78, latency_seconds=6e-6),
    fabric_link=Link(bandwidth=25e9, efficiency=0.9, latency_seconds=10e-6),
)
# Data sheet figures; the efficiency is assumed, and not checked against published runs yet.
_DGX_H100 = Machine(
    name="dgx-h100",
    device="H100 SXM 80 GB",
    peak=Peak(fp64=67e12, fp32=67e12, bf16=989.5e12, fp16=989.5e12),
    compute_efficiency=0.5,
    memory_bytes=80_000_000_000,
    memory_bandwidth=3.35e12,
    devices_per_node=8,
    nodes=128,
    node_link=Link(bandwidth=450e9, efficiency=0.78, latency_seconds=6e-6),
    fabric_link=Link(bandwidth=50e9, efficiency=0.9, latency_seconds=10e-6),
)
MACHINES: tuple[Machine, ...] = (_SELENE, _DGX_H100)


def machine_named(name: str) -> Machine:
    """A machine by name; an unknown name is a ConfigError that names the nearest."""
    for machine in MACHINES:
        if machine.name == name:
            return machine
    raise ConfigError(f"there is no machine '{name}'; {nearest(name, (m.name for m in MACHINES))}")


def this_machine(cores: int, memory_bytes: int) -> Machine:
    """A CPU machine from the two figures that can be read without measuring; the rest is assumed.

    Assumed: the FLOP/s of an ordinary core, of which small matrices in eager torch reach two fifths; 10 GB/s of
    memory per core; collectives over shared memory at 1 GB/s with 100 us per hop, as gloo has them.
    """
    if cores < 1 or memory_bytes < cores:
        raise ConfigError(f"a machine of {cores} cores and {memory_bytes} bytes of memory cannot run a plan")
    link = Link(bandwidth=1e9, efficiency=1.0, latency_seconds=1e-4)
    return Machine(
        name="this-machine",
        device="CPU core",
        peak=Peak(
            fp64=MINIMUM_CPU_FLOPS / 2,
            fp32=MINIMUM_CPU_FLOPS,
            bf16=MINIMUM_CPU_FLOPS / 4,  # emulated on most cores
            fp16=MINIMUM_CPU_FLOPS / 20,
        ),
        compute_efficiency=0.4,
        memory_bytes=memory_bytes // cores,
        memory_bandwidth=10e9,
        devices_per_node=cores,
        nodes=1,
        node_link=link,
        fabric_link=link,
        sharing="shared",
    )
