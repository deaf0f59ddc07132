"""A backward pass with deferred weight gradients, which are computed immediately afterwards."""

import torch

from trivium.parallel.tensor.weight_gradients import WeightGradients


def backward(y: torch.Tensor, grad: torch.Tensor, later: WeightGradients) -> None:
    """Compute every gradient of y, including weight gradients that are separate actions."""
    with later.put_off("key"):
        y.backward(grad)
    later.finish("key", lambda parameter: None)
