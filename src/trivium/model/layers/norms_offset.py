"""RMSNorm whose weight is an offset from 1."""

import torch

from trivium.model.layers.norms import RmsNorm


class RmsNormOffset(RmsNorm):
    """RMSNorm with 1 + weight; acts on each position alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[S, B, H] -> [S, B, H]."""
        return self.rms_norm(x, one_and(self.weight), self.epsilon).to(x.dtype)


def one_and(weight: torch.Tensor) -> torch.Tensor:
    """Return 1 + weight, at least in fp32: 16 bits have no room for what is small beside 1."""
    return 1 + weight.to(torch.promote_types(weight.dtype, torch.float32))
