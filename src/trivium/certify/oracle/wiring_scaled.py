"""The results of the halves of a layer are multiplied by a constant."""

from collections.abc import Callable

from trivium.certify.oracle.terms import Settings, Tensor, Twin
from trivium.certify.oracle.wiring import SEQUENTIAL, Drop, Half


def _compute(
    s: Settings, x: Tensor, halves: dict[str, Half], norm: Callable[[Tensor, str], Tensor], drop: Drop
) -> Tensor:
    """One half after the other, each with its norm before or after."""
    for name, half in halves.items():
        before = s.form.norm_position == "before"
        y = half(norm(x, f"{name}.norm")) if before else norm(half(x), f"{name}.norm")
        x = x + s.form.residual_scale * drop(y, name)
    return x


SEQUENTIAL_SCALED = Twin(SEQUENTIAL.rules, _compute)
