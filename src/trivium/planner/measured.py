"""The records of a probe. All seconds are medians."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "send"]


@dataclass(frozen=True)
class Product:
    """A product of m x k by k x n. dtype: of the operands. gradients: seconds of the two products of its backward, 0 if
    not measured."""

    dtype: str
    m: int
    n: int
    k: int
    seconds: float
    gradients: float = 0.0


@dataclass(frozen=True)
class Stream:
    """A sum of two fp32 vectors into a third."""

    elements: int
    seconds: float

    @property
    def moved_bytes(self) -> int:
        return 12 * self.elements


@dataclass(frozen=True)
class Attention:
    """Causal fused attention. forward, backward: seconds."""

    sequences: int
    sequence: int
    heads: int
    head_width: int
    forward: float
    backward: float
    dtype: str = "fp32"


@dataclass(frozen=True)
class Update:
    """One AdamW step in fp32."""

    elements: int
    seconds: float


@dataclass(frozen=True)
class Exchange:
    """A collective over `ranks` ranks. tensor_bytes: of the full tensor (all-gather: of the result). busy_seconds:
    seconds for which a rank had a core."""

    collective: Collective
    ranks: int
    tensor_bytes: int
    seconds: float
    busy_seconds: float = 0.0


@dataclass(frozen=True)
class SmallStep:
    """A full step of a small model. model, batch, layout: sections of its plan. recorded: replayed as a CUDA graph, so
    that the seconds are the device's. precision: dtype of the weights."""

    model: dict[str, Any]
    batch: dict[str, Any]
    seconds: float
    layout: dict[str, Any] = field(default_factory=dict)  # layout of several ranks; empty: one process
    precision: str = "fp32"
    recorded: bool = False


@dataclass(frozen=True)
class Measured:
    """All measurements of a probe. device: its name. devices: number of devices of this host."""

    device: str
    is_cpu: bool
    devices: int
    memory_bytes: int  # memory of one device
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
