"""Log-probabilities of narrow weights."""

import pytest
import torch

from trivium.model.likelihood import likelihoods
from trivium.parallel.mesh import Mesh


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_probability_is_at_most_one_and_that_of_the_softmax(dtype: torch.dtype) -> None:
    """Of sure predictions, where the sum of rounded logits may be less than the target's own."""
    torch.manual_seed(0)
    x, table = torch.randn(400, 64), torch.randn(500, 64) * 0.4
    targets = (x @ table.T).argmax(-1)
    x, table = (2 * x).to(dtype), table.to(dtype)
    every = torch.arange(400)
    group = Mesh.single().tensor
    found = likelihoods(x, table, rows=every, targets=targets, group=group, vocabulary=500).nats
    exact = (x.double() @ table.double().T).log_softmax(-1)[every, targets]
    assert float(found.max()) <= 0
    logit = float((x.double() @ table.double().T).abs().max())
    rounding = max(
        torch.finfo(dtype).eps, torch.finfo(torch.float32).eps
    )  # scores are summed in fp32 at most
    assert float((found - exact).abs().max()) < 2 * logit * rounding
