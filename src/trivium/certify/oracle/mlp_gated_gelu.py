"""The feed-forward half with a gate by GELU in its tanh form."""

from trivium.certify.oracle.activations import ACTIVATIONS
from trivium.certify.oracle.mlp_gated import MLP_GATED
from trivium.certify.oracle.terms import Settings, Tensor, Twin, Weights, linear


def _compute(weights: Weights, s: Settings, x: Tensor, at: str) -> Tensor:
    gate, up = weights[f"{at}.up.weight"]
    return linear(weights, ACTIVATIONS["gelu_tanh"](x @ gate.T) * (x @ up.T), f"{at}.down")


MLP_GATED_GELU = Twin(MLP_GATED.rules, _compute)
