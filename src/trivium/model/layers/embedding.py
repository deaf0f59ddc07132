"""Token and position embedding.

Legend: S positions, B sequences, H hidden, V vocabulary rows here.
"""

import torch
from torch import nn

from trivium.model.inputs import Inputs
from trivium.parallel.tensor.regions import Region, embed, look_up
from trivium.plan.model_shape import ModelShape


class Table(nn.Module):
    """Rows of an embedding on this rank."""

    def __init__(self, rows: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, hidden))


class Embedding(nn.Module):
    """Tokens (vocabulary split), plus learned positions if the model has them. A last stage that borrows the tied table
    has no positions."""

    def __init__(self, model: ModelShape, region: Region, *, borrowed: bool) -> None:
        super().__init__()
        part = model.embedding_part
        self.region, self.rate = region, part.rate
        self.tokens = Table(model.padded_vocabulary(region.group.size) // region.group.size, model.hidden)
        positions = None if borrowed else part.positions
        self.positions = None if positions is None else Table(positions.length, positions.hidden)

    def forward(self, inputs: Inputs) -> torch.Tensor:
        """[S, B] tokens -> [S here, B, H]."""
        here = self.region.positions(inputs.shape[0])
        x = embed(inputs.tokens, self.tokens.weight, self.region.group)
        # Not a column-split region: the lookup's input has no gradient, so only its exit communicates.
        x = self.region.leave(x)
        if self.positions is not None:
            numbers = inputs.order.unsqueeze(1) if inputs.positions is None else inputs.positions
            x = x + look_up(numbers[here], self.positions.weight, sparse=False)
        return inputs.drop(x, self.rate, "embedding", self.region)
