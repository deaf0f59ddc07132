"""FLOPs of a layer, a stage and a step, counted as the papers count them.

A multiply-add is two FLOPs. Only matrix products count; norms, activations, softmax, biases, the embedding look-up and
the optimizer do not, as in SC'21 and MT-NLG. Attention counts the full square of positions, although half of it is
masked, and a window counts its full width for every query, although the first queries have fewer keys. Model FLOPs are
those of the mathematics. Hardware FLOPs are those that the plan executes, including recomputation and vocabulary
padding.
"""

from typing import Literal, NamedTuple

from trivium.cost.stages import layers_by_stage
from trivium.plan.layers.layer import Layer
from trivium.plan.layers.part import Place
from trivium.plan.model_shape import ModelShape
from trivium.plan.plan import Plan

Mode = Literal["none", "attention", "layer"]  # mode of plan.recompute


class Flops(NamedTuple):
    """FLOPs by phase. recompute: the forward operations that the backward repeats."""

    forward: float
    backward: float
    recompute: float

    @property
    def total(self) -> float:
        return self.forward + self.backward + self.recompute

    def plus(self, other: "Flops") -> "Flops":
        """Return the sum of both, by phase."""
        return Flops(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, factor: float) -> "Flops":
        """Return the FLOPs multiplied by `factor`."""
        return Flops(*(value * factor for value in self))


NOTHING = Flops(0.0, 0.0, 0.0)


def layer_flops(layer: Layer, sequence: int, tokens: int, mode: Mode = "none") -> Flops:
    """Return the FLOPs of one layer for `tokens` tokens in sequences of length `sequence`, over all tensor ranks. The
    backward has two products per product, and one where the weight is frozen by adapters."""
    at = Place(sequence=sequence)
    every = layer.products(at)
    products = tokens * sum(p.flops for p in every)
    of_weights = tokens * sum(p.flops for p in every if p.trained)
    scores = (half.scores(at) for half in layer.halves.values())
    # Scores and weighted values are two products of keys x head width for each token and head.
    core = sum(2 * 2.0 * tokens * s.reach * s.heads * s.width for s in scores if s is not None)
    forward = float(products + core)
    again = {"none": 0.0, "attention": float(core), "layer": forward}[mode]
    return Flops(forward, float(products + of_weights + 2 * core), again)


def head_flops(model: ModelShape, tokens: int, *, rows: int) -> Flops:
    """Return the FLOPs of the logits over `rows` rows of the vocabulary, which are never recomputed."""
    forward = 2.0 * tokens * model.hidden * rows
    return Flops(forward, forward if model.adapters else 2 * forward, 0.0)


def stage_flops(plan: Plan, stage: int, *, sequences: int) -> Flops:
    """Return the FLOPs that a stage executes for `sequences` sequences, over its tensor ranks."""
    tokens = plan.tokens(sequences)
    total = NOTHING
    for layer in layers_by_stage(plan)[stage]:
        mode = plan.recompute.mode_of(layer)
        total = total.plus(layer_flops(plan.model.each_layer[layer], plan.model.sequence, tokens, mode))
    if stage == plan.last_stage:
        rows = plan.model.padded_vocabulary(plan.layout.tensor)
        total = total.plus(head_flops(plan.model, tokens, rows=rows))
    return total


def model_flops(model: ModelShape, sequences: int) -> Flops:
    """Return the model FLOPs for `sequences` sequences, without recomputation and padding."""
    tokens = sequences * model.sequence
    total = head_flops(model, tokens, rows=model.vocabulary)
    for layer, count in model.counted_layers:
        total = total.plus(layer_flops(layer, model.sequence, tokens).times(count))
    return total


def hardware_flops(plan: Plan) -> Flops:
    """Return the FLOPs that the plan executes in a step with the full batch, over all ranks."""
    total = NOTHING
    for stage in range(plan.stages):
        total = total.plus(stage_flops(plan, stage, sequences=plan.batch.sequences))
    return total


def flops_per_token(model: ModelShape) -> float:
    """Return the model FLOPs to train on one token, forward and backward, for the trainer's utilisation."""
    return model_flops(model, 1).total / model.sequence
