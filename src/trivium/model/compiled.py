"""What torch.compile is asked for where blocks are compiled, and what it leaves as it is: communication, and weight
gradients put off. Traced, a collective would be compiled anew whenever the bytes counted so far change.
"""

from functools import cache
from typing import Any, TypeVar

import torch

from trivium.parallel.context.attention import Context
from trivium.parallel.tensor.regions import Region

Kind = TypeVar("Kind", bound=type[Any])

# Of fewer rows than twice its multiprocessors torch splits sums along rows that are longer than this. From so many rows
# on they are enough to be summed whole: the norm of 256 x 20480 takes an H200 40 us, forward and backward, instead of
# 78; 64 x 20480, 128 x 12288 and 512 x 20480 as long as before.
LONG, ENOUGH, MANY = 8192, 64, 512


def options_for(activation_shape: tuple[int, int, int]) -> dict[str, Any] | None:
    """What the compiler of blocks is asked for besides, whose norms read so many positions x sequences x columns."""
    positions, sequences, columns = activation_shape
    rows = positions * sequences
    return {"split_reductions": False} if columns > LONG and ENOUGH <= rows <= MANY else None


@cache
def opaque_region() -> type[Region]:
    """A region whose products communicate, or put gradients off."""
    return _opaque(Region, "linear", "column_product", "row_product", "norm_over_heads", "summed")


@cache
def opaque_context() -> type[Context]:
    """Ranks that exchange what they attend to."""
    return _opaque(Context, "attend_joined", "attend")


def _opaque(kind: Kind, *methods: str) -> Kind:
    # When it is asked for: with this call torch imports its compiler, which takes a second or two.
    untraced = {n: torch.compiler.disable(getattr(kind, n)) for n in methods}
    return type(f"Opaque{kind.__name__}", (kind,), untraced)  # type: ignore[return-value]
