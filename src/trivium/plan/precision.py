"""The dtypes of everything that a rank stores and sends."""

from typing import Annotated, Any, Literal

from trivium.config import Config, Short
from trivium.plan.float8 import Float8

Dtype = Literal["fp64", "fp32", "bf16", "fp16"]

BYTES: dict[str, int] = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}


class Precision(Config):
    """Weights and activations are in `weights`; what accumulates is never narrower than fp32.

    Gradients accumulate over micro-batches, and master weights and moments are kept, in fp32 (fp64 when the
    weights are) unless `gradients` says otherwise: for bf16, 18 bytes per parameter, or 16 if nothing accumulates
    (`gradients_of`). MT-NLG section 2 counts 20 (2 + 4 + 2 + 4 + 4 + 4), with a 2-byte gradient besides the accumulated
    one.
    """

    # dtype of weights and activations; bf16, fp16: the optimizer updates fp32 master weights
    weights: Annotated[Dtype, Short("dtype")] = "fp32"
    gradients: Dtype | None = None  # dtype in which gradients accumulate; None: fp32 (fp64 with fp64 weights)
    communication: Dtype | None = None  # dtype of the gradient reduction; None: that of the gradients
    float8: Float8 | None = None  # products of linear layers with 8-bit operands; None: in the dtype of the weights

    @property
    def masters(self) -> Dtype:
        """The dtype of master weights and moments."""
        return "fp64" if self.weights == "fp64" else "fp32"

    @property
    def has_master(self) -> bool:
        """Whether the optimizer keeps a wider copy of the weights."""
        return self.weights != self.masters

    @property
    def accumulation(self) -> Dtype:
        """The dtype in which gradients are summed over micro-batches."""
        return self.gradients or self.masters

    def gradients_of(self, *, once: bool) -> Dtype:
        """Return the dtype of gradients that wait for the update. once: nothing is added to them, because one process
        has one micro-batch in a step; they then keep the dtype of the backward without loss."""
        return self.weights if once and self.gradients is None else self.accumulation

    def reduction_of(self, *, once: bool) -> Dtype:
        """Return the dtype in which gradients are reduced."""
        return self.communication or self.gradients_of(once=once)


def has_one_gradient(ranks: Any, micro_batches: Any) -> Any:
    """Return whether a step computes one gradient of each parameter, to which nothing is added. The arguments are
    numbers, or arrays with one entry per plan."""
    return (ranks == 1) & (micro_batches == 1)
