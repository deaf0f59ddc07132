"""RMSNorm with 1 + weight, from its definition."""

from collections.abc import Iterator

from trivium.certify.oracle.norms import rms
from trivium.certify.oracle.terms import Rule, Settings, Tensor, Twin, Weights


def _rules(s: Settings, at: str) -> Iterator[tuple[str, Rule]]:
    yield f"{at}.weight", Rule((s.form.hidden,))


def _compute(weights: Weights, s: Settings, x: Tensor, at: str) -> Tensor:
    return rms(x, s.form.norm_epsilon) * (1 + weights[f"{at}.weight"])


RMS_NORM_OFFSET = Twin(_rules, _compute)
