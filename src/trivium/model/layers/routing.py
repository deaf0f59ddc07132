"""The choice of experts for each token.

Legend: T tokens, E experts, K chosen experts of a token, G groups, H hidden.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from trivium.model.loads import Router as Watched
from trivium.plan.experts import Experts

Tensor = torch.Tensor
LEAST_SUM = 1e-20  # added to the sum of sigmoids before division, as in DeepSeek-V3


class Routes(NamedTuple):
    """chosen [T, K]: the experts of each token; weights [T, K]: their factors, in fp32 or wider."""

    chosen: Tensor
    weights: Tensor


class Router(nn.Module):
    """Scores of experts, and the choice of the best. Every tensor rank computes all of it from the same numbers."""

    def __init__(self, experts: Experts, hidden: int) -> None:
        super().__init__()
        self.experts = experts
        self.weight = nn.Parameter(torch.empty(experts.count, hidden))
        has_bias = experts.bias_rate is not None
        self.bias = nn.Parameter(torch.empty(experts.count), requires_grad=False) if has_bias else None

    def forward(self, x: Tensor, numbers: Tensor, watched: Watched | None = None) -> Routes:
        """x [T, H]. numbers [T]: position of each token in its sequence, which decides between equal scores. watched:
        counts the choices, and adds losses."""
        wide = torch.promote_types(x.dtype, torch.float32)
        logits = F.linear(x.to(wide), self.weight.to(wide))
        if watched is not None:
            logits = watched.attached(logits)
        scores = logits.softmax(-1) if self.experts.scores == "softmax" else logits.sigmoid()
        if watched is None:
            chosen = self.choice(scores.detach(), numbers)
        else:  # a recomputed forward routes as the first one did
            chosen = watched.chosen = (
                self.choice(scores.detach(), numbers) if watched.chosen is None else watched.chosen
            )
            watched.count(scores, chosen)
        return Routes(chosen, self._weights(scores.gather(1, chosen)))

    def choice(self, scores: Tensor, numbers: Tensor) -> Tensor:
        """Return the experts of each token [T, K] by its scores [T, E] plus the bias, which weights do not include."""
        asked = self.experts
        if self.bias is not None:
            scores = scores + self.bias.to(scores.dtype)
        if asked.groups > 1:
            by_group = scores.unflatten(1, (asked.groups, -1))
            best = by_group.amax(-1) if asked.group_score == "largest" else by_group.topk(2, dim=-1).values.sum(-1)
            groups = _largest(best, asked.chosen_groups, numbers)
            others = torch.ones_like(best, dtype=torch.bool).scatter_(1, groups, False)
            scores = by_group.masked_fill(others.unsqueeze(-1), -torch.inf).flatten(1)
        return _largest(scores, asked.chosen, numbers)

    def _weights(self, scores: Tensor) -> Tensor:
        if self.experts.normalized:
            least = LEAST_SUM if self.experts.scores == "sigmoid" else 0.0
            scores = scores / (scores.sum(-1, keepdim=True) + least)
        return scores * self.experts.scale if self.experts.scale != 1 else scores


def _largest(scores: Tensor, count: int, numbers: Tensor) -> Tensor:
    """Return the indices [T, count] of the largest scores [T, E].

    The search begins at another index for each token, so that equal scores, such as those of a router of zeros, send
    tokens to all experts evenly, and to the same ones on every rank.
    """
    size = scores.shape[1]
    turned = (torch.arange(size, device=scores.device) + numbers.unsqueeze(1)) % size
    return turned.gather(1, scores.gather(1, turned).topk(count, dim=-1).indices)
