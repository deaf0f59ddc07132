"""What a micro-batch brings to every stage."""

from dataclasses import dataclass

import torch

from trivium.parallel.randomness import DropoutKey


@dataclass(frozen=True)
class Inputs:
    """tokens [S, B]; targets [S, B], or None when logits are wanted; dropout: None in evaluation."""

    tokens: torch.Tensor
    targets: torch.Tensor | None = None
    dropout: DropoutKey | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(S, B)."""
        return self.tokens.shape[0], self.tokens.shape[1]
