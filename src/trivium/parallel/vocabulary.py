"""The loss over a vocabulary that one rank holds whole: product, softmax and its gradient, some rows at a time.

Legend: T tokens, H hidden, V vocabulary rows, padding included.
"""

from typing import Any

import torch

from trivium.parallel.product import gradient_of_inputs, gradient_of_weight, product
from trivium.parallel.weight_gradients import WeightGradients

Tensor = torch.Tensor

# Rows whose softmax is taken at once, in fp32: few enough to stay in a cache.
ROWS, ROWS_ON_ACCELERATOR = 256, 4096
NARROW = (torch.bfloat16, torch.float16)


def vocabulary_loss(
    x: Tensor, table: torch.nn.Parameter, targets: Tensor, vocabulary: int, later: WeightGradients
) -> Tensor:
    """Cross-entropy per token, in nats, of softmax(x table^T) against the targets.

    x [S, B, H], table [V, H], targets [S, B]; returns [S, B]. Rows of the table from `vocabulary` on are padding:
    they enter neither the softmax nor the gradient. What is kept for the backward is the gradient of the scores in
    the dtype of `x`, each row in place of its scores.
    """
    weight = table.detach() if later.separate else table
    rows = x.flatten(0, -2)
    whose = (table, later if later.separate else None)
    losses = _Loss.apply(rows, weight, targets.flatten(), vocabulary, (*whose, torch.is_grad_enabled()))
    return losses.view(targets.shape)


class _Loss(torch.autograd.Function):
    """about: the parameter, who puts its gradient off (or None), and whether a gradient is wanted."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, vocabulary: int, about: Any) -> Tensor:
        table, later, wanted = about
        step = ROWS if x.device.type == "cpu" else ROWS_ON_ACCELERATOR
        # Scores that stay are one product, and so is the weight's gradient: exact enough in bf16 too.
        at_once = len(x) if wanted else step
        losses = []
        for rows, ids in zip(x.split(at_once), targets.split(at_once), strict=True):
            scores = product(rows, weight)
            for part, wanted_ids in zip(scores.split(step), ids.split(step), strict=True):
                losses.append(_loss_of(part, wanted_ids, vocabulary, wanted))
        if wanted:
            ctx.save_for_backward(x, weight, scores)
            ctx.put_off = None if later is None else (table, later)
        return losses[0] if len(losses) == 1 else torch.cat(losses)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        x, weight, d_scores = ctx.saved_tensors
        scale = grads[0].unsqueeze(-1).to(x.dtype)
        d_x = gradient_of_inputs(d_scores, weight).mul_(scale)
        # A row's factor may stand on either side of the product: H numbers are fewer than V.
        scaled = x * scale
        if ctx.put_off is None:
            return d_x, gradient_of_weight(d_scores, scaled), None, None, None
        table, later = ctx.put_off
        later.take(table, d_scores, scaled)
        return d_x, None, None, None, None


def _loss_of(given: Tensor, targets: Tensor, vocabulary: int, wanted: bool) -> Tensor:
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
