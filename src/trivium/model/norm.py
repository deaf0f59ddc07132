"""LayerNorm or RMSNorm over the hidden dimension, RMSNorm over each head's."""

import torch
import torch.nn.functional as F
from torch import nn

from trivium.model.rms_norm import rms_norm
from trivium.plan.model_shape import ModelShape


class Norm(nn.Module):
    """LayerNorm with bias (gpt) or RMSNorm (llama); acts on each position alone."""

    def __init__(self, model: ModelShape) -> None:
        super().__init__()
        self.shape, self.epsilon = (model.hidden,), model.norm_epsilon
        self.weight = nn.Parameter(torch.empty(model.hidden))
        self.bias = nn.Parameter(torch.empty(model.hidden)) if model.family == "gpt" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[S, B, H] -> [S, B, H]."""
        bias = self.bias
        if bias is None:
            return rms_norm(x, self.weight, self.epsilon)
        return F.layer_norm(x, self.shape, self.weight, bias, self.epsilon)


class HeadNorm(nn.Module):
    """RMSNorm over the columns of each head; one weight for all, whole on every rank that holds some of them."""

    def __init__(self, model: ModelShape) -> None:
        super().__init__()
        self.epsilon = model.norm_epsilon
        self.weight = nn.Parameter(torch.empty(model.head_columns))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., D] -> [..., D]."""
        return rms_norm(x, self.weight, self.epsilon)
