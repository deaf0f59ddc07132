"""Faults of products with 8-bit operands."""

from typing import Any

import torch

from faults.mutant import fault, plan
from trivium.certify.ways import NARROW
from trivium.kernels import scaled
from trivium.kernels.float8 import E5M2, Format
from trivium.kernels.scaled import Operand, Quantised, ScaledProducts, Scaling
from trivium.model.layers import scaled as of_layers
from trivium.parallel.sharding import narrow_gather
from trivium.parallel.tensor.agreed import Agreed
from trivium.plan.plan import Plan
from trivium.training.amaxes import Amaxes

Tensor = torch.Tensor


def in_float8(recipe: str = "tensor", gathered: bool = False, layers: int = 1, **more: Any) -> Plan:
    """Return a small plan whose linear layers all multiply in 8 bits."""
    float8 = {"recipe": recipe, "keep": [], "block": 4, "gathered": gathered}
    model, batch = {"layers": layers, "vocabulary": 13}, {"sequences": 2}
    return plan(precision={"float8": float8}, model=model, batch=batch, **more)


@fault(Amaxes, "begin_pass", in_float8("delayed"))
def stale_amax(original, mesh):
    """Delayed scales follow from the steps before the last one."""

    def begin_pass(self: Amaxes, loss_scale: float, *, training: bool) -> None:
        newest = self.history[0].clone()
        self.history[0] = 0
        original(self, loss_scale, training=training)
        self.history[0] = newest

    return begin_pass


@fault(Amaxes, "end_step", in_float8("delayed", data=2))
def amax_of_own_replica(original, mesh):
    """The history has the values of this rank's micro-batches alone."""

    def end_step(self: Amaxes, loss_scale: float, *, updated: bool) -> None:
        several, self._mesh = self._mesh, type(mesh).single()
        original(self, loss_scale, updated=updated)
        self._mesh = several

    return end_step


@fault(Amaxes, "begin_pass", in_float8("delayed"), way=NARROW)
def amax_without_the_loss_scale(original, mesh):
    """Delayed scales of gradients leave out the factor of the scaled loss."""
    return lambda self, loss_scale, *, training: original(self, 1.0, training=training)


@fault(ScaledProducts, "quantised", in_float8())
def scale_of_another_tensor(original, mesh):
    """Gradients are scaled back by the scale of the operand before them."""
    before: list[Tensor] = []

    def quantised(self: ScaledProducts, x: Tensor, operand: Operand, dimensions: str) -> Quantised:
        found = original(self, x, operand, dimensions)
        before.append(found.inverse)
        return found._replace(inverse=before[-2]) if operand == "gradients" and len(before) > 1 else found

    return quantised


@fault(ScaledProducts, "quantised", in_float8("block"))
def transposed_block(original, mesh):
    """Blocks of activations lie across the sum instead of along it."""

    def quantised(self: ScaledProducts, x: Tensor, operand: Operand, dimensions: str) -> Quantised:
        if operand != "activations":
            return original(self, x, operand, dimensions)
        values = original(self, x.T, operand, dimensions[::-1]).values().T
        return Quantised(values, torch.ones(1, 1, dtype=values.dtype))

    return quantised


@fault(ScaledProducts, "quantised", in_float8("row", tensor=2))
def scale_of_columns(original, mesh):
    """Each column of an operand has a scale, and not each row."""

    def quantised(self: ScaledProducts, x: Tensor, operand: Operand, dimensions: str) -> Quantised:
        values = original(self, x.T, operand, dimensions[::-1]).values().T
        return Quantised(values, torch.ones(1, 1, dtype=values.dtype))

    return quantised


@fault(scaled, "rounded", in_float8("delayed"))
def missing_clamp(original, mesh):
    """Numbers beyond the largest value become NaN, as in the casts of earlier versions of torch."""

    def rounded(x: Tensor, to: Format) -> Tensor:
        return original(x.masked_fill(x.abs() > to.largest * (1 + 1e-12), torch.nan), to)

    return rounded


@fault(of_layers, "scaling_of", in_float8())
def e5m2_used_forward(original, mesh):
    """Activations have the format of gradients."""

    def scaling_of(float8: Any) -> Scaling:
        found = original(float8)
        return found._replace(formats=(E5M2, *found.formats[1:]))

    return scaling_of


@fault(ScaledProducts, "gradient_of_inputs", in_float8("row"))
def transpose_quantised_twice(original, mesh):
    """The transposed weight is rounded from what the forward had rounded."""
    return lambda self, grad, weight: original(self, grad, self.quantised(weight, "weights", "OI").values())


@fault(ScaledProducts, "_of_weight", in_float8("row"))
def gradients_quantised_twice(original, mesh):
    """The factors of a weight gradient are rounded from what the other products had rounded."""

    def of_weight(self: ScaledProducts, grad: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
        return original(self, self.quantised(grad, "gradients", "TO").values(), x, dtype)

    return of_weight


@fault(Agreed, "__call__", in_float8(tensor=2))
def amax_not_reduced(original, mesh):
    """Every tensor rank scales by the largest value of its own part."""
    return lambda self, amax, dimensions: amax


@fault(Agreed, "__call__", in_float8(context=2))
def amax_of_own_positions(original, mesh):
    """Every context rank scales by the largest value of its own positions."""
    return lambda self, amax, dimensions: original(self, amax, dimensions.replace("T", ""))


@fault(Agreed, "__call__", in_float8("row", context=2))
def amax_of_other_tokens(original, mesh):
    """The scale of a token is that of the tokens in its place on other context ranks."""
    return lambda self, amax, dimensions: original(self, amax, "T" + dimensions)


@fault(narrow_gather, "all_reduce_", in_float8(gathered=True, data=2, zero=3))
def gathered_by_own_amax(original, mesh):
    """Each rank encodes its slice by its own largest value, and decodes all slices with it."""
    return lambda amax, group, largest: amax


@fault(of_layers, "scaled_weights", in_float8(layers=2))
def keep_one_layer_more(original, mesh):
    """The last layer multiplies in the dtype of the weights."""
    return lambda float8, rows, layers: [p for p in original(float8, rows, layers) if p.owner != layers - 1]
