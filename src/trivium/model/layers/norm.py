"""LayerNorm or RMSNorm over the hidden dimension, RMSNorm over a head's or all heads'.

Legend: B sequences, S positions, H hidden, N heads here, G key-value heads here, D head width.
"""

import torch
import torch.nn.functional as F
from torch import nn

from trivium.kernels.rms_norm import rms_norm
from trivium.parallel.tensor.regions import Region
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
    """The weight of queries' or keys' RMSNorm: over the columns of each head, one for all heads, whole on every rank
    that holds some of them; or over all heads, one for every column of the `heads` here."""

    def __init__(self, model: ModelShape, heads: int) -> None:
        super().__init__()
        columns = model.head_columns * (heads if model.qk_norm == "all_heads" else 1)
        self.weight = nn.Parameter(torch.empty(columns))


def norm_heads(
    model: ModelShape, q: torch.Tensor, k: torch.Tensor, norms: tuple[HeadNorm, HeadNorm], region: Region
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of queries [B, N, S, D] and keys [B, G, S, D], as `plan.model.qk_norm` says."""
    of_q, of_k, epsilon = norms[0].weight, norms[1].weight, model.norm_epsilon
    if model.qk_norm == "all_heads":
        return region.norm_over_heads(q, k, of_q, of_k, epsilon)
    return rms_norm(q, of_q, epsilon), rms_norm(k, of_k, epsilon)
