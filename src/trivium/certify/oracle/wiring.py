"""Connections of a layer's halves with the residual stream."""

from collections.abc import Callable, Iterator

from trivium.certify.oracle.terms import Rule, Settings, Tensor, Twin

Half = Callable[[Tensor], Tensor]
Drop = Callable[[Tensor, str], Tensor]  # (x [B, S, H], half) -> x with elements zeroed


def _one_norm(s: Settings, at: str, norm: Twin) -> Iterator[tuple[str, Rule]]:
    for half in ("attention", "mlp"):
        yield from norm.rules(s, f"{at}.{half}.norm")


def _two_norms(s: Settings, at: str, norm: Twin) -> Iterator[tuple[str, Rule]]:
    for half in ("attention", "mlp"):
        yield from norm.rules(s, f"{at}.{half}.norm")
        yield from norm.rules(s, f"{at}.{half}.after_norm")


def _sequential(
    s: Settings, x: Tensor, halves: dict[str, Half], norm: Callable[[Tensor, str], Tensor], drop: Drop
) -> Tensor:
    """Compute one half after the other, each with its norm before or after."""
    for name, half in halves.items():
        before = s.form.norm_position == "before"
        y = half(norm(x, f"{name}.norm")) if before else norm(half(x), f"{name}.norm")
        x = x + s.form.residual_scale * drop(y, name)
    return x


def _sandwich(
    s: Settings, x: Tensor, halves: dict[str, Half], norm: Callable[[Tensor, str], Tensor], drop: Drop
) -> Tensor:
    """Compute one half after the other, each with a norm before and after."""
    for name, half in halves.items():
        x = x + drop(norm(half(norm(x, f"{name}.norm")), f"{name}.after_norm"), name)
    return x


def _side_by_side(
    s: Settings, x: Tensor, halves: dict[str, Half], norm: Callable[[Tensor, str], Tensor], drop: Drop
) -> Tensor:
    """Compute both halves from the same residual stream."""
    return x + sum(drop(half(norm(x, f"{name}.norm")), name) for name, half in halves.items())


SEQUENTIAL = Twin(_one_norm, _sequential)
SANDWICH = Twin(_two_norms, _sandwich)
SIDE_BY_SIDE = Twin(_one_norm, _side_by_side)
