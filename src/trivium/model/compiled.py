"""Options of torch.compile for blocks, and regions that it does not trace: communication and deferred weight gradients.

A traced collective would be recompiled whenever the number of bytes counted so far changes.
"""

from functools import cache
from typing import Any, TypeVar

import torch

from trivium.parallel.context.attention import Context
from trivium.parallel.tensor.regions import Region

Kind = TypeVar("Kind", bound=type[Any])

# For fewer rows than twice the number of multiprocessors, torch splits sums along rows longer than SPLIT_ROW_ELEMENTS.
# From MIN_WHOLE_ROWS to MAX_WHOLE_ROWS, sums of whole rows are at least as fast: on an H200 the norm of 256 x 20480
# takes 40 us, forward and backward, instead of 78; 64 x 20480, 128 x 12288 and 512 x 20480 take the same time.
SPLIT_ROW_ELEMENTS, MIN_WHOLE_ROWS, MAX_WHOLE_ROWS = 8192, 64, 512


def options_for(activation_shape: tuple[int, int, int]) -> dict[str, Any] | None:
    """Return additional compiler options for blocks whose norms read [positions, sequences, columns]."""
    positions, sequences, columns = activation_shape
    rows = positions * sequences
    return (
        {"split_reductions": False}
        if columns > SPLIT_ROW_ELEMENTS and MIN_WHOLE_ROWS <= rows <= MAX_WHOLE_ROWS
        else None
    )


@cache
def opaque_region() -> type[Region]:
    """Return the class of regions whose products communicate or defer gradients."""
    return _opaque(Region, "linear", "column_product", "row_product", "enter", "norm_over_heads", "summed")


@cache
def opaque_context() -> type[Context]:
    """Return the class of context groups whose ranks exchange keys and values."""
    return _opaque(Context, "attend_joined", "attend")


def _opaque(kind: Kind, *methods: str) -> Kind:
    # When it is asked for: with this call torch imports its compiler, which takes a second or two.
    untraced = {n: torch.compiler.disable(getattr(kind, n)) for n in methods}
    return type(f"Opaque{kind.__name__}", (kind,), untraced)  # pyrefly: ignore[bad-return]
