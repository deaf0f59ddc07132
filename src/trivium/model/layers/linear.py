"""A linear layer's parameters on this rank; communication belongs to the region around it.

Legend: S positions, B sequences.
"""

from dataclasses import replace
from functools import partial
from typing import Literal, cast

import torch
from torch import nn

from trivium.comms.group import Group
from trivium.kernels.activations import Activation, Shared
from trivium.kernels.arithmetic import Arithmetic
from trivium.kernels.dropout import Columns, DropoutKey, Dropped, keyed_dropout
from trivium.model.inputs import Inputs
from trivium.parallel.tensor.regions import Region
from trivium.plan.adapters import Adapted, Factors, Reads
from trivium.seeds import seed_for


class Added(nn.Module):
    """The parameters of an adapter on one of the tensor ranks of a region, and one of the expert ranks. site: the name
    of its random choices. first_expert: the number of the first expert here, if the layer is that of experts."""

    def __init__(self, adapted: Adapted, region: Region, expert: Group, site: str) -> None:
        super().__init__()
        self.adapter, self.region, self.site = adapted.adapter, region, site
        self.base = adapted.one
        experts = adapted.base.shape[0] // expert.size
        self.first_expert = expert.index * experts if adapted.base.by_expert else None
        for row in adapted.own_rows:
            sizes = enumerate(row.of_expert_rank(expert.size).shape)
            shape = [size // region.group.size if n == row.split else size for n, size in sizes]
            self.register_parameter(row.name, nn.Parameter(torch.empty(shape)))

    def forward(
        self, y: torch.Tensor, x: torch.Tensor, linear: "Linear", inputs: Inputs, function: Activation | None = None
    ) -> torch.Tensor:
        """Adapt the result y of a linear layer; see `Adapter.adapted`."""
        bias = linear.bias if linear.adds_bias_itself else None
        reads = Reads(x, function, self._dropped(linear, inputs, function), bias)
        found: torch.Tensor = self.adapter.adapted(y, reads, linear, dict(self.named_parameters()))
        return found

    def factors(self, linear: "Linear") -> Factors:
        """Return how the matrices of the experts here are changed; see `Adapter.factors`."""
        found: Factors = self.adapter.factors(linear, dict(self.named_parameters()))
        return found

    def weight(self, weight: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """Return the weight with which the layer itself multiplies; see `Adapter.weight`."""
        key = inputs.dropout
        normal = None if key is None or not self.adapter.draws else partial(self._normal, weight, key)
        found: torch.Tensor = self.adapter.weight(weight, dict(self.named_parameters()), normal)
        return found

    def _normal(self, weight: torch.Tensor, key: DropoutKey) -> torch.Tensor:
        """Return standard normal numbers in the shape of the weight. Every rank draws those of the whole weight, or of
        the whole weight of each of its experts, and takes its own."""
        if self.first_expert is None:
            return self._normal_of_one(weight, key)
        found = torch.empty_like(weight)
        for number, one in enumerate(found, self.first_expert):
            one.copy_(self._normal_of_one(one, key, number))
        return found

    def _normal_of_one(self, weight: torch.Tensor, key: DropoutKey, *expert: int) -> torch.Tensor:
        """Return those of one matrix. expert: its number, if it is that of an expert."""
        seed = seed_for(key.seed, "noise", self.site, key.step, *expert)
        generator = torch.Generator(device=weight.device).manual_seed(seed)
        whole = torch.randn(self.base.shape, generator=generator, device=weight.device)
        if self.base.split is None:
            return whole.to(weight.dtype)
        here = weight.shape[self.base.split]
        return whole.narrow(self.base.split, self.region.group.index * here, here).to(weight.dtype)

    def _dropped(self, linear: "Linear", inputs: Inputs, function: Activation | None) -> Activation | None:
        """Return `function` followed by the dropout of a training step."""
        rate, key, region = self.adapter.dropout, inputs.dropout, self.region
        if rate == 0 or key is None:
            return function
        # Inputs that are split lie within the tensor region, and so do those of a layer that does.
        here = slice(None) if linear.splits_inputs or linear.inside else region.positions(inputs.shape[0])
        columns = None
        if linear.splits_inputs:
            whole = self.base.shape[-1]
            columns = Columns(region.group.index * (whole // region.group.size), whole)

        def drop(x: torch.Tensor) -> torch.Tensor:
            positions = inputs.order[here]
            return keyed_dropout(x, rate, site=self.site, key=key, positions=positions, columns=columns)

        return Dropped(drop, function)


class Linear(nn.Module):
    """y = x W^T (+ b), and what an adapter makes of it. outputs: one size, or several if the weight has as many
    dimensions more.

    products: the tensor region with the arithmetic of this layer. Adapters multiply in that of `region`."""

    splits_outputs = False
    splits_inputs = False
    inside = False
    adapter: Added | None

    def __init__(self, outputs: int | tuple[int, ...], inputs: int, region: Region, *, bias: bool) -> None:
        super().__init__()
        self.region = self.products = region
        self.adapter = None
        outputs = (outputs,) if isinstance(outputs, int) else outputs
        self.weight = nn.Parameter(torch.empty(*outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    @property
    def adds_bias_itself(self) -> bool:
        """Whether the product adds the bias, and not `add_bias`."""
        return True

    def use(self, arithmetic: Arithmetic) -> None:
        """Compute the products with the weight by another arithmetic."""
        self.products = replace(self.region, arithmetic=arithmetic)

    def _weight(self, inputs: Inputs) -> nn.Parameter:
        found = self.weight if self.adapter is None else self.adapter.weight(self.weight, inputs)
        return cast(nn.Parameter, found)


class ColumnLinear(Linear):
    """A linear layer whose outputs are split over tensor ranks."""

    splits_outputs = True

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """[S here, B, inputs] -> [S, B, outputs here]."""
        y = self.products.column_product(x, self._weight(inputs), self.bias)
        return y if self.adapter is None else self.adapter(y, x, self, inputs)


class OuterLinear(Linear):
    """A linear layer outside of tensor regions, whose weight every tensor rank holds."""

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """[S here, B, inputs] -> [S here, B, outputs]."""
        y = self.products.linear(x, self._weight(inputs), self.bias)
        return y if self.adapter is None else self.adapter(y, x, self, inputs)


class InnerLinear(Linear):
    """A linear layer inside a tensor region, whose inputs have entered it and whose outputs have not left it. splits:
    what tensor ranks divide."""

    inside = True

    def __init__(
        self, outputs: int | tuple[int, ...], inputs: int, region: Region, splits: Literal["outputs", "inputs"] | None
    ) -> None:
        super().__init__(outputs, inputs, region, bias=False)
        self.splits_outputs, self.splits_inputs = splits == "outputs", splits == "inputs"

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """[S, B, inputs] -> [S, B, outputs]: columns of this rank, or its part of a sum."""
        y = self.products.linear(x, self._weight(inputs))
        return y if self.adapter is None else self.adapter(y, x, self, inputs)

    def of_activated(self, x: torch.Tensor, inputs: Inputs, function: Activation) -> torch.Tensor:
        """Compute the same of function(x), which is not kept: the backward computes it again."""
        if self.adapter is not None:  # which reads x too
            function = Shared(function)
        y = self.products.linear(x, self._weight(inputs), function=function)
        return y if self.adapter is None else self.adapter(y, x, self, inputs, function)


class RowLinear(Linear):
    """A linear layer whose inputs are split over tensor ranks: partial sums first, the bias once after them."""

    splits_inputs = True

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """[S, B, inputs here] -> [S here, B, outputs], which `add_bias` completes."""
        if self.adds_bias_itself:
            y = self.products.linear(x, self._weight(inputs), self.bias)
        else:
            y = self.products.row_product(x, self._weight(inputs))
        return y if self.adapter is None else self.adapter(y, x, self, inputs)

    def of_activated(self, x: torch.Tensor, inputs: Inputs, function: Activation) -> torch.Tensor:
        """Compute the same of function(x), which is not kept: the backward computes it again."""
        if self.adapter is not None:  # which reads x too
            function = Shared(function)
        if self.adds_bias_itself:
            y = self.products.linear(x, self._weight(inputs), self.bias, function)
        else:
            y = self.products.row_product(x, self._weight(inputs), function)
        return y if self.adapter is None else self.adapter(y, x, self, inputs, function)

    def add_bias(self, x: torch.Tensor) -> torch.Tensor:
        """The bias, added once to the completed sum, where the product has not."""
        return x if self.bias is None or self.adds_bias_itself else x + self.bias

    @property
    def adds_bias_itself(self) -> bool:
        """Whether the product adds the bias: on one rank it does; a sum over several ranks must be complete first."""
        return self.region.group.size == 1
