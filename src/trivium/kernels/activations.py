"""Activation functions in plain torch: GELU (arXiv 1606.08415) in both forms, and gated ones (arXiv 2002.05202)."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
Pullback = Callable[[Tensor], Tensor]


class Activation(Protocol):
    """An activation function x [..., R] -> [..., I]: I = R, or I = R / 2 where one half gates the other."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the value, with a graph. A backend may overwrite x, because only this function reads it."""

    def value(self, x: Tensor) -> Tensor:
        """Return the value without a graph."""

    def value_again(self, x: Tensor) -> tuple[Tensor, Pullback]:
        """Return the value, and the function from its gradient to that of x, in a backward; it may overwrite x."""


class Gelu:
    """GELU, of which torch knows the gradient. approximate: "tanh", or "none" for the exact form."""

    def __init__(self, approximate: str) -> None:
        self.approximate = approximate

    def __call__(self, x: Tensor) -> Tensor:
        """Return GELU of x."""
        return F.gelu(x, approximate=self.approximate)

    def value(self, x: Tensor) -> Tensor:
        """Return GELU of x; to the bit what `value_again` returns."""
        return self(x)

    def value_again(self, x: Tensor) -> tuple[Tensor, Pullback]:
        """Return GELU of x, and its pullback."""
        value = F.gelu(x, approximate=self.approximate)
        return value, lambda grad: torch.ops.aten.gelu_backward(grad, x, approximate=self.approximate)


class Shared:
    """An activation function of numbers that others read too, so that its backward does not overwrite them."""

    def __init__(self, function: "Activation") -> None:
        self.function = function

    def __call__(self, x: Tensor) -> Tensor:
        """Return the value."""
        return self.function(x)

    def value(self, x: Tensor) -> Tensor:
        """Return the value without a graph."""
        return self.function.value(x)

    def value_again(self, x: Tensor) -> tuple[Tensor, Pullback]:
        """Return the value, and its pullback."""
        return self.function.value_again(x.clone())


class Gated:
    """x [..., 2 E], the gate first -> function(gate) up [..., E].

    Its backward keeps x alone: function(gate) is cheaper to compute again than to keep, E numbers a position, and the
    gradients of both halves are written side by side. backward: the gradient of the function, given that of its value
    and the gate; with `grad_input` it is written there.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], backward: Callable[..., Tensor]) -> None:
        self.function, self.backward = function, backward

    def __call__(self, x: Tensor) -> Tensor:
        """Return the gated value."""
        if torch.compiler.is_compiling():  # the compiler makes the same choice itself
            gate, up = x.chunk(2, dim=-1)
            return self.function(gate) * up
        found: Tensor = _Gated.apply(x, self)
        return found

    def value(self, x: Tensor) -> Tensor:
        """Return the gated value."""
        gate, up = x.chunk(2, dim=-1)
        return self.function(gate).mul_(up)

    def value_again(self, x: Tensor) -> tuple[Tensor, Pullback]:
        """Return the gated value, and its pullback, which writes in place of x."""
        gate, up = x.chunk(2, dim=-1)
        gating = self.function(gate)

        def pullback(grad: Tensor) -> Tensor:
            d_gating = grad * up
            torch.mul(grad, gating, out=up)
            self.backward(d_gating, gate, grad_input=gate)
            return x

        return gating * up, pullback


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gated: Gated) -> Tensor:
        ctx.save_for_backward(x)
        ctx.gated = gated
        gate, up = x.chunk(2, dim=-1)
        return gated.function(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,), gated, (grad,) = ctx.saved_tensors, ctx.gated, grads
        gate, up = x.chunk(2, dim=-1)
        found = torch.empty_like(x)
        d_gate, d_up = found.chunk(2, dim=-1)
        torch.mul(grad, gated.function(gate), out=d_up)
        gated.backward(grad * up, gate, grad_input=d_gate)
        return found, None


def _silu_backward(grad: Tensor, x: Tensor, grad_input: Tensor | None = None) -> Tensor:
    if grad_input is None:
        found: Tensor = torch.ops.aten.silu_backward(grad, x)
    else:
        found = torch.ops.aten.silu_backward.grad_input(grad, x, grad_input=grad_input)
    return found


def _gelu_backward(grad: Tensor, x: Tensor, grad_input: Tensor | None = None) -> Tensor:
    if grad_input is None:
        found: Tensor = torch.ops.aten.gelu_backward(grad, x, approximate="tanh")
    else:
        found = torch.ops.aten.gelu_backward.grad_input(grad, x, approximate="tanh", grad_input=grad_input)
    return found


# By their names in settings: of a feed-forward half without a gate, and with one.
ACTIVATIONS: Mapping[str, Activation] = MappingProxyType({"gelu_tanh": Gelu("tanh"), "gelu": Gelu("none")})
GATED: Mapping[str, Activation] = MappingProxyType(
    {"silu": Gated(F.silu, _silu_backward), "gelu_tanh": Gated(partial(F.gelu, approximate="tanh"), _gelu_backward)}
)
