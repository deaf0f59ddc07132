"""The feed-forward half without a gate. Legend: H hidden, F feed-forward width."""

from collections.abc import Iterator

from trivium.certify.oracle.activations import ACTIVATIONS
from trivium.certify.oracle.terms import Rule, Settings, Tensor, Twin, Weights, linear


def _rules(s: Settings, at: str) -> Iterator[tuple[str, Rule]]:
    H = s.form.hidden
    columns = s.form.ffn if s.form.ffn is not None else 4 * H
    yield f"{at}.up.weight", s.matrix(columns, H)
    yield f"{at}.down.weight", s.matrix(H, columns, residual=True)
    if s.form.bias == "all":
        yield f"{at}.up.bias", Rule((columns,))
        yield f"{at}.down.bias", Rule((H,))


def _compute(weights: Weights, s: Settings, x: Tensor, at: str) -> Tensor:
    function = ACTIVATIONS[s.form.activation]
    return linear(weights, function(linear(weights, x, f"{at}.up")), f"{at}.down")


MLP_PLAIN = Twin(_rules, _compute)
