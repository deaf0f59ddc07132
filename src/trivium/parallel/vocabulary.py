"""The loss over a vocabulary that one rank holds whole: product, softmax and its gradient, some rows at a time.

Legend: T tokens, H hidden, V vocabulary rows, padding included.
"""

from collections.abc import Callable
from typing import Any

import torch

from trivium.parallel.dtypes import NARROW
from trivium.parallel.product import gradient_of_inputs, gradient_of_weight, product
from trivium.parallel.weight_gradients import WeightGradients

Tensor = torch.Tensor

ROWS = 256  # whose softmax is taken at once, in fp32: few enough to stay in a cache


# Takes scores [rows, V], targets [rows] and the vocabulary, gives losses [rows], and leaves in place of the scores the
# gradient of each row's loss.
LossInPlace = Callable[[Tensor, Tensor, int], Tensor]


def vocabulary_loss(
    x: Tensor,
    table: torch.nn.Parameter,
    targets: Tensor,
    vocabulary: int,
    later: WeightGradients,
    compiled: LossInPlace | None = None,
) -> Tensor:
    """Cross-entropy per token, in nats, of softmax(x table^T) against the targets.

    x [S, B, H], table [V, H], targets [S, B]; returns [S, B]. Rows of the table from `vocabulary` on are padding:
    they enter neither the softmax nor the gradient. What is kept for the backward is the gradient of the scores in
    the dtype of `x`, each row in place of its scores.

    compiled: loss_and_gradient as torch.compile made it, of all rows at once: it writes nothing down in fp32.
    """
    takes = later.takes(table)
    weight = table.detach() if takes else table
    rows = x.flatten(0, -2)
    about = (table, later if takes else None, torch.is_grad_enabled(), compiled)
    losses = _Loss.apply(rows, weight, targets.flatten(), vocabulary, about)
    return losses.view(targets.shape)


def loss_and_gradient(scores: Tensor, targets: Tensor, vocabulary: int) -> Tensor:
    """A `LossInPlace` to be compiled, to one kernel: the score of a target is found by adding up, as looking it up
    would keep a second kernel waiting, which writes the scores and has to fetch each row again."""
    columns = torch.arange(scores.shape[-1], device=scores.device)
    wide = scores.float() if scores.dtype in NARROW else scores
    wide = torch.where(columns < vocabulary, wide, -torch.inf)
    is_target = columns == targets.unsqueeze(-1)
    total = torch.logsumexp(wide, -1, keepdim=True)
    losses = total.squeeze(-1) - torch.where(is_target, wide, 0).sum(-1)
    probabilities = (wide - total).exp()
    scores.copy_(torch.where(is_target, probabilities - 1, probabilities))
    return losses


class _Loss(torch.autograd.Function):
    """about: the parameter, who takes its gradient (or None), whether a gradient is wanted, and what is compiled."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, vocabulary: int, about: Any) -> Tensor:
        table, later, wanted, compiled = about
        losses = []
        if not wanted:
            for rows, ids in zip(x.split(ROWS), targets.split(ROWS), strict=True):
                losses.append(_loss_of(product(rows, weight), ids, vocabulary, wanted=False))
            return torch.cat(losses)
        scores = product(x, weight)  # one product, and so is the weight's gradient: exact enough in bf16 too
        ctx.save_for_backward(x, weight, scores)
        ctx.taken = None if later is None else (table, later)
        if compiled is not None:
            return compiled(scores, targets, vocabulary)
        for part, ids in zip(scores.split(ROWS), targets.split(ROWS), strict=True):
            losses.append(_loss_of(part, ids, vocabulary, wanted=True))
        return losses[0] if len(losses) == 1 else torch.cat(losses)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        x, weight, d_scores = ctx.saved_tensors
        # A row's factor is never rounded to a narrow dtype, which would change every gradient alike.
        scale = grads[0].unsqueeze(-1)
        d_x = gradient_of_inputs(d_scores, weight).mul_(scale)
        # It may stand on either side of the product: H numbers are fewer than V.
        scaled = torch.mul(x, scale, out=torch.empty_like(x))
        if ctx.taken is None:
            return d_x, gradient_of_weight(d_scores, scaled), None, None, None
        table, later = ctx.taken
        later.take(table, d_scores, scaled)
        return d_x, None, None, None, None


def _loss_of(given: Tensor, targets: Tensor, vocabulary: int, *, wanted: bool) -> Tensor:
    """The loss of each row of scores [rows, V]; where its gradient is wanted, it takes the place of the scores."""
    scores = given.float() if given.dtype in NARROW else given
    if vocabulary < scores.shape[-1]:
        scores[:, vocabulary:] = -torch.inf
    targets = targets.unsqueeze(-1)
    target = scores.gather(-1, targets)
    if not wanted:
        return (torch.logsumexp(scores, -1, keepdim=True) - target).squeeze(-1)
    largest = scores.amax(-1, keepdim=True)
    probabilities = torch.softmax(scores, -1, out=scores)
    # The largest probability is 1 / sum of exponentials, and never 0 as the target's may be. Found by its value:
    # looking for its place takes a processor longer than all the rest.
    losses = largest - target - probabilities.amax(-1, keepdim=True).log()
    probabilities.scatter_add_(-1, targets, losses.new_full((), -1.0).expand_as(losses))
    if probabilities is not given:
        given.copy_(probabilities)
    return losses.squeeze(-1)
