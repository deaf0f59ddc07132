"""A backward whose weight gradients may be put off, and then are computed at once."""

import torch

from trivium.parallel.tensor.weight_gradients import WeightGradients


def backward(y: torch.Tensor, grad: torch.Tensor, later: WeightGradients) -> None:
    """Every gradient of y, also of weights whose gradient is an action of its own."""
    with later.put_off("key"):
        y.backward(grad)
    later.finish("key", lambda parameter: None)
