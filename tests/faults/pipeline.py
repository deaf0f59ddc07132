"""Faults of the pipeline: stages, micro-batches, the tied table, zero-bubble actions, recomputation."""

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch

from faults.mutant import fault, plan, with_own
from trivium.kernels.activations import Gelu
from trivium.model import stage
from trivium.model.inputs import Inputs
from trivium.model.layers import wiring
from trivium.model.stage import Stage
from trivium.parallel.pipeline.executor import Executor
from trivium.parallel.sharding import shard, zero
from trivium.parallel.tensor.weight_gradients import WeightGradients
from trivium.plan import buckets
from trivium.plan.layers.part import Parameter
from trivium.plan.parameters import Box
from trivium.plan.partition import Partition
from trivium.training import trainer
from trivium.training.trainer import Trainer

Tensor = torch.Tensor

PIPELINE = plan(pipeline=2)
TURNS = plan(pipeline=2, chunks=2, schedule="zb-turns", model={"head": "untied"})
ONE_RANK = plan(zero=0)
AGAIN: dict[str, Any] = {"recompute": {"activation_function": True}}
RECOMPUTED: dict[str, Any] = {"recompute": {"mode": "layer"}, "model": {"dropout": 0.2}}


@fault(Partition, "ranges", PIPELINE)
def layer_lost(original, mesh):
    """The split over stages leaves out a layer between two of them."""

    def ranges(self: Partition, *arguments: Any) -> tuple[range, ...]:
        first, *rest = original(self, *arguments)
        return range(first.start, first.stop - 1), *rest

    return ranges


@fault(Partition, "ranges", PIPELINE)
def layer_doubled(original, mesh):
    """Two neighbouring stages both hold the layer between them."""

    def ranges(self: Partition, *arguments: Any) -> tuple[range, ...]:
        first, second, *rest = original(self, *arguments)
        return first, range(second.start - 1, second.stop), *rest

    return ranges


@fault(trainer, "_forward", PIPELINE, plan(pipeline=2, chunks=2))
def targets_of_another_micro_batch(original, mesh):
    """The last stage computes the loss with the targets of the micro-batch before."""

    def forward(stage: Stage, inputs: list[Inputs], *others: Any) -> Any:
        late = int(stage.is_last and not stage.is_first)
        return original(stage, [inputs[m - late] for m in range(len(inputs))], *others)

    return forward


@fault(Executor, "_backward", ONE_RANK)
def gradients_overwritten(original, mesh):
    """Each backward stores its gradients instead of adding them to those of the earlier micro-batches."""

    def backward(self: Executor, *arguments: Any) -> None:
        for bucket in self.watch._buckets if self.watch is not None else ():
            bucket.clear_gradients()
        original(self, *arguments)

    return backward


@fault(Trainer, "_executor", ONE_RANK)
def micro_batch_loss_not_scaled(original, mesh):
    """Losses of micro-batches are added, not averaged: gradients grow with their number."""

    def executor(self: Trainer, inputs: Sequence[Inputs], scale: Any, losses: Sequence[str]) -> Executor:
        made: Executor = original(self, inputs, scale * len(inputs), losses)
        return made

    return executor


@fault(buckets, "partial_over", PIPELINE)
def tied_gradients_not_summed(original, mesh):
    """The tied table's gradients on the first and the last stage are not added: its two copies drift apart."""
    return lambda plan, p: tuple(over for over in original(plan, p) if over != "ends")


@fault(shard, "_counted", PIPELINE)
def tied_table_counted_twice(original, mesh):
    """The tied table enters the global norm at both ends of the pipeline."""
    return lambda bucket: (slice(None),)


@fault(buckets, "partial_over", TURNS)
def heads_in_turns_not_summed(original, mesh):
    """Each rank updates its copy of the head by the micro-batches whose heads it took."""
    return lambda plan, p: tuple(over for over in original(plan, p) if over != "ends" or p.owner != "head")


@fault(shard, "_counted", TURNS)
def heads_in_turns_all_counted(original, mesh):
    """Every rank's copy of the head enters the global norm."""
    return lambda bucket: (slice(None),)


@fault(trainer, "_forward", TURNS)
def targets_by_turn(original, mesh):
    """A rank takes the targets of its heads in the order of its turns, not of the micro-batches."""

    def forward(stage: Stage, inputs: list[Inputs], *others: Any) -> Any:
        ranks = mesh.pipeline.size if stage.is_last else 1
        return original(stage, [inputs[m // ranks] for m in range(len(inputs))], *others)

    return forward


@fault(zero, "sum_over_ranks_begin", PIPELINE)
def norm_of_the_own_stage(original, mesh):
    """Each pipeline rank clips by the norm of its own stages."""

    return with_own(original, place=0)


@fault(stage, "initial_values", plan(pipeline=2, chunks=2))
def chunks_initialised_alike(original, mesh):
    """The chunks of a rank are numbered from zero each, so their layers start with the same values."""

    def initial_values(parameter: Parameter, model: Any, seed: int, box: Box) -> Tensor:
        name = re.sub(r"layers\.(\d+)", lambda m: f"layers.{int(m[1]) % 2}", parameter.name)
        return original(replace(parameter, name=name), model, seed, box)

    return initial_values


@fault(WeightGradients, "finish", plan(pipeline=2, schedule="zb-h1"), plan(pipeline=2, chunks=2, schedule="zb-v"))
def weight_gradient_lost(original, mesh):
    """A zero-bubble schedule drops the weight gradients of its last micro-batch, as if the drain had ended early."""

    def finish(self: WeightGradients, key: Hashable, accumulated: Callable[..., None]) -> None:
        if len(self._waiting) == 1:
            self._waiting[key] = [p._replace(grad=torch.zeros_like(p.grad)) for p in self._waiting[key]]
        original(self, key, accumulated)

    return finish


@fault(wiring, "recomputed", plan(**RECOMPUTED), plan(pipeline=2, **RECOMPUTED))
def recomputed_with_other_randomness(original, mesh):
    """The second forward of a recomputed block draws other dropout masks than the first."""

    def recomputed(function: Callable[..., Tensor], x: Tensor, inputs: Inputs) -> Tensor:
        times = iter(range(2))

        def run(x: Tensor, inputs: Inputs) -> Tensor:
            if next(times) and inputs.dropout is not None:
                inputs = replace(inputs, dropout=replace(inputs.dropout, seed=inputs.dropout.seed + 1))
            return function(x, inputs)

        return original(run, x, inputs)

    return recomputed


@fault(Gelu, "value_again", plan(**AGAIN), plan(tensor=2, **AGAIN))
def activation_function_left_out(original, mesh):
    """The weight's gradient of a product whose activation function is computed again is made of what that one read."""

    def value_again(self: Gelu, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        read = x.clone()
        _, pullback = original(self, x)
        return read, pullback

    return value_again
