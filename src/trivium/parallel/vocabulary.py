"""The loss over a vocabulary that one rank holds whole: product, softmax and its gradient, some rows at a time.

Legend: T tokens, H hidden, V vocabulary rows, padding included.
"""

from typing import Any

import torch

from trivium.parallel.product import gradient_of_inputs, gradient_of_weight, product
from trivium.parallel.weight_gradients import WeightGradients

Tensor = torch.Tensor

# Rows whose scores are whole in fp32 at once: few enough to stay in a cache, enough for a fast product.
ROWS, ROWS_ON_ACCELERATOR = 256, 4096
NARROW = (torch.bfloat16, torch.float16)


def vocabulary_loss(
    x: Tensor, table: torch.nn.Parameter, targets: Tensor, vocabulary: int, later: WeightGradients
) -> Tensor:
    """Cross-entropy per token, in nats, of softmax(x table^T) against the targets.

    x [S, B, H], table [V, H], targets [S, B]; returns [S, B]. Rows of the table from `vocabulary` on are padding:
    they enter neither the softmax nor the gradient. What is kept for the backward is the gradient of the scores in
    the dtype of `x`; scores in fp32 exist for some rows at a time only.
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
        d_scores = x.new_empty((len(x), len(weight))) if wanted else None
        losses = []
        step = ROWS if x.device.type == "cpu" else ROWS_ON_ACCELERATOR
        for start in range(0, len(x), step):
            rows = slice(start, start + step)
            into = None if d_scores is None else d_scores[rows]
            losses.append(_loss_of(product(x[rows], weight), targets[rows], vocabulary, into))
        if d_scores is not None:
            ctx.save_for_backward(x, weight, d_scores)
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


def _loss_of(scores: Tensor, targets: Tensor, vocabulary: int, d_scores: Tensor | None) -> Tensor:
    """The loss of each row of scores [rows, V]; writes the gradient of the scores."""
    if scores.dtype in NARROW:
        scores = scores.float()
    if vocabulary < scores.shape[-1]:
        scores[:, vocabulary:] = -torch.inf
    targets = targets.unsqueeze(-1)
    target = scores.gather(-1, targets)
    if d_scores is None:
        return (torch.logsumexp(scores, -1, keepdim=True) - target).squeeze(-1)
    fits = d_scores.dtype == scores.dtype
    probabilities = torch.softmax(scores, -1, out=d_scores) if fits else torch.softmax(scores, -1)
    # The largest probability is 1 / sum of exponentials, and never 0 as the target's may be. Found by its value:
    # looking for its place takes a processor longer than all the rest.
    losses = scores.amax(-1, keepdim=True) - target - probabilities.amax(-1, keepdim=True).log()
    probabilities.scatter_add_(-1, targets, losses.new_full((), -1.0).expand_as(losses))
    if not fits:
        d_scores.copy_(probabilities)
    return losses.squeeze(-1)
