"""Log-probabilities of narrow weights."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from trivium.comms.mesh import Mesh
from trivium.model import likelihood
from trivium.model.likelihood import likelihoods

HEAD = SimpleNamespace(product=F.linear, finished=lambda scores: scores)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_probability_is_at_most_one_and_that_of_the_softmax(dtype: torch.dtype) -> None:
    """Of sure predictions, where the sum of rounded logits may be less than the target's own."""
    torch.manual_seed(0)
    x, table = torch.randn(400, 64), torch.randn(500, 64) * 0.4
    targets = (x @ table.T).argmax(-1)
    x, table = (2 * x).to(dtype), table.to(dtype)
    every = torch.arange(400)
    group = Mesh.single().tensor
    found = likelihoods(x, table, HEAD, rows=every, targets=targets, group=group, vocabulary=500).nats
    exact = (x.double() @ table.double().T).log_softmax(-1)[every, targets]
    assert float(found.max()) <= 0
    logit = float((x.double() @ table.double().T).abs().max())
    rounding = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)  # scores are summed in fp32 at most
    assert float((found - exact).abs().max()) < 2 * logit * rounding


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_how_much_likelier_one_answer_is_than_another_is_not_rounded(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, table, rows = torch.randn(40, 64).to(dtype), torch.randn(50, 64).to(dtype) * 0.2, torch.arange(40)
    logits, group = x.double() @ table.double().T, Mesh.single().tensor
    one, other = (
        likelihoods(x, table, HEAD, rows=rows, targets=rows + n, group=group, vocabulary=50).nats for n in (0, 7)
    )
    exact = logits[rows, rows] - logits[rows, rows + 7]
    torch.testing.assert_close(one - other, exact, rtol=0, atol=1e-12)


def test_the_likeliest_of_a_vocabulary_in_blocks_is_the_first_of_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood, "BLOCK", 1)
    torch.manual_seed(0)
    x, table, rows = torch.randn(20, 16), torch.randn(300, 16), torch.arange(20)
    table[150:] = table[:150]  # each id has a twin in a later block
    found = likelihoods(x, table, HEAD, rows=rows, targets=rows, group=Mesh.single().tensor, vocabulary=300)
    assert torch.equal(found.likeliest, (x @ table[:150].T).argmax(-1))
    assert torch.allclose(found.nats, (x @ table.T).double().log_softmax(-1)[rows, rows], atol=1e-5)
