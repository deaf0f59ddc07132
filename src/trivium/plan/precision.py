"""The dtype of everything a rank holds and sends."""

from typing import Literal

from trivium.config import Config

Dtype = Literal["fp64", "fp32", "bf16", "fp16"]

BYTES: dict[str, int] = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}


class Precision(Config):
    """Weights and activations are in `weights`; what accumulates is never narrower than fp32.

    Gradients accumulate over micro-batches, and master weights and moments are kept, in fp32 (fp64 when the
    weights are): 20 bytes per parameter for bf16, as in MT-NLG section 2 (2 + 4 + 2 + 4 + 4 + 4).
    """

    weights: Dtype = "fp32"
    communication: Dtype | None = None  # of the gradient reduction; None: as the gradients accumulate

    @property
    def accumulation(self) -> Dtype:
        """Of accumulated gradients, master weights and moments."""
        return "fp64" if self.weights == "fp64" else "fp32"

    @property
    def has_master(self) -> bool:
        """Whether the optimizer keeps a wider copy of the weights."""
        return self.weights != self.accumulation

    @property
    def reduction(self) -> Dtype:
        """Of gradients on the wire."""
        return self.communication or self.accumulation
