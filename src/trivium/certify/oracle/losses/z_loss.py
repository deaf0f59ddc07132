"""The z-loss (PaLM, section 5)."""

from trivium.certify.oracle.terms import Tensor
from trivium.plan.model_shape import ModelShape


def loss_of(model: ModelShape, logits: Tensor) -> Tensor | None:
    """Return coefficient * (ln of the sum of exponentials)^2 for each token [B, S] of logits [B, S, V]."""
    return model.z_loss * logits.exp().sum(-1).log().square() if model.z_loss else None
