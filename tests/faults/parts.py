"""Faults of the parts of Gemma and Granite: soft caps, scales, and norms with 1 + weight."""

from typing import Any

import torch

from faults.mutant import fault, plan
from trivium.certify.layouts import OFFSET, ROTARY
from trivium.kernels.scaled_attention import CappedAttention, ScaledAttention
from trivium.model.inputs import Inputs
from trivium.model.layers import attention_scaled
from trivium.model.layers.embedding_scaled import EmbeddingScaled
from trivium.model.layers.half import Half
from trivium.model.layers.head_capped import HeadCapped
from trivium.model.layers.head_scaled import HeadScaled
from trivium.model.layers.norms_offset import RmsNormOffset
from trivium.model.layers.wiring_scaled import SequentialScaled

Tensor = torch.Tensor

SCALED_SCORES = {"score_scale": 0.3}
CAPPED_SCORES = {"score_cap": 0.5}
SCALES = {"embedding_scale": 3.0, "residual_scale": 0.3}
GEMMA = {**ROTARY, **OFFSET, "qk_norm": "each_head"}


@fault(CappedAttention, "__init__", plan(model=CAPPED_SCORES), plan(context=2, model=CAPPED_SCORES))
def scores_capped_too_high(original, mesh):
    """Attention scores have twice their cap."""
    return lambda self, cap: original(self, 2 * cap)


@fault(ScaledAttention, "attend", plan(model=SCALED_SCORES))
def scale_of_scores_left_out(original, mesh):
    """Attention scores have the default scale, although the model has another."""
    return lambda self, q, k, v, sight: self.inner.attend(q, k, v, sight)


@fault(ScaledAttention, "tile_gradients", plan(context=2, model=SCALED_SCORES))
def gradient_of_queries_not_scaled(original, mesh):
    """In a ring the gradient of the queries lacks the scale of the scores."""

    def gradients(self: ScaledAttention, *arguments: Any, **named: Any) -> tuple[Tensor, Tensor, Tensor]:
        d_q, d_k, d_v = original(self, *arguments, **named)
        return d_q / self.factor, d_k, d_v

    return gradients


@fault(HeadCapped, "finished", plan(model={"logits_cap": 0.5}), plan(tensor=2, model={"logits_cap": 0.5}))
def cap_of_logits_left_out(original, mesh):
    """Logits are not capped."""
    return lambda self, scores: scores


@fault(HeadScaled, "normed", plan(model={"logits_scale": 0.25}))
def logits_scaled_twice(original, mesh):
    """Logits have the square of their scale."""
    return lambda self, x: original(self, x) * self.scale


@fault(EmbeddingScaled, "forward", plan(model=SCALES), plan(pipeline=2, model=SCALES))
def scale_of_embedding_left_out(original, mesh):
    """The embedding is not scaled."""
    return lambda self, inputs: original(self, inputs) / self.scale


@fault(SequentialScaled, "_leave", plan(model=SCALES), plan(tensor=2, model=SCALES))
def feed_forward_half_not_scaled(original, mesh):
    """The residual scale multiplies what attention adds and not what the feed-forward half adds."""

    def leave(self: SequentialScaled, half: Half, y: Tensor, inputs: Inputs) -> Tensor:
        added: Tensor = original(self, half, y, inputs)
        return added / self.scale if half is self.mlp else added

    return leave


@fault(RmsNormOffset, "forward", plan(model=GEMMA), plan(tensor=2, model=GEMMA))
def norm_multiplied_by_its_weight_twice(original, mesh):
    """The result of a norm is multiplied by the square of 1 + weight."""
    return lambda self, x: original(self, x) * (1 + self.weight)


@fault(attention_scaled, "one_and", plan(model=GEMMA))
def weights_of_norms_of_heads_added_twice(original, mesh):
    """The norms of queries and keys have 1 + 2 weight."""
    return lambda weight: original(weight) + weight
