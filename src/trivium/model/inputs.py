"""The inputs of a micro-batch that every stage needs."""

from dataclasses import dataclass, field
from typing import Literal

import torch

from trivium.kernels.dropout import DropoutKey, keyed_dropout
from trivium.kernels.sight import Sight
from trivium.model.kv_cache import KVCache
from trivium.model.loads import Loads
from trivium.parallel.tensor.divergence import Teacher, Top
from trivium.parallel.tensor.regions import Region


@dataclass(frozen=True)
class Inputs:
    """tokens and targets [S, B] of the positions this context rank holds; no targets when logits are wanted.

    weights [S, B]: how much each target's loss counts, by default 1. counted [T]: the places of targets whose weight is
    not 0, in [S B], where there are so few that the losses of the others need not be computed. positions [S, B]: each
    token's number within its document, None for within the sequence. sight: which positions see which, and which are
    here. dropout: None in evaluation. memory: the KV cache of what was read before, when only what follows is read.
    loads: takes what routers choose, in training.

    asked: whether the head returns losses summed over the targets with their weights, or that of each target, or the
    likeliest tokens. teacher: from which the student's loss is taken, in distillation.

    order [S]: the number within the sequence of each position here. seen: which positions see which; by default
    each sees itself and all before it.
    """

    tokens: torch.Tensor
    targets: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    counted: torch.Tensor | None = None
    positions: torch.Tensor | None = None
    sight: Sight | None = None
    here: torch.Tensor | None = None  # [S], numbers within the sequence; None for all, in order
    dropout: DropoutKey | None = None
    memory: KVCache | None = None
    loads: Loads | None = None
    asked: Literal["sums", "each"] | Top = "sums"
    teacher: Teacher | None = None
    order: torch.Tensor = field(init=False)
    seen: Sight = field(init=False)

    def __post_init__(self) -> None:
        order = self._numbers()
        object.__setattr__(self, "order", order)
        if self.targets is not None and self.weights is None:
            object.__setattr__(self, "weights", torch.ones(self.targets.shape, device=self.targets.device))
        object.__setattr__(self, "seen", Sight((), None) if self.sight is None else self.sight)

    def _numbers(self) -> torch.Tensor:
        return torch.arange(self.shape[0], device=self.tokens.device) if self.here is None else self.here

    @property
    def numbers(self) -> torch.Tensor:
        """[S, B or 1]: of each token within its document, or within the sequence."""
        return self.order.unsqueeze(1) if self.positions is None else self.positions

    @property
    def shape(self) -> tuple[int, int]:
        """(S, B)."""
        return self.tokens.shape[0], self.tokens.shape[1]

    def drop(self, x: torch.Tensor, rate: float, site: str, region: Region) -> torch.Tensor:
        """Dropout at a named site outside a region, [S here, B, H]; nothing in evaluation."""
        if rate == 0.0 or self.dropout is None:
            return x
        here = self.order[region.positions(self.shape[0])]
        return keyed_dropout(x, rate, site=site, key=self.dropout, positions=here)
