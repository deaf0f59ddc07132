"""Lion (arXiv 2302.06675, algorithm 2)."""

from trivium.certify.oracle.optimizer import Tensor, Update


def update(weight: Tensor, gradient: Tensor, state: dict[str, Tensor], by: Update) -> None:
    """Update a weight and its state in place."""
    beta1, beta2 = by.settings.get("beta1", 0.9), by.settings.get("beta2", 0.99)
    m = state.setdefault("m", weight.new_zeros(weight.shape))
    c = beta1 * m + (1 - beta1) * gradient
    weight.sub_(by.lr * (c.sign() + by.decay * weight))
    m.copy_(beta2 * m + (1 - beta2) * gradient)
