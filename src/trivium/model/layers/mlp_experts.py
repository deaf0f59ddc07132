"""The feed-forward half of experts.

Legend: S positions, B sequences, H hidden, T = S x B tokens, E experts, F columns of an expert here.
"""

import torch
from torch import nn

from trivium.model.inputs import Inputs
from trivium.model.layers.half import Around, Half
from trivium.model.layers.linear import InnerLinear
from trivium.model.layers.routing import Router
from trivium.parallel.expert.dispatch import Dispatch
from trivium.parallel.expert.network import Matrices, networks
from trivium.parallel.expert.rows import Rows
from trivium.parallel.tensor.regions import Region
from trivium.plan.layers.mlp_experts import MlpExperts as Described


class MlpExperts(Half):
    """Each token visits the experts that the router chooses, and the shared expert beside them.

    Tensor ranks have all positions, route them alike and compute some columns of every expert; their results are
    summed where the half leaves the tensor region.
    """

    traced = False

    def __init__(self, part: Described, around: Around) -> None:
        super().__init__(around)
        self.part = part
        experts, ranks = part.experts, around.region.group.size
        self.function = around.operations.gated["silu"]
        self.router = Router(experts, part.hidden)
        self.group = around.expert
        self.experts = Networks(experts.count // self.group.size, part.columns // ranks, part.hidden, around.region)
        self.shared = Shared(experts.shared // ranks, part.hidden, around) if experts.shared else None
        self.shared_gate = Gate(part.hidden, around.region) if experts.shared_gate else None

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """[S here, B, H] -> [S here, B, H]."""
        whole = self.region.enter(x)
        x = whole.flatten(0, 1)
        numbers = inputs.numbers.expand(inputs.shape).flatten()
        watched = None if inputs.loads is None else inputs.loads.router(self.layer, self.part.experts)
        chosen, weights = self.router(x, numbers, watched)
        rows = Rows.of(chosen, self.part.experts.count, self.part.experts.capacity)
        if watched is not None and self.part.experts.capacity is not None:
            watched.dropped = torch.tensor(rows.dropped, device=x.device)
        if self.group.size == 1:
            y, shared = self._networks(inputs, x, rows.in_order(weights), rows), self._shared(whole, inputs)
        else:
            dispatch = Dispatch(x, rows, weights, self.group)
            shared = self._shared(whole, inputs)  # while the tokens are on their way
            y = dispatch.combined(self._networks(inputs, *dispatch.arrived()))
        y = y.view_as(whole)
        return self.region.leave(y if shared is None else y + shared)

    def _networks(self, inputs: Inputs, x: torch.Tensor, weights: torch.Tensor, rows: Rows) -> torch.Tensor:
        later, arithmetic = self.region.weight_gradients, self.region.arithmetic
        up, down = (each.matrices(inputs) for each in (self.experts.up, self.experts.down))
        return networks(x, weights, rows, up, down, self.function, later, arithmetic)

    def _shared(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor | None:
        """[S, B, H] -> this rank's part of the shared expert's result."""
        if self.shared is None:
            return None
        y = self.shared(x, inputs)
        return y if self.shared_gate is None else y * self.shared_gate(x, inputs)


class Networks(nn.Module):
    """The matrices of all experts: `up` [E, 2, F, H], the gate first, and `down` [E, H, F]."""

    def __init__(self, count: int, columns: int, hidden: int, region: Region) -> None:
        super().__init__()
        self.up = _OfEach((count, 2, columns), hidden, region, "outputs")
        self.down = _OfEach((count, hidden), columns, region, "inputs")


class _OfEach(InnerLinear):
    """A matrix of each expert, which `networks` multiplies with."""

    def matrices(self, inputs: Inputs) -> Matrices:
        """Return them with what an adapter makes of them."""
        adapter = self.adapter
        factors = None if adapter is None else adapter.factors(self)
        return Matrices(self.weight, self._weight(inputs), factors, self.products.arithmetic)


class Shared(nn.Module):
    """The expert that all tokens visit."""

    def __init__(self, columns: int, hidden: int, around: Around) -> None:
        super().__init__()
        self.function = around.operations.gated["silu"]
        self.function_again = around.recompute.activation_function
        self.up = InnerLinear((2, columns), hidden, around.region, "outputs")
        self.down = InnerLinear(hidden, columns, around.region, "inputs")

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """[S, B, H] inside the region -> this rank's part of the sum [S, B, H]."""
        x = self.up(x, inputs)
        if self.function_again:
            return self.down.of_activated(x, inputs, self.function)
        return self.down(self.function(x), inputs)


class Gate(InnerLinear):
    """The factor of the shared expert: a sigmoid of a product with its inputs."""

    def __init__(self, hidden: int, region: Region) -> None:
        super().__init__(1, hidden, region, None)

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """[S, B, H] -> [S, B, 1]."""
        return super().forward(x, inputs).sigmoid()
