"""Connection of a layer's halves with the residual stream, in sequence."""

from collections.abc import Callable, Iterator

from trivium.certify.oracle.terms import Rule, Settings, Tensor, Twin

Half = Callable[[Tensor], Tensor]
Drop = Callable[[Tensor, str], Tensor]  # (x [B, S, H], half) -> x with elements zeroed


def _rules(s: Settings, at: str, norm: Twin) -> Iterator[tuple[str, Rule]]:
    """The norms of a layer."""
    yield from norm.rules(s, f"{at}.attention.norm")
    yield from norm.rules(s, f"{at}.mlp.norm")


def _compute(
    s: Settings, x: Tensor, halves: dict[str, Half], norm: Callable[[Tensor, str], Tensor], drop: Drop
) -> Tensor:
    """One half after the other, each with its norm before or after."""
    for name, half in halves.items():
        before = s.form.norm_position == "before"
        y = half(norm(x, f"{name}.norm")) if before else norm(half(x), f"{name}.norm")
        x = x + s.form.residual_scale * drop(y, name)
    return x


SEQUENTIAL = Twin(_rules, _compute)
