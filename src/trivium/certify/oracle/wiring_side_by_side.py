"""Both halves of a layer read the same residual stream."""

from collections.abc import Callable, Iterator

from trivium.certify.oracle.terms import Rule, Settings, Tensor, Twin
from trivium.certify.oracle.wiring import Drop, Half


def _rules(s: Settings, at: str, norm: Twin) -> Iterator[tuple[str, Rule]]:
    """The norms of a layer."""
    for half in ("attention", "mlp"):
        yield from norm.rules(s, f"{at}.{half}.norm")


def _compute(
    s: Settings, x: Tensor, halves: dict[str, Half], norm: Callable[[Tensor, str], Tensor], drop: Drop
) -> Tensor:
    """Add to the stream what each half makes of it."""
    return x + sum(drop(half(norm(x, f"{name}.norm")), name) for name, half in halves.items())


SIDE_BY_SIDE = Twin(_rules, _compute)
