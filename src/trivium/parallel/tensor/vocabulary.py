"""The loss over a vocabulary that one rank holds whole: product, softmax and its gradient, some rows at a time.

Legend: T tokens, H hidden, V vocabulary rows, padding included.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from trivium.kernels.arithmetic import Arithmetic
from trivium.kernels.dtypes import NARROW
from trivium.objectives.objective import Terms
from trivium.parallel.tensor.weight_gradients import WeightGradients

Tensor = torch.Tensor

BLOCK_ROWS = 256  # rows of one softmax in fp32, few enough to stay in a cache


# Takes scores [rows, V], targets [rows], the vocabulary and the terms of the loss; returns losses [rows], or what
# `with_terms` returns, and leaves in place of the scores the gradient of each row's losses.
LossInPlace = Callable[[Tensor, Tensor, int, Terms], Tensor]


def vocabulary_loss(
    x: Tensor,
    table: torch.nn.Parameter,
    targets: Tensor,
    vocabulary: int,
    later: WeightGradients,
    arithmetic: Arithmetic,
    compiled: LossInPlace | None = None,
    terms: Terms = (),
) -> Tensor:
    """Cross-entropy per token, in nats, of softmax(x table^T) against the targets.

    x [S, B, H], table [V, H], targets [S, B]; returns [S, B]. Rows of the table from `vocabulary` on are padding:
    they enter neither the softmax nor the gradient. What is kept for the backward is the gradient of the scores in
    the dtype of `x`, each row in place of its scores.

    compiled: loss_and_gradient as torch.compile made it, of all rows at once: it writes nothing down in fp32.
    terms: what is added to the cross-entropy; with any, it returns [1 + terms, S, B], as `with_terms` does.
    """
    takes = later.takes(table)
    weight = table.detach() if takes else table
    rows = x.flatten(0, -2)
    about = (table, later if takes else None, arithmetic, torch.is_grad_enabled(), compiled, terms)
    losses = _Loss.apply(rows, weight, targets.flatten(), vocabulary, about)
    return losses.view(*losses.shape[:-1], *targets.shape)


def with_terms(losses: Tensor, logs: Tensor, terms: Terms) -> Tensor:
    """Return cross-entropies [tokens] and below them the terms, [1 + terms, tokens].

    logs: the logarithm of each token's sum of exponentials. The gradient that belongs to the first row is that of the
    sum of all rows, made in one pass over the scores. The other rows have none.
    """
    return torch.stack([losses, *(term.value(logs) for term in terms)])


def stretch(logs: Tensor, terms: Terms) -> Tensor:
    """Return what the terms multiply the probabilities by in the gradient of scores: the probabilities are the
    gradient of `logs`."""
    found: Tensor | float = 1
    for term in terms:
        found = found + term.slope(logs)
    assert isinstance(found, Tensor), "there is a term"
    return found


def loss_and_gradient(scores: Tensor, targets: Tensor, vocabulary: int, terms: Terms) -> Tensor:
    """A `LossInPlace` to be compiled, to one kernel: the score of a target is found by adding up, as looking it up
    would keep a second kernel waiting, which writes the scores and has to fetch each row again."""
    columns = torch.arange(scores.shape[-1], device=scores.device)
    wide = scores.float() if scores.dtype in NARROW else scores
    wide = torch.where(columns < vocabulary, wide, -torch.inf)
    is_target = columns == targets.unsqueeze(-1)
    total = torch.logsumexp(wide, -1, keepdim=True)
    losses = total.squeeze(-1) - torch.where(is_target, wide, 0).sum(-1)
    probabilities = (wide - total).exp()
    if terms:
        probabilities = probabilities * stretch(total, terms)
        losses = with_terms(losses, total.squeeze(-1), terms)
    scores.copy_(torch.where(is_target, probabilities - 1, probabilities))
    return losses


class _Loss(torch.autograd.Function):
    """about: the parameter, who takes its gradient (or None), the arithmetic of products, whether a gradient is wanted,
    what is compiled, and the terms of the loss."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, vocabulary: int, about: Any) -> Tensor:
        table, later, ctx.arithmetic, wanted, compiled, ctx.terms = about
        product = ctx.arithmetic.product
        eager = _loss_of if x.device.type == "cpu" else in_few_passes
        loss_of = partial(eager, vocabulary=vocabulary, terms=ctx.terms, wanted=wanted)
        losses = []
        if not wanted:
            for rows, ids in zip(x.split(BLOCK_ROWS), targets.split(BLOCK_ROWS), strict=True):
                losses.append(loss_of(product(rows, weight), ids))
            return torch.cat(losses, -1)
        scores = product(x, weight)  # one product, and so is the weight's gradient: exact enough in bf16 too
        ctx.save_for_backward(x, weight, scores)
        ctx.taken = None if later is None else (table, later)
        if compiled is not None:
            found: Tensor = compiled(scores, targets, vocabulary, ctx.terms)
            return found
        for part, ids in zip(scores.split(BLOCK_ROWS), targets.split(BLOCK_ROWS), strict=True):
            losses.append(loss_of(part, ids))
        return losses[0] if len(losses) == 1 else torch.cat(losses, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        x, weight, d_scores = ctx.saved_tensors
        # A row's factor is never rounded to a narrow dtype, which would change every gradient alike.
        scale = (grads[0][0] if ctx.terms else grads[0]).unsqueeze(-1)
        arithmetic = ctx.arithmetic
        d_x = arithmetic.gradient_of_inputs(d_scores, weight).mul_(scale)
        # It may stand on either side of the product: H numbers are fewer than V.
        scaled = torch.mul(x, scale, out=torch.empty_like(x))
        if ctx.taken is None:
            of_weight = ctx.needs_input_grad[1]
            return d_x, arithmetic.gradient_of_weight(d_scores, scaled) if of_weight else None, None, None, None
        table, later = ctx.taken
        later.take(table, d_scores, scaled, arithmetic)
        return d_x, None, None, None, None


def in_few_passes(scores: Tensor, targets: Tensor, vocabulary: int, terms: Terms, *, wanted: bool = True) -> Tensor:
    """A `LossInPlace` of few launches, each of which reads or writes narrow scores as they are: 12 bytes a 16-bit
    score, where `_loss_of`, whose numbers stay in a processor's cache, moves 28. wanted: the gradient is."""
    if vocabulary < scores.shape[-1]:
        scores[:, vocabulary:] = -torch.inf
    wide = torch.float32 if scores.dtype in NARROW else scores.dtype
    at = targets.unsqueeze(-1)
    score = scores.gather(-1, at).to(wide)
    logs = torch.log_softmax(scores, -1, dtype=wide)
    log = logs.gather(-1, at)
    losses, total = -log.squeeze(-1), score - log
    if wanted:
        if terms:
            torch.mul(logs.exp_(), stretch(total, terms), out=scores)
        else:
            torch.exp(logs, out=scores)
        # Of the target in fp32: taken from a rounded probability, 1 would leave nothing of what is near it.
        own = log.exp() * stretch(total, terms) - 1 if terms else log.expm1()
        scores.scatter_(-1, at, own.to(scores.dtype))
    return with_terms(losses, total.squeeze(-1), terms) if terms else losses


def _loss_of(given: Tensor, targets: Tensor, *, vocabulary: int, terms: Terms, wanted: bool) -> Tensor:
    """The loss of each row of scores [rows, V]; where its gradient is wanted, it takes the place of the scores."""
    scores = given.float() if given.dtype in NARROW else given
    if vocabulary < scores.shape[-1]:
        scores[:, vocabulary:] = -torch.inf
    targets = targets.unsqueeze(-1)
    target = scores.gather(-1, targets)
    if not wanted:
        logs = torch.logsumexp(scores, -1, keepdim=True)
        losses = (logs - target).squeeze(-1)
        return with_terms(losses, logs.squeeze(-1), terms) if terms else losses
    largest = scores.amax(-1, keepdim=True)
    probabilities = torch.softmax(scores, -1, out=scores)
    # The largest probability is 1 / sum of exponentials, and never 0 as the target's may be. Found by its value:
    # looking for its place takes a processor longer than all the rest.
    peak = probabilities.amax(-1, keepdim=True).log()
    losses = (largest - target - peak).squeeze(-1)
    if terms:
        logs = largest - peak
        probabilities.mul_(stretch(logs, terms))
        losses = with_terms(losses, logs.squeeze(-1), terms)
    probabilities.scatter_add_(-1, targets, target.new_full((), -1.0).expand_as(target))
    if probabilities is not given:
        given.copy_(probabilities)
    return losses
