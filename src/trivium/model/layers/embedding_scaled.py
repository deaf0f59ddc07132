"""An embedding whose vectors are multiplied by a constant."""

import math

import torch

from trivium.model.inputs import Inputs
from trivium.model.layers.embedding import Embedding
from trivium.parallel.tensor.regions import Region
from trivium.plan.layers.embedding_scaled import EmbeddingScaled as Described
from trivium.plan.model_shape import ModelShape


class EmbeddingScaled(Embedding):
    """scale · (tokens + positions)."""

    def __init__(self, model: ModelShape, region: Region, *, borrowed: bool) -> None:
        super().__init__(model, region, borrowed=borrowed)
        part = model.embedding_part
        assert isinstance(part, Described), f"the embedding of this model is {part}"
        self.scale = part.scale

    def forward(self, inputs: Inputs) -> torch.Tensor:
        """[S, B] tokens -> [S here, B, H]."""
        x = super().forward(inputs)
        return x * _rounded(self.scale, x.dtype)


def _rounded(scale: float, dtype: torch.dtype) -> float:
    """Return the nearest number of a dtype, as Gemma multiplies by it."""
    mantissa, exponent = math.frexp(scale)
    unit = torch.finfo(dtype).eps / 2
    return math.ldexp(round(mantissa / unit) * unit, exponent)
