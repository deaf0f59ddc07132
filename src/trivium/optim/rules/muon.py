"""Muon (Jordan et al., 2024): momentum, made orthogonal by Newton-Schulz iterations, as torch.optim.Muon has it."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from trivium.optim.rule import Decay, Rule, State

if TYPE_CHECKING:
    from torch import Tensor

A, B, C = 3.4445, -4.7750, 2.0315  # coefficients of the iteration


class Muon(Rule):
    """Muon, a rule for matrices in layers; embedding, head, norms and biases need AdamW.

    adjust: "original" scales an update by sqrt(max(1, rows / columns)), "match_rms_adamw" by 0.2 sqrt(max(rows,
    columns)), with which the learning rate of AdamW can be kept (Moonlight, arXiv 2502.16982). iterate_in:
    bf16 is faster on GPUs, and amplifies the last bits in which two layouts differ.
    """

    momentum: Decay = 0.95
    nesterov: bool = True
    iterations: Annotated[int, Field(ge=1, le=99)] = 5
    iterate_in: Literal["bf16", "fp32"] = "bf16"
    epsilon: Annotated[float, Field(ge=1e-30)] = 1e-7
    adjust: Literal["original", "match_rms_adamw"] = "original"

    unit = "matrix"
    states = (State("momentum"),)

    def direction(self, gradient: "Tensor", states: Mapping[str, "Tensor"], step: int) -> "Tensor":
        """Return the momentum, or its form of Nesterov."""
        momentum = states["momentum"].lerp_(gradient, 1 - self.momentum)
        return gradient.lerp(momentum, self.momentum) if self.nesterov else momentum.clone()

    def transform(self, matrix: "Tensor") -> "Tensor":
        """Return the matrix with singular values near 1, scaled. A matrix of fp64 stays in fp64."""
        rows, columns = matrix.shape
        is_exact = matrix.element_size() == 8 or self.iterate_in == "fp32"
        x = matrix if is_exact else matrix.bfloat16()
        x = x.T if rows > columns else x
        x = x / x.norm().clamp(min=self.epsilon)
        for _ in range(self.iterations):
            gram = x @ x.T
            x = A * x + (B * gram + C * gram @ gram) @ x
        ratio = max(1.0, rows / columns) if self.adjust == "original" else 0.04 * max(rows, columns)
        found: Tensor = (x.T if rows > columns else x).to(matrix.dtype).mul_(math.sqrt(ratio))
        return found

    def flops(self, rows: int, columns: int) -> float:
        """Return those of the iterations: two products with the long side and one square each."""
        short, long = sorted((rows, columns))
        return self.iterations * (4.0 * short * short * long + 2.0 * short**3)


RULE = Muon
