"""Machines that plans are priced on. machines/*.yaml holds the figures of data sheets and measurements."""

import math
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from trivium.config import (
    Config,
    NotNegative,
    Positive,
    Tree,
    build,
    build_named,
    merge,
    shipped,
    shipped_names,
    to_tree,
    tree_of_file,
)
from trivium.cost.constants import priors
from trivium.errors import ConfigError, nearest
from trivium.plan.layers.part import Number
from trivium.plan.precision import Dtype
from trivium.units import shown

# Bounds far from any machine, within which no price overflows.
Rate = Annotated[float, Field(ge=1e-6, le=1e30)]
Share = Annotated[float, Field(ge=1e-6, le=1)]
Seconds = Annotated[float, Field(ge=0, le=1e30)]
Generation = Literal["ampere", "hopper", "blackwell", "cpu"]

THIS_MACHINE = "this-machine"  # machines/this-machine.yaml, with the cores and memory that were found
FOLDER = "cost/machines"  # in the package
MEASURED_BOUND_FACTOR = 2.0  # a machine's measured constant may be outside the plausible range by this factor
USABLE_MEMORY_SHARE = 0.92  # of a device; allocator and libraries, which no estimate counts, need the rest


class Peak(Config):
    """Dense FLOP/s of one device, by the dtype of the operands. float8: None where products of 8-bit numbers are
    computed in a wider dtype."""

    fp64: Rate
    fp32: Rate
    bf16: Rate
    fp16: Rate
    float8: Rate | None = None


class Translation(Config):
    """Reverse address translation: the receiver of a message looks up the physical pages that it is written to.

    A message waits one walk before its first byte, and cold_share of its pages wait for walks of which parallel_walks
    run at once. First-order form of what arXiv 2604.02473 simulated; it publishes no constants.
    """

    page_bytes: Positive
    walk_seconds: Seconds  # time to walk the page table once
    parallel_walks: Positive = 1
    cold_share: Annotated[float, Field(ge=0, le=1)] = 1.0  # share of pages that no translation buffer holds

    @property
    def page_seconds(self) -> float:
        """Seconds that a page adds to a message."""
        return self.cold_share * self.walk_seconds / self.parallel_walks


class Link(Config):
    """A connection, as one device sees it.

    A ring collective over n ranks waits start_seconds + (n - 1) latency_seconds, and moves its bytes at
    bandwidth x efficiency; between nodes that times the constant `fabric`, learned from runs.
    """

    bandwidth: Rate  # bytes per second in each direction, from the data sheet
    efficiency: Share  # fraction of it that large collectives reach
    latency_seconds: Seconds  # latency of one hop of a collective
    start_seconds: Seconds = 0.0  # time before the first byte of a collective
    translation: Translation | None = None  # cost of reverse address translation; null: none

    @property
    def effective_bandwidth(self) -> float:
        """Bytes per second that a large collective reaches."""
        return self.bandwidth * self.efficiency


