"""Layers whose halves have a norm before and after."""

from collections.abc import Callable, Iterator

from trivium.certify.oracle.terms import Rule, Settings, Tensor, Twin
from trivium.certify.oracle.wiring import Drop, Half


def _rules(s: Settings, at: str, norm: Twin) -> Iterator[tuple[str, Rule]]:
    """The norms of a layer."""
    for half in ("attention", "mlp"):
        yield from norm.rules(s, f"{at}.{half}.norm")
        yield from norm.rules(s, f"{at}.{half}.after_norm")


def _compute(
    s: Settings, x: Tensor, halves: dict[str, Half], norm: Callable[[Tensor, str], Tensor], drop: Drop
) -> Tensor:
    """One half after the other."""
    for name, half in halves.items():
        x = x + drop(norm(half(norm(x, f"{name}.norm")), f"{name}.after_norm"), name)
    return x


SANDWICH = Twin(_rules, _compute)
