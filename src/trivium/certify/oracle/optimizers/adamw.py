"""AdamW (arXiv 1711.05101)."""

from trivium.certify.oracle.optimizer import Tensor, Update


def update(weight: Tensor, gradient: Tensor, state: dict[str, Tensor], by: Update) -> None:
    """Update a weight and its state in place."""
    beta1, beta2 = by.settings["beta1"], by.settings["beta2"]
    m = state.setdefault("m", weight.new_zeros(weight.shape))
    v = state.setdefault("v", weight.new_zeros(weight.shape))
    weight.mul_(1 - by.lr * by.decay)
    m.mul_(beta1).add_(gradient, alpha=1 - beta1)
    v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    corrected = (v / (1 - beta2**by.step)).sqrt() + by.settings["epsilon"]
    weight.sub_(by.lr * m / (1 - beta1**by.step) / corrected)
