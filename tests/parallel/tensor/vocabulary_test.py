"""The loss over a whole vocabulary, in chunks of rows, is that of PyTorch over all of them at once."""

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from trivium.cost.memory import LOSS_ROWS
from trivium.kernels.arithmetic import Arithmetic
from trivium.objectives.objective import Terms
from trivium.objectives.terms.z_loss import ZLoss
from trivium.parallel.tensor.vocabulary import (
    BLOCK_ROWS,
    LossInPlace,
    in_few_passes,
    loss_and_gradient,
    vocabulary_loss,
)
from trivium.parallel.tensor.weight_gradients import WeightGradients

VOCABULARY, PADDED, HIDDEN = 45, 50, 8


def made(tokens: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(tokens)
    x = torch.randn(tokens, 2, HIDDEN, dtype=dtype)
    table = torch.randn(PADDED, HIDDEN, dtype=dtype)
    return x, table, torch.randint(0, VOCABULARY, (tokens, 2)), torch.rand(tokens, 2, dtype=dtype)


def plain(x: torch.Tensor, table: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    scores = (x @ table.T)[..., :VOCABULARY].flatten(0, 1)
    return F.cross_entropy(scores, targets.flatten(), reduction="none").view(targets.shape)


@pytest.mark.parametrize("terms", ((), (ZLoss(0.1),)))
def test_what_is_compiled_looks_nothing_up(terms: Terms):
    """Inductor would make a kernel of its own of what is written after a look-up, and fetch all scores again."""
    given = torch.ones(2, PADDED), torch.tensor([1, 3]), VOCABULARY, terms
    called = make_fx(loss_and_gradient)(*given).graph.nodes
    names = " ".join(str(node.target) for node in called)
    assert "logsumexp" in names and "copy_" in names
    assert not any(look_up in names for look_up in ("gather", "index", "embedding", "take"))


# A processor's, what torch.compile is given, and an accelerator's without it.
EVERY_WAY = pytest.mark.parametrize("compiled", (None, loss_and_gradient, in_few_passes))


@pytest.mark.parametrize("tokens", (1, BLOCK_ROWS // 2, BLOCK_ROWS // 2 + 1, BLOCK_ROWS + 17))
@pytest.mark.parametrize("separate", (False, True))
@EVERY_WAY
def test_losses_and_gradients_are_those_of_the_whole(tokens: int, separate: bool, compiled: LossInPlace | None) -> None:
    x, values, targets, weights = made(tokens)
    x.requires_grad_()
    table, later = torch.nn.Parameter(values), WeightGradients()
    later.separate = separate
    losses = vocabulary_loss(x, table, targets, VOCABULARY, later, Arithmetic(), compiled)
    with later.put_off("key"):
        (losses * weights).sum().backward()
    if separate:
        assert table.grad is None
        later.finish("key", lambda parameter: None)
    found = losses.detach(), x.grad.clone(), table.grad.clone()
    x.grad = table.grad = None
    expected = plain(x, table, targets)
    (expected * weights).sum().backward()
    for ours, theirs in zip(found, (expected, x.grad, table.grad), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


@EVERY_WAY
def test_a_target_whose_probability_underflows_has_a_finite_loss(compiled: LossInPlace | None) -> None:
    table = torch.nn.Parameter(torch.eye(4))
    x = torch.tensor([[[200.0, 0.0, 0.0, 0.0]]], requires_grad=True)
    losses = vocabulary_loss(x, table, torch.tensor([[1]]), 4, WeightGradients(), Arithmetic(), compiled)
    assert losses.item() == pytest.approx(200.0)
    losses.sum().backward()
    assert torch.isfinite(x.grad).all()


def test_without_gradients_nothing_is_kept_and_the_loss_is_the_same() -> None:
    x, values, targets, _ = made(40)
    table = torch.nn.Parameter(values)
    kept = vocabulary_loss(x, table, targets, VOCABULARY, WeightGradients(), Arithmetic())
    with torch.no_grad():
        alone = vocabulary_loss(x, table, targets, VOCABULARY, WeightGradients(), Arithmetic())
    assert alone.grad_fn is None
    torch.testing.assert_close(alone, kept.detach(), rtol=1e-13, atol=0)


@pytest.mark.parametrize("terms", ((), (ZLoss(0.1),)))
def test_an_accelerators_loss_is_the_same_without_gradients(terms: Terms) -> None:
    torch.manual_seed(0)
    scores, targets = torch.randn(7, PADDED, dtype=torch.float64), torch.arange(7)
    alone = in_few_passes(scores.clone(), targets, VOCABULARY, terms, wanted=False)
    torch.testing.assert_close(alone, in_few_passes(scores, targets, VOCABULARY, terms), rtol=0, atol=0)


def test_the_gradient_of_a_sure_target_is_not_that_of_a_rounded_probability() -> None:
    """1 - 2^-12 is 1 in bf16."""
    scores = torch.zeros(1, 4, dtype=torch.bfloat16)
    scores[0, 0] = 9.5
    exact = torch.softmax(scores.double(), -1)[0, 0] - 1
    in_few_passes(scores, torch.tensor([0]), 4, ())
    assert scores[0, 0].double().item() == pytest.approx(exact.item(), rel=2**-8)


@EVERY_WAY
def test_padding_never_changes_a_loss_and_gets_no_gradient(compiled: LossInPlace | None) -> None:
    x, values, targets, _ = made(30)
    table = torch.nn.Parameter(values)
    vocabulary_loss(
        x.requires_grad_(), table, targets, VOCABULARY, WeightGradients(), Arithmetic(), compiled
    ).sum().backward()
    assert (table.grad[VOCABULARY:] == 0).all() and (table.grad[:VOCABULARY] != 0).any()


@EVERY_WAY
def test_narrow_scores_are_widened_before_the_softmax(compiled: LossInPlace | None) -> None:
    x, values, targets, weights = made(300, torch.bfloat16)
    table = torch.nn.Parameter(values)
    losses = vocabulary_loss(x.requires_grad_(), table, targets, VOCABULARY, WeightGradients(), Arithmetic(), compiled)
    assert losses.dtype is torch.float32
    (losses * weights).sum().backward()
    exact_x, exact_table = (t.detach().double().requires_grad_() for t in (x, table))
    (plain(exact_x, exact_table, targets) * weights.double()).sum().backward()
    for ours, exact in ((x.grad, exact_x.grad), (table.grad, exact_table.grad)):
        assert (ours.double() - exact).norm() < 2**-7 * exact.norm()  # scores and their gradient rounded once each
    scores = (x.detach().flatten(0, 1) @ values.T)[:, :VOCABULARY].float()
    expected = F.cross_entropy(scores, targets.flatten(), reduction="none").view(targets.shape)
    torch.testing.assert_close(losses.detach(), expected, rtol=1e-6, atol=1e-6)


def test_the_price_of_the_workspace_takes_as_many_rows() -> None:
    assert LOSS_ROWS == BLOCK_ROWS


@pytest.mark.parametrize("tokens", [960, 1000])
def test_a_mean_is_not_rounded_before_it_scales_a_narrow_gradient(tokens):
    """1 / 960 in bf16 is 0.34 % too much: Adam hides a factor on everything, clipping does not."""
    torch.manual_seed(1)
    x, values = torch.randn(tokens, 1, 64), torch.randn(48, 64) / 8
    targets = torch.randint(0, 48, (tokens, 1))
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        rows, table = x.to(torch.bfloat16).to(dtype).requires_grad_(), torch.nn.Parameter(values.to(dtype))
        vocabulary_loss(rows, table, targets, 48, WeightGradients(), Arithmetic()).float().mean().backward()
        found.append((rows.grad.double(), table.grad.double()))
    for wide, narrow in zip(*found, strict=True):
        factor = (wide * narrow).sum() / wide.square().sum()
        assert float(factor) == pytest.approx(1, abs=1e-3)


Z = 0.03


def with_z(x: torch.Tensor, table: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses and z-losses as their formulas have them."""
    scores = (x @ table.T)[..., :VOCABULARY]
    return plain(x, table, targets), Z * scores.exp().sum(-1).log() ** 2


@pytest.mark.parametrize("tokens", (1, BLOCK_ROWS // 2 + 1, BLOCK_ROWS + 17))
@pytest.mark.parametrize("separate", (False, True))
@EVERY_WAY
def test_a_z_loss_is_told_apart_and_its_gradient_is_that_of_both(
    tokens: int, separate: bool, compiled: LossInPlace | None
) -> None:
    x, values, targets, weights = made(tokens)
    x.requires_grad_()
    table, later = torch.nn.Parameter(values), WeightGradients()
    later.separate = separate
    losses, z_losses = vocabulary_loss(x, table, targets, VOCABULARY, later, Arithmetic(), compiled, (ZLoss(Z),))
    with later.put_off("key"):
        (losses * weights).sum().backward()
    if separate:
        later.finish("key", lambda parameter: None)
    found = losses.detach(), z_losses.detach(), x.grad.clone(), table.grad.clone()
    x.grad = table.grad = None
    expected = with_z(x, table, targets)
    ((expected[0] + expected[1]) * weights).sum().backward()
    for ours, theirs in zip(found, (*expected, x.grad, table.grad), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


@EVERY_WAY
def test_a_z_loss_of_narrow_scores_is_computed_wide(compiled: LossInPlace | None) -> None:
    x, values, targets, weights = made(300, torch.bfloat16)
    table = torch.nn.Parameter(values)
    found = vocabulary_loss(
        x.requires_grad_(), table, targets, VOCABULARY, WeightGradients(), Arithmetic(), compiled, (ZLoss(Z),)
    )
    assert found.dtype is torch.float32
    (found[0] * weights).sum().backward()
    exact_x, exact_table = (t.detach().double().requires_grad_() for t in (x, table))
    losses, z_losses = with_z(exact_x, exact_table, targets)
    ((losses + z_losses) * weights.double()).sum().backward()
    torch.testing.assert_close(found[1].double(), z_losses, rtol=2**-7, atol=1e-6)  # scores were rounded once
    for ours, exact in ((x.grad, exact_x.grad), (table.grad, exact_table.grad)):
        assert (ours.double() - exact).norm() < 2**-7 * exact.norm()


def test_a_z_loss_is_the_same_without_gradients() -> None:
    x, values, targets, _ = made(40)
    table = torch.nn.Parameter(values)
    with torch.no_grad():
        alone = vocabulary_loss(x, table, targets, VOCABULARY, WeightGradients(), Arithmetic(), None, (ZLoss(Z),))
    torch.testing.assert_close(alone, torch.stack(with_z(x, table.detach(), targets)), rtol=1e-12, atol=0)
