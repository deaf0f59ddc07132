"""Faults of the weights of targets."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from faults.mutant import fault, plan
from trivium.model.inputs import Inputs
from trivium.tokens.rows import Rows
from trivium.training import trainer
from trivium.training.trainer import Samples, Trainer

Tensor = torch.Tensor

RING = plan(context=2)
MICRO_BATCHES = plan(batch={"micro": 2})


@fault(Rows, "of_text", plan(), RING)
def weights_not_shifted_with_their_targets(original, mesh):
    """The loss of each target has the weight of the token before it."""

    def of_text(text: np.ndarray, weights: np.ndarray) -> Rows:
        rows: Rows = original(text, weights)
        return rows._replace(weights=weights[:, :-1])

    return of_text


@fault(Trainer, "_inputs", MICRO_BATCHES, plan(pipeline=2, data=2))
def mean_of_the_means_of_micro_batches(original, mesh):
    """Losses are divided by the weights of each micro-batch, and then averaged, so that short answers count more."""

    def inputs(self: Trainer, samples: Samples, step: int | None) -> list[Inputs]:
        made: list[Inputs] = original(self, samples, step)
        return [replace(each, weights=each.weights / each.weights.sum()) for each in made]

    return inputs


@fault(Trainer, "_sum_of_weights", plan(data=2), plan(data=2, tensor=2))
def mean_of_the_means_of_replicas(original, mesh):
    """Losses are divided by the weights of each replica's own rows."""

    def own_sum(self: Trainer, inputs: list[Inputs]) -> Tensor:
        own = torch.stack([each.weights.sum(dtype=torch.float64) for each in inputs])
        return own.sum() * self.mesh.replicas.size

    return own_sum


@fault(trainer, "inputs_of", RING, plan(context=2, context_attention="ulysses"))
def weights_lost_where_sequences_are_split(original, mesh):
    """The weights are not cut with a sequence over context ranks, and every target counts 1."""

    def inputs_of(*arguments: Any, **more: Any) -> Inputs:
        made: Inputs = original(*arguments, **more)
        return replace(made, weights=torch.ones_like(made.weights))

    return inputs_of


@fault(trainer, "inputs_of", RING)
def weights_of_the_first_part_of_a_sequence(original, mesh):
    """Every context rank takes the weights of the positions that the sequence begins with."""

    def inputs_of(plan: Any, rows: Rows, *others: Any, **more: Any) -> Inputs:
        made: Inputs = original(plan, rows, *others, **more)
        here = torch.from_numpy(rows.weights.T[: made.tokens.shape[0]].copy())
        return replace(made, weights=here)

    return inputs_of


@fault(Trainer, "_sum_of_weights", plan(), plan(data=2))
def weights_summed_in_bf16(original, mesh):
    """The sum of the weights of a batch is kept in bf16, and so are all gradients wrong by one factor."""
    return lambda self, inputs: original(self, inputs).bfloat16().double()


@fault(Trainer, "_sum_of_weights", plan(), plan(data=2))
def weights_summed_in_fp32(original, mesh):
    """The sum of the weights of a batch is kept in fp32, which a large batch makes wrong."""
    return lambda self, inputs: original(self, inputs).float().double()
