"""LayerNorm or RMSNorm over the hidden dimension, RMSNorm over a head's or all heads'.

Legend: B sequences, S positions, H hidden, N heads here, G key-value heads here, D head width.
"""

import torch
import torch.nn.functional as F
from torch import nn

from trivium.kernels.operations import Operations
from trivium.plan.layers import norms as described


class LayerNorm(nn.Module):
    """LayerNorm with weight and bias; acts on each position alone."""

    def __init__(self, part: described.LayerNorm, operations: Operations) -> None:
        super().__init__()
        self.shape, self.epsilon = (part.hidden,), part.epsilon
        self.weight = nn.Parameter(torch.empty(part.hidden))
        self.bias = nn.Parameter(torch.empty(part.hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[S, B, H] -> [S, B, H]."""
        return F.layer_norm(x, self.shape, self.weight, self.bias, self.epsilon)


class RmsNorm(nn.Module):
    """RMSNorm with a weight; acts on each position alone."""

    def __init__(self, part: described.RmsNorm, operations: Operations) -> None:
        super().__init__()
        self.rms_norm, self.epsilon = operations.rms_norm, part.epsilon
        self.weight = nn.Parameter(torch.empty(part.hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[S, B, H] -> [S, B, H]."""
        return self.rms_norm(x, self.weight, self.epsilon)


class HeadNorm(nn.Module):
    """The weight of an RMSNorm of queries or keys: of `columns` columns, those of one head or of all heads here."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(columns))
