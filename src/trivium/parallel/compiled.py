"""What torch.compile leaves as it is where blocks are compiled: communication, and weight gradients put off.

Traced, a collective would be compiled anew whenever the bytes counted so far change.
"""

from functools import cache
from typing import Any, TypeVar

import torch

from trivium.parallel.context import Context
from trivium.parallel.tensor import Region

Kind = TypeVar("Kind", bound=type[Any])


@cache
def opaque_region() -> type[Region]:
    """A region whose products communicate, or put gradients off."""
    return _opaque(Region, "linear", "column_product", "row_product", "norm_over_heads")


@cache
def opaque_context() -> type[Context]:
    """Ranks that exchange what they attend to."""
    return _opaque(Context, "attend_joined", "attend")


def _opaque(kind: Kind, *methods: str) -> Kind:
    # When it is asked for: with this call torch imports its compiler, which takes a second or two.
    untraced = {n: torch.compiler.disable(getattr(kind, n)) for n in methods}
    return type(f"Opaque{kind.__name__}", (kind,), untraced)  # type: ignore[return-value]
