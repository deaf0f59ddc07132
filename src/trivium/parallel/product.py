"""Products of matrices on a processor: of the two libraries that torch has there, by the faster.

torch hands fp32 products to MKL, which on processors of another maker than its own runs at about half their speed
(AMD EPYC with AVX-512, one core: 85 GFLOP/s against 185 of oneDNN, which torch has too, for its compiler).

Legend: T tokens, I inputs, O outputs.
"""

from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor

# Multiplications of a product below which calling oneDNN takes longer than it saves; with a backward in Python more.
LEAST, LEAST_WITH_BACKWARD = 1 << 20, 1 << 22


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., I], weight [O, I], bias [O] -> x W^T + bias [..., O], with its gradients where they are wanted."""
    if x.numel() * weight.shape[0] < LEAST:  # said here too, as small models are waiting for Python
        return F.linear(x, weight, bias)
    has_backward = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    if not _is_for_one_dnn(x, weight, LEAST_WITH_BACKWARD if has_backward else LEAST):
        return F.linear(x, weight, bias)
    return _Product.apply(x, weight, bias) if has_backward else _by_one_dnn(x, weight, bias)


def gradient_of_inputs(grad: Tensor, weight: Tensor) -> Tensor:
    """grad [..., O], weight [O, I] -> grad W [..., I]."""
    if _is_for_one_dnn(grad, weight.T, LEAST):
        return _by_one_dnn(grad.contiguous(), weight.T, None)
    return grad @ weight


def gradient_of_weight(grad: Tensor, x: Tensor) -> Tensor:
    """grad [T, O], x [T, I] -> grad^T x [O, I]."""
    if _is_for_one_dnn(grad.T, x.T, LEAST):
        return _by_one_dnn(grad.contiguous().T, x.contiguous().T, None)
    return grad.T @ x


def add_gradient_of_weight(into: Tensor, grad: Tensor, x: Tensor) -> None:
    """The same, added to `into` [O, I]."""
    if _is_for_one_dnn(grad.T, x.T, LEAST):
        into.add_(gradient_of_weight(grad, x))
    else:
        into.addmm_(grad.T, x)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _by_one_dnn(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (grad,), (x, weight) = grads, ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        rows = grad.flatten(0, -2)
        return (
            gradient_of_inputs(grad, weight) if of_x else None,
            gradient_of_weight(rows, x.flatten(0, -2)) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


def _by_one_dnn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found


def _is_for_one_dnn(x: Tensor, weight: Tensor, least: int) -> bool:
    return (
        x.numel() * weight.shape[0] >= least
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )
