"""The split vocabulary gives the whole vocabulary's cross-entropy, and padding takes no part."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks

from ranks import ranks
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.objectives.terms.z_loss import ZLoss
from trivium.parallel.tensor import regions as tensor
from trivium.parallel.tensor.regions import MAX_DIRECT_IDS, FewLookUps, embed, look_up, split_cross_entropy
from trivium.plan.layout import Layout


@ranks(1, 2, 4)
def test_split_cross_entropy_equals_that_of_the_unpadded_whole(place: Place) -> None:
    group = Mesh.connect(Layout(tensor=place.world_size), place.rank, place.world_size).tensor
    vocabulary, rows = 13, 4 * 4 // place.world_size
    tensor.BLOCK_ROWS = 4  # of six, in a process of its own
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(3, 2, 16, generator=generator, dtype=torch.float64) * 30  # far apart: exp would overflow
    whole[..., vocabulary:] = 1e4  # padding must not count, however large
    targets = torch.randint(0, vocabulary, (3, 2), generator=generator)
    here = whole[..., group.index * rows : (group.index + 1) * rows].clone().requires_grad_()
    weights = torch.rand(3, 2, generator=generator, dtype=torch.float64)
    losses = split_cross_entropy(here, targets, group, vocabulary)
    (losses * weights).sum().backward()
    plain = whole[..., :vocabulary].clone().requires_grad_()
    expected = F.cross_entropy(plain.flatten(0, 1), targets.flatten(), reduction="none").view(3, 2)
    (expected * weights).sum().backward()
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
    padded = F.pad(plain.grad, (0, 16 - vocabulary))
    torch.testing.assert_close(
        here.grad, padded[..., group.index * rows : (group.index + 1) * rows], rtol=1e-12, atol=1e-14
    )


def test_half_precision_logits_are_reduced_in_fp32_some_rows_at_a_time(monkeypatch) -> None:
    """The last row's target is nearly certain: p - 1 is as exact as bf16 holds it, and nothing wide is kept."""
    monkeypatch.setattr(tensor, "BLOCK_ROWS", 2)
    group, targets = Mesh.single().tensor, torch.tensor([[1], [2], [3], [0], [5]])
    logits = torch.randn(5, 1, 8, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    logits[4, 0, 5] += 9
    logits.requires_grad_()
    kept: list[torch.Tensor] = []
    with saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        losses = split_cross_entropy(logits, targets, group, 8)
    assert losses.dtype == torch.float32
    assert max(t.numel() for t in kept if t.dtype == torch.float32) == 5
    wide = logits.detach().float().flatten(0, 1).requires_grad_()
    expected = F.cross_entropy(wide, targets.flatten(), reduction="none")
    torch.testing.assert_close(losses.flatten(), expected)
    factor = torch.arange(1.0, 6.0)
    (losses.flatten() * factor).sum().backward()
    (expected * factor).sum().backward()
    assert logits.grad is not None and wide.grad is not None and logits.grad.dtype == torch.bfloat16
    torch.testing.assert_close(logits.grad.flatten(0, 1).float(), wide.grad, rtol=2**-7, atol=0)


def test_the_gradient_of_a_table_is_the_rows_that_were_looked_up_and_joins_that_of_a_tied_head() -> None:
    torch.manual_seed(2)
    tokens, group = torch.tensor([[3, 1], [3, 0]]), Mesh.single().tensor
    table, factor = torch.randn(5, 4, dtype=torch.float64), torch.randn(2, 2, 4, dtype=torch.float64)
    expected = torch.zeros_like(table).index_add_(0, tokens.flatten(), factor.flatten(0, 1))
    alone = table.clone().requires_grad_()
    (embed(tokens, alone, group) * factor).sum().backward()
    assert alone.grad is not None and alone.grad.is_sparse and alone.grad._nnz() == tokens.numel()
    assert torch.allclose(alone.grad.to_dense(), expected)
    tied = table.clone().requires_grad_()
    ((embed(tokens, tied, group) * factor).sum() + 3 * tied.sum()).backward()
    assert tied.grad is not None and torch.allclose(tied.grad, expected + 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_frequent_tokens_narrow_gradient_is_summed_wide_and_rounded_once(dtype: torch.dtype) -> None:
    """Added one at a time, 4,096 small parts of a bf16 row stop growing at half of their sum."""
    torch.manual_seed(3)
    tokens, group = torch.randint(0, 2, (4096, 1)), Mesh.single().tensor
    parts = (torch.randn(4096, 1, 8) + 0.5).to(dtype) / 64
    expected = torch.zeros(3, 8).index_add_(0, tokens.flatten(), parts.flatten(0, 1).float())
    table = torch.zeros(3, 8, dtype=dtype, requires_grad=True)
    embed(tokens, table, group).backward(parts)
    assert table.grad is not None
    assert torch.equal(table.grad.to_dense(), expected.to(dtype))


def test_few_ids_of_a_narrow_table_are_made_more_on_an_accelerator_and_give_the_same_gradient() -> None:
    torch.manual_seed(4)
    ids, parts = torch.randint(0, 5, (7, 3)), torch.randn(7, 3, 4, dtype=torch.float64)
    expected = torch.zeros(5, 4, dtype=torch.float64).index_add_(0, ids.flatten(), parts.flatten(0, 1))
    table = torch.zeros(5, 4, dtype=torch.float64, requires_grad=True)
    FewLookUps.apply(ids, table).backward(parts)
    torch.testing.assert_close(table.grad, expected)
    for dtype, count, own in (
        (torch.bfloat16, MAX_DIRECT_IDS, True),
        (torch.bfloat16, MAX_DIRECT_IDS + 1, False),
        (torch.float32, MAX_DIRECT_IDS, False),
    ):
        there = torch.empty(5, 4, dtype=dtype, device="meta", requires_grad=True)
        rows = look_up(torch.zeros(count, 1, dtype=torch.long, device="meta"), there, sparse=False)
        assert ("FewLookUps" in type(rows.grad_fn).__name__) is own
        rows.sum().backward()
        assert there.grad is not None and there.grad.shape == there.shape


@ranks(1, 2, 4)
def test_the_z_loss_of_a_split_vocabulary_is_that_of_the_unpadded_whole(place: Place) -> None:
    """The logarithm of the sum over all ranks' rows; the gradient is that of both losses."""
    group = Mesh.connect(Layout(tensor=place.world_size), place.rank, place.world_size).tensor
    vocabulary, rows, z_loss = 13, 4 * 4 // place.world_size, 0.02
    tensor.BLOCK_ROWS = 4  # of six, in a process of its own
    generator = torch.Generator().manual_seed(1)
    whole = torch.randn(3, 2, 16, generator=generator, dtype=torch.float64) * 30 + 5
    whole[..., vocabulary:] = 1e4
    targets = torch.randint(0, vocabulary, (3, 2), generator=generator)
    mine = slice(group.index * rows, (group.index + 1) * rows)
    here = whole[..., mine].clone().requires_grad_()
    weights = torch.rand(3, 2, generator=generator, dtype=torch.float64)
    losses, z_losses = split_cross_entropy(here, targets, group, vocabulary, (ZLoss(z_loss),))
    (losses * weights).sum().backward()
    plain = whole[..., :vocabulary].clone().requires_grad_()
    expected = F.cross_entropy(plain.flatten(0, 1), targets.flatten(), reduction="none").view(3, 2)
    expected_z = z_loss * plain.logsumexp(-1) ** 2
    ((expected + expected_z) * weights).sum().backward()
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(z_losses, expected_z, rtol=1e-12, atol=1e-12)
    padded = F.pad(plain.grad, (0, 16 - vocabulary))
    torch.testing.assert_close(here.grad, padded[..., mine], rtol=1e-12, atol=1e-14)
