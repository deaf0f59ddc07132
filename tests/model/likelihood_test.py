"""Log-probabilities from 16-bit weights."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from ranks import ranks
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.model import likelihood
from trivium.model.likelihood import likelihoods
from trivium.plan.layout import Layout

HEAD = SimpleNamespace(product=F.linear, finished=lambda scores: scores)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_probability_is_at_most_one_and_that_of_the_softmax(dtype: torch.dtype) -> None:
    """Predictions are confident, so that a sum of rounded exponentials may be less than the target's own."""
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


@ranks(3)
def test_tensor_ranks_find_what_one_process_finds(place: Place) -> None:
    """The last rank pads the vocabulary, and every rank has some of the targets."""
    torch.manual_seed(0)
    x, table, rows = torch.randn(9, 16).double(), torch.randn(30, 16).double(), torch.arange(9)
    targets = torch.tensor([0, 9, 10, 19, 20, 27, 27, 5, 13])
    group = Mesh.connect(Layout(tensor=3), place.rank, place.world_size).tensor
    mine = table[10 * place.rank :][:10]
    found = likelihoods(x, mine, HEAD, rows=rows, targets=targets, group=group, vocabulary=28)
    logs = (x @ table[:28].T).log_softmax(-1)
    torch.testing.assert_close(found.nats, logs[rows, targets], rtol=1e-6, atol=1e-6)
    assert torch.equal(found.likeliest, logs.argmax(-1))


def test_logits_in_memory_at_once_do_not_grow_with_the_vocabulary_or_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood, "BLOCK", 1 << 12)
    sizes: list[int] = []

    def product(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x) * len(rows))
        return F.linear(x, rows)

    head = SimpleNamespace(product=product, finished=lambda scores: scores)
    for count, vocabulary in ((2, 5000), (16, 5000), (16, 9000)):
        x, table, rows = torch.randn(count, 4), torch.randn(vocabulary, 4), torch.arange(count)
        likelihoods(x, table, head, rows=rows, targets=rows, group=Mesh.single().tensor, vocabulary=vocabulary)
    assert max(sizes) == 1 << 12
