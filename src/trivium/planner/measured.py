"""What a probe measures, as plain records; seconds are medians."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "send"]


@dataclass(frozen=True)
class Product:
    """m x k by k x n. dtype: of the operands, as in plan.precision. gradients: of the two products of its backward,
    where they were measured."""

    dtype: str
    m: int
    n: int
    k: int
    seconds: float
    gradients: float = 0.0


@dataclass(frozen=True)
class Stream:
    """A sum of two vectors into a third: three times `elements` x 4 bytes are moved."""

    elements: int
    seconds: float

    @property
    def moved_bytes(self) -> int:
        return 12 * self.elements


@dataclass(frozen=True)
class Attention:
    """Causal fused attention of `heads` heads on so many sequences; forward, and backward. dtype: as a product's."""

    sequences: int
    sequence: int
    heads: int
    head_width: int
    forward: float
    backward: float
    dtype: str = "fp32"


@dataclass(frozen=True)
class Update:
    """One step of AdamW in fp32 over so many elements."""

    elements: int
    seconds: float


@dataclass(frozen=True)
class Exchange:
    """A collective over `ranks` ranks. tensor_bytes: of the whole tensor (all-gather: of the result). busy_seconds: for
    which a rank had a core."""

    collective: Collective
    ranks: int
    tensor_bytes: int
    seconds: float
    busy_seconds: float = 0.0


@dataclass(frozen=True)
class SmallStep:
    """A whole step of a small model: plan.model, plan.batch and plan.layout as trees, and its seconds. recorded: it was
    replayed, so that the device's time is told and not its host's. precision: as plan.precision.weights."""

    model: dict[str, Any]
    batch: dict[str, Any]
    seconds: float
    layout: dict[str, Any] = field(default_factory=dict)  # of several ranks; empty: one process alone
    precision: str = "fp32"
    recorded: bool = False


@dataclass(frozen=True)
class Measured:
    """Everything one probe measured on a device: its name, whether it is a CPU, and how many there are here."""

    device: str
    is_cpu: bool
    devices: int
    memory_bytes: int  # of one device
    products: tuple[Product, ...]
    streams: tuple[Stream, ...]
    attentions: tuple[Attention, ...]
    updates: tuple[Update, ...]
    exchanges: tuple[Exchange, ...]
    steps: tuple[SmallStep, ...]
    split_steps: tuple[SmallStep, ...] = ()

    def tree(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)