class Machine(Config):
    """`nodes` alike, each with `devices_per_node` devices.

    sharing "exclusive": at most one rank per device. "shared": ranks share the devices and their memory, as
    processes share the cores of a CPU; then a device is a core.
    constants: values of cost/constants.yaml that were measured on this machine, and hold here instead.
    sources: where each figure comes from, by the name of its field.
    """

    remedy: ClassVar[str] = "give it in the file; or let it begin with another machine's: base: NAME"

    name: str
    device: str
    generation: Generation
    peak: Peak
    multiprocessors: NotNegative = 0  # multiprocessors that tiles of a product fill in waves; 0: no waves
    memory_bytes: Positive  # memory of one device
    memory_bandwidth: Rate  # bytes per second of one device
    devices_per_node: Positive
    nodes: Positive
    node_link: Link  # inside a node
    fabric_link: Link  # between nodes
    sharing: Literal["exclusive", "shared"] = "exclusive"
    host_memory_bytes: NotNegative = 0  # memory of a node's host; 0: not known, and no plan may use it
    host_link: Link | None = None  # between a device and its host, while all devices of the node copy
    watts: Rate | None = None  # power of one device under load
    idle_watts: Rate | None = None  # power of one device that waits; null: as under load
    host_watts: Rate | None = None  # power of a node besides its devices; null: not counted
    price_per_hour: Rate | None = None  # price of one device
    constants: dict[str, float] = Field(default_factory=dict)
    sources: dict[str, str] = Field(default_factory=dict)

    @field_validator("constants")
    @classmethod
    def _known(cls, constants: dict[str, float]) -> dict[str, float]:
        for name, value in constants.items():
            if name not in priors():
                raise ValueError(f"there is no constant '{name}'; {nearest(name, priors())}")
            low, high = believed(name)
            if not low <= value <= high:
                raise ValueError(f"{name} must be between {low:g} and {high:g}: {priors()[name].meaning}")
        return constants

    @field_validator("sharing")
    @classmethod
    def _of_one_host(cls, sharing: str, given: ValidationInfo) -> str:
        nodes = given.data.get("nodes", 1)
        if sharing == "shared" and nodes > 1:
            raise ValueError(
                f"its ranks share the devices of one host, and nodes is {nodes}; set nodes to 1, or sharing to "
                f"exclusive"
            )
        return sharing

    @property
    def devices(self) -> int:
        return self.devices_per_node * self.nodes

    def with_nodes(self, nodes: int) -> "Machine":
        """Return the machine with another number of nodes. Raises ConfigError if it cannot have that many."""
        return build(Machine, {**to_tree(self), "nodes": nodes})

    def without_translation(self) -> "Machine":
        """Return the machine without the cost of reverse address translation."""
        links = {name: getattr(self, name) for name in ("node_link", "fabric_link")}
        return self.model_copy(
            update={name: link.model_copy(update={"translation": None}) for name, link in links.items()}
        )

    @property
    def translates(self) -> bool:
        """Whether a link has a cost of reverse address translation."""
        return any(link.translation is not None for link in (self.node_link, self.fabric_link))

    def crowding(self, ranks: Number) -> Number:
        """Return how many of `ranks` ranks compete for each device, at least 1; ranks may be an array."""
        return np.maximum(1.0, np.asarray(ranks) / self.devices) if self.sharing == "shared" else 1.0

    def peak_flops_per_second(self, dtype: Dtype, ranks: int) -> float:
        """Return the peak of all devices that `ranks` ranks compute on. dtype: of the operands."""
        devices = ranks if self.sharing == "exclusive" else self.devices
        return float(getattr(self.peak, dtype)) * devices

    def memory_per_rank(self, ranks: int) -> float:
        """Return the bytes of memory per rank if `ranks` ranks run."""
        if self.sharing == "shared":
            return self.memory_bytes * self.devices / ranks
        return float(self.memory_bytes)

    def usable_memory(self, ranks: int, share: float = USABLE_MEMORY_SHARE) -> float:
        """Return the bytes per rank that an estimate may use if `ranks` ranks run."""
        return share * self.memory_per_rank(ranks)

    def holds(self, device_bytes: Number, host_bytes: Number, ranks: int, share: float = USABLE_MEMORY_SHARE) -> Any:
        """Return whether `device_bytes` and `host_bytes` fit on a rank's device and host, if `ranks` ranks run. Arrays
        have one value per plan."""
        return self.lacking(device_bytes, host_bytes, ranks, share) == 0

    def lacking(self, device_bytes: Number, host_bytes: Number, ranks: int, share: float = USABLE_MEMORY_SHARE) -> Any:
        """Return by how many bytes `device_bytes` and `host_bytes` exceed a rank's device and host together, if `ranks`
        ranks run; 0 if both fit. Arrays have one value per plan. Where ranks share devices, both are one memory."""
        limit = self.usable_memory(ranks, share)
        if self.sharing == "shared":
            return np.maximum(0, np.asarray(device_bytes) + host_bytes - limit)
        host = np.maximum(0, np.asarray(host_bytes) - self.usable_host_memory(share))
        return np.maximum(0, np.asarray(device_bytes) - limit) + host

    def usable_host_memory(self, share: float = USABLE_MEMORY_SHARE) -> float:
        """Return the bytes that a rank may hold on its host."""
        return share * self.host_memory_bytes / self.devices_per_node if self.host_link is not None else 0.0

    @property
    def host_bandwidth(self) -> float:
        """Bytes per second in each direction between a device and its host; half of the memory's where both are one."""
        if self.sharing == "shared":
            return self.memory_bandwidth / 2
        return math.inf if self.host_link is None else self.host_link.effective_bandwidth

    def problems(self, ranks: int) -> list[str]:
        """Return a message if the machine has fewer devices than `ranks`."""
        if self.sharing == "exclusive" and ranks > self.devices:
            devices, nodes = ("s" * (n != 1) for n in (self.devices, self.nodes))
            return [
                f"the plan has {ranks} ranks but {self.name} has {self.devices} device{devices} "
                f"({self.nodes} node{nodes} x {self.devices_per_node}); use fewer ranks or a larger machine"
            ]
        return []


