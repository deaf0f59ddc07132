"""Faults of adapters: LoRA, DoRA and LoRA-GGPO."""

from typing import Any

import torch

from faults.mutant import fault, plan
from trivium.adapters import dora, lora, lora_ggpo
from trivium.model.inputs import Inputs
from trivium.model.layers import linear
from trivium.model.layers.linear import Added
from trivium.parallel.sharding import shard
from trivium.parallel.sharding.buckets import Bucket
from trivium.parallel.tensor.regions import Region
from trivium.plan import buckets

Tensor = torch.Tensor


def adapters(kind: str = "lora", **settings: Any) -> dict[str, Any]:
    return {"adapters": [{"kind": kind, "settings": {"r": 3, "alpha": 6.0, **settings}}]}


LORA, DORA, GGPO = adapters(), adapters("dora"), adapters("lora_ggpo", sigma=0.3, beta=1.0)
DROPPING = adapters(dropout=0.3)
SEQUENCE = plan(tensor=2, sequence_parallel=True, model=LORA)


@fault(shard, "_counted", plan(tensor=2, model=LORA))
def a_counted_by_every_tensor_rank(original, mesh):
    """Every tensor rank counts the whole A of a layer that is split by its outputs in the norm of the gradient."""

    def counted(bucket: Bucket) -> tuple[slice, ...]:
        for slot in bucket.slots:
            if slot.row.name.endswith(".adapter.a"):
                object.__setattr__(slot, "counts", True)
        return original(bucket)

    return counted


@fault(buckets, "partial_over", SEQUENCE)
def sum_of_d_a_missing(original, mesh):
    """Under sequence parallelism the gradient of A covers the positions of its tensor rank alone."""
    return lambda plan, p: () if p.name.endswith(".adapter.a") else original(plan, p)


@fault(buckets, "partial_over", SEQUENCE)
def sum_of_d_b_missing(original, mesh):
    """Under sequence parallelism the gradient of the B of a layer that is split by its inputs is left partial."""
    return lambda plan, p: () if p.name.endswith(".adapter.b") else original(plan, p)


@fault(Region, "column_product", plan(tensor=2, model=LORA))
def gradient_of_the_low_rank_not_summed(original, mesh):
    """The gradient of x A^T is that of this rank's rows of B alone, because the product with B is taken for one that
    no region surrounds."""

    def column_product(self: Region, x: Tensor, weight: Any, bias: Any = None) -> Tensor:
        return self.linear(x, weight, bias) if weight.shape[-1] == 3 else original(self, x, weight, bias)

    return column_product


@fault(lora.Lora, "scale", plan(model=LORA))
def scale_left_out(original, mesh):
    """The factor s of the added product is forgotten."""
    return lambda self: 1.0


@fault(lora.Lora, "scale", plan(model=adapters(rslora=True)))
def scale_of_lora_for_rslora(original, mesh):
    """rsLoRA divides alpha by r, and not by its root."""
    return lambda self: self.alpha / self.r


@fault(lora, "added_product", plan(tensor=2, model=LORA))
def b_divided_by_tensor_ranks(original, mesh):
    """What is added is divided by the number of tensor ranks, as if all of them summed it."""
    return lambda reads, layer, added: original(reads, layer, added) / layer.region.group.size


@fault(Added, "_dropped", plan(model=DROPPING))
def dropout_in_evaluation(original, mesh):
    """Inputs of A are dropped in validation too."""

    def dropped(self: Added, layer: Any, inputs: Inputs, function: Any) -> Any:
        if inputs.dropout is None:
            samples = tuple(range(inputs.shape[1]))
            key = linear.DropoutKey(7, 0, samples, inputs.shape[0])
            object.__setattr__(inputs, "dropout", key)
        return original(self, layer, inputs, function)

    return dropped


@fault(lora, "added_product", plan(model=DROPPING))
def dropout_after_a(original, mesh):
    """Dropout acts on x A^T, and not on x."""

    def product(reads: Any, layer: Any, added: Any) -> Tensor:
        low = layer.region.linear(reads.x, added["a"], function=reads.function)
        drop = getattr(reads.dropped, "drop", None)
        return layer.region.linear(low if drop is None else drop(low), added["b"])

    return product


@fault(linear, "keyed_dropout", plan(tensor=2, model=DROPPING))
def mask_of_the_first_columns(original, mesh):
    """Every tensor rank drops its columns of the inputs by the mask of the first ones."""
    return lambda x, rate, *, columns, **more: original(x, rate, columns=columns and columns._replace(first=0), **more)


@fault(Bucket, "__init__", plan(model=LORA))
def frozen_bias_moves(original, mesh):
    """Frozen biases are changed where the buckets are made."""

    def init(self: Bucket, row: Any, slots: Any, *more: Any) -> None:
        original(self, row, slots, *more)
        for slot in self.slots:
            if not self.trains and slot.row.name.endswith("bias"):
                self.weights[slot.start : slot.stop].add_(1e-3)

    return init


@fault(Region, "summed", plan(tensor=2, model=DORA))
def norms_of_own_columns(original, mesh):
    """DoRA divides the rows of a layer that is split by its inputs by the norms of this rank's columns."""
    return lambda self, x: x


@fault(dora.Dora, "adapted", plan(model=DORA))
def norm_with_a_gradient(original, mesh):
    """The gradient of DoRA passes through the norms of the rows."""

    def adapted(self: Any, y: Tensor, reads: Any, layer: Any, added: Any) -> Tensor:
        whole = self.merged(layer.weight, added)
        unit = (whole / added["m"].unsqueeze(-1)).flatten(0, -2)
        x = reads.x if reads.function is None else reads.function(reads.x)
        bias = 0 if reads.bias is None else reads.bias
        return added["m"].flatten() * (x @ unit.T) + bias

    return adapted


@fault(Added, "_normal", plan(tensor=2, model=GGPO))
def noise_by_tensor_rank(original, mesh):
    """Tensor ranks draw the noise of their part from streams of their own."""

    def normal(self: Added, weight: Tensor, key: Any) -> Tensor:
        generator = torch.Generator().manual_seed(key.step + mesh.tensor.index)
        return torch.randn(weight.shape, generator=generator).to(weight.dtype)

    return normal


@fault(Added, "weight", plan(model=GGPO))
def noise_of_every_micro_batch(original, mesh):
    """Each micro-batch draws noise of its own instead of one of the step."""

    def weight(self: Added, given: Tensor, inputs: Inputs) -> Any:
        key = inputs.dropout
        if key is not None:
            moved = linear.DropoutKey(key.seed, 100 * key.step + key.samples[0], key.samples, key.sequence)
            object.__setattr__(inputs, "dropout", moved)
        found = original(self, given, inputs)
        object.__setattr__(inputs, "dropout", key)
        return found

    return weight


@fault(lora_ggpo.LoraGgpo, "remembered", plan(model=GGPO))
def scale_missing_in_the_row_norms(original, mesh):
    """The norms of rows are those of W + B A, without s."""

    def remembered(self: Any, base: Any, layer: Any, added: Any, gradients: Any) -> Any:
        return original(self, base, layer, {**added, "b": added["b"] / self.scale}, gradients)

    return remembered


@fault(lora_ggpo, "EXPONENT", plan(model=GGPO))
def gradient_norm_not_squared(original, mesh):
    """The noise grows with the norm of the gradient, and not with its square."""
    return 1
