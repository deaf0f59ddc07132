"""The feed-forward half of a block.

Legend: S positions, B sequences, H hidden, E feed-forward columns here.
"""

import torch
import torch.nn.functional as F
from torch import nn

from trivium.model.gelu import gelu
from trivium.model.inputs import Inputs
from trivium.model.linear import ColumnLinear, RowLinear
from trivium.model.norm import Norm
from trivium.parallel.tensor import Region
from trivium.plan.model_shape import ModelShape


class GateUp(nn.Module):
    """SwiGLU's two input matrices side by side: [2, E, H]."""

    def __init__(self, columns: int, hidden: int, region: Region) -> None:
        super().__init__()
        self.region = region
        self.weight = nn.Parameter(torch.empty(2, columns, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., E]: silu(gate) x up."""
        gate, up = self.region.linear(x, self.weight).chunk(2, dim=-1)
        return F.silu(gate) * up


class GeluUp(ColumnLinear):
    """GELU after the input matrix (tanh form, as in GPT-2 and Megatron)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., E]."""
        return gelu(super().forward(x))


class Mlp(nn.Module):
    """norm -> up (columns split), activation -> down (rows split)."""

    def __init__(self, model: ModelShape, layer: int, region: Region) -> None:
        super().__init__()
        self.model, self.layer, self.region = model, layer, region
        columns = model.ffn_width // region.group.size
        self.norm = Norm(model)
        gpt = model.family == "gpt"
        self.up = (
            GeluUp(columns, model.hidden, region, bias=True) if gpt else GateUp(columns, model.hidden, region)
        )
        self.down = RowLinear(model.hidden, columns, region, bias=gpt)

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """[S here, B, H] -> [S here, B, H], to be added to x."""
        y = self.down(self.up(self.region.enter(self.norm(x))))
        return inputs.drop(y, self.model.dropout, f"layers.{self.layer}.mlp", self.region)