def believed(name: str) -> tuple[float, float]:
    """Return the bounds of a constant that was measured on a machine."""
    prior = priors()[name]
    return prior.low / MEASURED_BOUND_FACTOR, prior.high * MEASURED_BOUND_FACTOR


def machine_names() -> tuple[str, ...]:
    """Return the sorted names of the shipped machines."""
    return tuple(shipped_names(FOLDER))


@lru_cache(maxsize=64)
def machine_named(name: str) -> Machine:
    """Return a shipped machine by its name or an unambiguous short name such as h100. Raises ConfigError for an unknown
    name, with the nearest one."""
    if problem := machine_problem(name):
        raise ConfigError(problem)
    return build(Machine, _shipped(_meant(name)[0]))


def machine_problem(name: str) -> str:
    """Return why a name does not identify one shipped machine, with a remedy; "" if it does."""
    found = _meant(name)
    if len(found) > 1:
        return f"'{shown(name)}' may be {' or '.join(found)}; write one of these"
    return "" if found else f"there is no machine '{shown(name)}'; {nearest(name, machine_names())}"


def _meant(name: str) -> list[str]:
    """Return the shipped machines that a name may mean. A DGX takes precedence over others with the same devices."""
    names = machine_names()
    if name in names:
        return [name]
    short = name.lower().replace("_", "-").removeprefix("nvidia-").removesuffix("gb")
    return [n for n in names if n == f"dgx-{short}"] or [n for n in names if n.startswith(f"dgx-{short}-")]


def machine_from_file(path: str | Path) -> Machine:
    """Return the machine of a YAML file; `base: NAME` starts from a shipped one. Raises ConfigError with the
    problem."""
    tree = _tree(Path(path))
    try:
        whole = _with_base(tree)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return build_named(Machine, whole, str(path))


def this_machine(cores: int, memory_bytes: int) -> Machine:
    """Return a CPU machine from its cores and memory. Its other figures are assumptions
    (machines/this-machine.yaml)."""
    if cores < 1 or memory_bytes < cores:
        raise ConfigError(f"a machine of {cores} cores and {memory_bytes} bytes of memory cannot run a plan")
    found = {"devices_per_node": cores, "memory_bytes": memory_bytes // cores}
    return machine_named(THIS_MACHINE).model_copy(update=found)


def _shipped(name: str) -> Tree:
    return _with_base(_tree(shipped(f"{FOLDER}/{name}.yaml")))


def _with_base(tree: Tree) -> Tree:
    base = tree.pop("base", None)
    if base is None:
        return tree
    if base not in machine_names():
        raise ConfigError(f"base: there is no machine '{base}'; {nearest(str(base), machine_names())}")
    return merge(_shipped(base), tree)


def _tree(path: Path) -> Tree:
    return tree_of_file(path, f"machine file {path}", "a machine is a mapping of fields")
