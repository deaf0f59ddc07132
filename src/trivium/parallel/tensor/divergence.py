"""The divergence from a teacher, of logits whose vocabulary is split over a group.

Legend: S positions, B sequences, T tokens, V vocabulary rows here, K tokens that the teacher stores.
"""

from typing import Any, NamedTuple

import torch

from trivium.comms.collectives import all_gather, all_reduce_
from trivium.comms.group import Group
from trivium.kernels.dtypes import NARROW

Tensor = torch.Tensor


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


def divergence(logits: Tensor, teacher: Teacher, group: Group, vocabulary: int) -> Tensor:
    """Return temperature² KL(teacher || student) of each target, [S, B], the same on every rank.

    The classes are the stored tokens, and one for all others if there are any. logits: [S, B, V].
    """
    found: Tensor = _Divergence.apply(logits, teacher, group, vocabulary)
    return found


class _Divergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, teacher: Teacher, group: Group, vocabulary: int) -> Tensor:
        scores = _scores(logits, teacher.temperature, group, vocabulary)
        V, K = scores.shape[-1], teacher.ids.shape[-1]
        logs = teacher.logs.reshape(-1, K).to(scores.dtype)
        ids = teacher.ids.reshape(-1, K) - group.index * V
        here = (ids >= 0) & (ids < V)
        index = ids.masked_fill(~here, 0)
        total = _log_total(scores, group)
        own = all_reduce_(scores.gather(-1, index).masked_fill(~here, 0), group)
        student = own - total.unsqueeze(-1)
        stored = logs.exp()
        losses = torch.where(stored > 0, stored * (logs - student), 0).sum(-1)

        probabilities = (scores - total.unsqueeze(-1)).exp()
        # Of several ids that are set to the same place, those of other ranks set nothing.
        others = probabilities.masked_fill(_marked(index, here, V), 0)
        if vocabulary > K:
            rest = (-torch.expm1(logs.logsumexp(-1))).clamp(min=0)
            tiny = torch.finfo(scores.dtype).tiny
            student_rest = all_reduce_(others.sum(-1), group).clamp(min=tiny)
            losses += torch.where(rest > 0, rest * (rest.clamp(min=tiny).log() - student_rest.log()), 0)
            others *= (1 - rest / student_rest).unsqueeze(-1)
        gradient = others.scatter_add_(-1, index, (student.exp() - stored) * here)
        ctx.save_for_backward((gradient * teacher.temperature).to(logits.dtype))
        ctx.shape = logits.shape
        return (losses * teacher.temperature**2).view(logits.shape[:-1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return (gradient * grads[0].reshape(-1, 1)).to(gradient.dtype).view(ctx.shape), None, None, None


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
