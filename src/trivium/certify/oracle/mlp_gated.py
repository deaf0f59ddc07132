"""The feed-forward half with a gate. Legend: H hidden, F feed-forward width."""

from collections.abc import Iterator

import torch.nn.functional as F

from trivium.certify.oracle.terms import Rule, Settings, Tensor, Twin, Weights, linear


def _rules(s: Settings, at: str) -> Iterator[tuple[str, Rule]]:
    H = s.form.hidden
    # 8/3 H, so that three matrices have as many elements as two of 4 H, rounded up to a multiple of 64.
    columns = s.form.ffn if s.form.ffn is not None else (8 * H + 191) // 192 * 64
    yield f"{at}.up.weight", s.matrix(2, columns, H)
    yield f"{at}.down.weight", s.matrix(H, columns, residual=True)


def _compute(weights: Weights, s: Settings, x: Tensor, at: str) -> Tensor:
    gate, up = weights[f"{at}.up.weight"]
    return linear(weights, F.silu(x @ gate.T) * (x @ up.T), f"{at}.down")


MLP_GATED = Twin(_rules, _compute)
