"""The loads of the experts in a micro-batch, and the gradients of the losses of its routers.

The gradients are added where a router's logits go backward, so pipeline stages, schedules and recomputation need to
know nothing of them. Values are computed after the step from what is counted here.

Legend: T tokens here, E experts, k experts of a token, G sequences or 1: the sets of tokens whose loads are averaged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from trivium.comms.collectives import all_reduce_
from trivium.comms.group import Group
from trivium.objectives.routers import balance_factor, probabilities, slope_of_balance, slope_of_z
from trivium.plan.experts import Experts

Tensor = torch.Tensor


@dataclass(frozen=True)
class Averaging:
    """The sums of a step that its routers take part in.

    sequence: positions of a whole sequence. tokens: of the whole batch. layers: those of experts in the whole model.
    scale: what losses are multiplied by, divided by the number of tensor ranks, which all compute the gradient and add
    it up. context, replicas: the ranks that have the other tokens of a sequence, and of the batch.
    """

    sequence: int
    tokens: int
    layers: int
    scale: float
    context: Group
    replicas: Group

    def set_of(self, experts: Experts, sequences: int) -> tuple[int, Group]:
        """Return the tokens over which loads are averaged, and the ranks that have them."""
        match experts.balance_scope:
            case "sequence":
                return self.sequence, self.context
            case "micro_batch":
                return self.sequence * sequences, self.context
            case "global_batch":
                return self.tokens, self.replicas


@dataclass(eq=False)
class Loads:
    """The routers of one micro-batch of `sequences` sequences, by layer. counted: the fractions f of the tokens that
    chose each expert, by layer, where a pass before this one has counted them. counts_only: this is that pass."""

    averaging: Averaging
    sequences: int
    counted: Mapping[int, Tensor] | None = None
    counts_only: bool = False
    routers: dict[int, "Router"] = field(default_factory=dict)

    def router(self, layer: int, experts: Experts) -> "Router":
        """Return the router of a layer. A recomputed forward gets the one that the first forward made."""
        return self.routers.setdefault(layer, Router(self, layer, experts))

    def fractions(self, layer: int) -> Tensor:
        """Return f [G, E], which is constant in the gradient; with layers pooled, their mean."""
        own = self.routers[layer]
        if self.counted is not None:
            return self.counted[layer]
        if own.experts.balance_convention == "megatron":
            return own.fractions
        return torch.stack([router.fractions for router in self.routers.values()]).mean(0)


@dataclass(eq=False)
class Router:
    """One layer's router in one micro-batch.

    counts [G, E]: tokens here that chose each expert. summed [G, E]: sums of the probabilities of tokens here. squares:
    the sum of the squared log-sum-exps. dropped: choices beyond an expert's capacity. chosen: the ids that the forward
    chose, if it wants them in a recomputed forward.
    """

    loads: Loads
    layer: int
    experts: Experts
    counts: Tensor | None = None
    summed: Tensor | None = None
    squares: Tensor | None = None
    dropped: Tensor | None = None
    chosen: Tensor | None = None
    _fractions: Tensor | None = None

    def attached(self, logits: Tensor) -> Tensor:
        """Return logits [T, E], in whose backward the gradients of the losses are added."""
        if self.experts.router_z_loss and self.squares is None:
            self.squares = logits.detach().logsumexp(-1).square().sum()
        if not torch.is_grad_enabled() or not (self.experts.balance_loss or self.experts.router_z_loss):
            return logits
        found: Tensor = _Attached.apply(logits, self)
        return found

    @torch.no_grad()
    def count(self, scores: Tensor, chosen: Tensor) -> None:
        """Count the tokens that chose each expert. scores [T, E], chosen [T, k]: ids, before any are dropped."""
        if self.counts is not None:
            return  # a recomputed forward
        E, B, k = self.experts.count, self.loads.sequences, self.experts.chosen
        by_sequence = self.experts.balance_scope == "sequence"
        sets = B if by_sequence else 1
        places = chosen.reshape(-1, B, k)
        if by_sequence:
            places = places + E * torch.arange(B, device=chosen.device).view(B, 1)
        places = places.flatten()
        zeros = torch.zeros(sets * E, dtype=torch.float64, device=chosen.device)
        self.counts = zeros.index_add_(0, places, torch.ones_like(places, dtype=zeros.dtype)).view(sets, E)
        if self.experts.balance_loss:
            p = probabilities(self.experts, scores).reshape(-1, B, E).sum(0)
            self.summed = (p if by_sequence else p.sum(0, keepdim=True)).to(torch.float64)
            if self.loads.counted is None:
                tokens, group = self.loads.averaging.set_of(self.experts, B)
                self._fractions = all_reduce_(self.counts.clone(), group) / (k * tokens)

    @property
    def fractions(self) -> Tensor:
        """f [G, E] of this layer."""
        assert self._fractions is not None, f"the router of layer {self.layer} has not chosen yet"
        return self._fractions

    def slope(self, logits: Tensor) -> Tensor:
        """Return the derivative of the step's scaled loss by logits [T, E], as this tensor rank adds it."""
        experts, averaging = self.experts, self.loads.averaging
        found = torch.zeros_like(logits)
        per_token = averaging.scale / averaging.tokens
        if experts.balance_loss:
            f = self.loads.fractions(self.layer).to(logits.dtype) * balance_factor(experts, averaging.layers)
            by_sequence = logits.reshape(-1, self.loads.sequences, experts.count)
            found = slope_of_balance(experts, by_sequence, f * per_token).view_as(logits)
        if experts.router_z_loss:
            found = found + slope_of_z(logits) * (experts.router_z_loss * per_token)
        return found

    def balance_share(self) -> Tensor:
        """Return what the tokens here add to the balance loss of the batch."""
        assert self.summed is not None, f"the router of layer {self.layer} has not chosen yet"
        factor = balance_factor(self.experts, self.loads.averaging.layers) / self.loads.averaging.tokens
        return (self.loads.fractions(self.layer) * self.summed).sum() * factor

    def z_share(self) -> Tensor:
        """Return what the tokens here add to the z-loss of the routers."""
        assert self.squares is not None, f"the router of layer {self.layer} has not chosen yet"
        return self.squares.to(torch.float64) * (self.experts.router_z_loss / self.loads.averaging.tokens)


class _Attached(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, router: Router) -> Tensor:
        ctx.save_for_backward(logits)
        ctx.router = router
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (logits,) = ctx.saved_tensors
        return grads[0] + ctx.router.slope(logits), None
