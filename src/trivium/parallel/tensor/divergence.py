"""The losses of distillation from a teacher, of logits whose vocabulary is split over a group.

Legend: S positions, B sequences, T tokens, V vocabulary rows here, K tokens that the teacher stores.
"""

from typing import Any, NamedTuple

import torch

from trivium.comms.collectives import all_gather, all_reduce_
from trivium.comms.group import Group
from trivium.kernels.dtypes import NARROW

Tensor = torch.Tensor

ROWS = 32  # of the losses at a time: their half dozen copies in fp32 are no more than cross-entropy's of 256


class Top(NamedTuple):
    """A request for the likeliest `tokens` tokens at a temperature."""

    tokens: int
    temperature: float


class Teacher(NamedTuple):
    """A teacher's stored scores of each target: ids of its likeliest tokens and their log-probabilities at the
    temperature, [S, B, K]. share: of the divergence in the loss."""

    ids: Tensor
    logs: Tensor
    temperature: float
    share: float


def top_log_probabilities(logits: Tensor, top: Top, group: Group, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return the ids of the likeliest tokens and their log-probabilities at the temperature, [S, B, K], the same on
    every rank. logits: [S, B, V]."""
    scores = _scores(logits, top.temperature, group, vocabulary)
    total = _log_total(scores, group)
    found, ids = scores.topk(min(top.tokens, scores.shape[-1]), dim=-1)
    ids = ids + group.index * scores.shape[-1]
    if group.size > 1:
        # Every rank has as many candidates, of which padding is never among the likeliest.
        found, ids = (_beside(x, group) for x in (found, ids))
    found, order = found.topk(top.tokens, dim=-1)
    shape = (*logits.shape[:-1], top.tokens)
    return ids.gather(-1, order).view(shape), (found - total.unsqueeze(-1)).view(shape)


def distillation(logits: Tensor, targets: Tensor, teacher: Teacher, group: Group, vocabulary: int) -> Tensor:
    """Return for each target the loss, the cross-entropy in nats, and temperature² KL(teacher || student), [3, S, B],
    the same on every rank. The loss is the mean of the others by `teacher.share`; only it has a gradient.

    The classes of the divergence are the stored tokens, and one for all others if there are any. logits: [S, B, V];
    their gradient takes their place. targets: [S, B].
    """
    found: Tensor = _Distillation.apply(logits, targets, teacher, group, vocabulary)
    return found


class _Distillation(torch.autograd.Function):
    """Kept is the gradient of the logits in their dtype; fp32 is there for some rows at a time."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, teacher: Teacher, group: Group, vocabulary: int) -> Tensor:
        scores, K = logits.detach().flatten(0, -2), teacher.ids.shape[-1]
        beside = targets.flatten(), teacher.ids.reshape(-1, K), teacher.logs.reshape(-1, K)
        rows = zip(*(x.split(ROWS) for x in (scores, *beside)), strict=True)
        losses = [
            _losses_of(part, at, teacher._replace(ids=ids, logs=logs), group, vocabulary)
            for part, at, ids, logs in rows
        ]
        ctx.save_for_backward(scores)
        ctx.shape = logits.shape
        return torch.cat(losses, -1).view(3, *targets.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors  # changed in place: a step runs its backward once
        factor = grads[0][0].reshape(-1, 1)
        for part, scale in zip(gradient.split(ROWS), factor.split(ROWS), strict=True):
            part.copy_(part * scale)
        return gradient.view(ctx.shape), None, None, None, None


def _losses_of(logits: Tensor, targets: Tensor, teacher: Teacher, group: Group, vocabulary: int) -> Tensor:
    """Return what `distillation` does, [3, T], for logits [T, V], and leave the gradient of the loss in their place."""
    temperature, share = teacher.temperature, teacher.share
    scores = _scores(logits, 1.0, group, vocabulary)
    V, K = scores.shape[-1], teacher.ids.shape[-1]
    total = _log_total(scores, group)
    index, here = _here(targets.unsqueeze(-1), V, group)
    own = all_reduce_(scores.gather(-1, index).masked_fill(~here, 0), group)
    cross_entropy = total - own.squeeze(-1)
    gradient = (scores - total.unsqueeze(-1)).exp().scatter_add_(-1, index, -here.to(scores.dtype))

    scores = scores / temperature
    total = _log_total(scores, group)
    logs = teacher.logs.to(scores.dtype)
    index, here = _here(teacher.ids, V, group)
    own = all_reduce_(scores.gather(-1, index).masked_fill(~here, 0), group)
    student = own - total.unsqueeze(-1)
    stored = logs.exp()
    apart = torch.where(stored > 0, stored * (logs - student), 0).sum(-1)
    # Of several ids that are set to the same place, those of other ranks set nothing.
    others = (scores - total.unsqueeze(-1)).exp().masked_fill_(_marked(index, here, V), 0)
    if vocabulary > K:
        rest = (-torch.expm1(logs.logsumexp(-1))).clamp(min=0)
        tiny = torch.finfo(scores.dtype).tiny
        student_rest = all_reduce_(others.sum(-1), group).clamp(min=tiny)
        apart += torch.where(rest > 0, rest * (rest.clamp(min=tiny).log() - student_rest.log()), 0)
        others *= (1 - rest / student_rest).unsqueeze(-1)
    others.scatter_add_(-1, index, (student.exp() - stored) * here)

    apart *= temperature**2
    logits.copy_(gradient.mul_(1 - share).add_(others, alpha=share * temperature))
    return torch.stack([(1 - share) * cross_entropy + share * apart, cross_entropy, apart])


def _here(ids: Tensor, columns: int, group: Group) -> tuple[Tensor, Tensor]:
    """Return the columns of ids on this rank, and which ids are on it; the others have column 0."""
    index = ids.long() - group.index * columns
    here = (index >= 0) & (index < columns)
    return index.masked_fill(~here, 0), here


def _scores(logits: Tensor, temperature: float, group: Group, vocabulary: int) -> Tensor:
    """Return logits over the temperature, [T, V], without those of padding."""
    scores = logits.flatten(0, -2).to(torch.float32 if logits.dtype in NARROW else logits.dtype) / temperature
    scores[:, max(0, vocabulary - group.index * scores.shape[-1]) :] = -torch.inf
    return scores


def _log_total(scores: Tensor, group: Group) -> Tensor:
    """Return the logarithm of the sum of exponentials over all ranks, [T]."""
    largest = all_reduce_(scores.amax(-1), group, largest=True)
    return all_reduce_((scores - largest.unsqueeze(-1)).exp().sum(-1), group).log() + largest


def _marked(index: Tensor, here: Tensor, columns: int) -> Tensor:
    """Return whether a column is one of a row's stored tokens, [T, columns]."""
    found = torch.zeros(len(index), columns, dtype=torch.int32, device=index.device)
    return found.scatter_add_(-1, index, here.int()) > 0


def _beside(x: Tensor, group: Group) -> Tensor:
    """[T, K] on every rank -> [T, ranks K]."""
    return all_gather(x.T.contiguous(), group).T
