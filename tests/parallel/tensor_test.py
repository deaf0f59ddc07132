"""The split vocabulary gives the whole vocabulary's cross-entropy, and padding takes no part."""

import torch
import torch.nn.functional as F

from ranks import ranks
from trivium.parallel.launch import Place
from trivium.parallel.mesh import Mesh
from trivium.parallel.tensor import split_cross_entropy
from trivium.plan.layout import Layout


@ranks(1, 2, 4)
def test_split_cross_entropy_equals_that_of_the_unpadded_whole(place: Place) -> None:
    group = Mesh.connect(Layout(tensor=place.world_size), place.rank, place.world_size).tensor
    vocabulary, rows = 13, 4 * 4 // place.world_size
    generator = torch.Generator().manual_seed(0)
    whole = (
        torch.randn(3, 2, 16, generator=generator, dtype=torch.float64) * 30
    )  # far apart: exp would overflow
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


def test_half_precision_logits_are_reduced_in_fp32() -> None:
    group = Mesh.single().tensor
    logits = torch.randn(2, 1, 8, dtype=torch.bfloat16, requires_grad=True)
    losses = split_cross_entropy(logits, torch.tensor([[1], [2]]), group, 8)
    assert losses.dtype == torch.float32
    expected = F.cross_entropy(logits.float().flatten(0, 1), torch.tensor([1, 2]), reduction="none")
    torch.testing.assert_close(losses.flatten(), expected)
