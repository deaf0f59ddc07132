"""Products of linear layers whose operands are rounded to 8 bits, from their definition, in fp64.

An operand is rounded to fp32, so that sums which differ in their last bits stay on the same side of a midpoint, and
then to the nearest of the numbers n 2^e / s that its format has, half to even. It is multiplied as the number that it
is then. Of one process, the tokens that share scales are those of a micro-batch, whose ranks agree on their largest
values; of an expert they are those that its rank receives at once.

Legend: B sequences, S positions, T tokens, I inputs, O outputs, R rows, K the dimension that a product sums over.
"""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from trivium.certify.oracle.terms import Tensor, apply
from trivium.plan.float8 import Float8

Rounding = Callable[[Tensor, str], Tensor]  # (operand [R, K], its name) -> what it is rounded to


class _Format(NamedTuple):
    """significant: bits of a mantissa with its leading one. lowest: the exponent of the smallest normal number."""

    significant: int
    lowest: int
    largest: float


_FORMATS: Mapping[str, _Format] = MappingProxyType({"e4m3": _Format(4, -6, 448.0), "e5m2": _Format(3, -14, 57344.0)})


def nearest(x: Tensor, of: _Format) -> Tensor:
    """Return the numbers of the format that are nearest to x, half to even; beyond its range its largest ones."""
    x = x.float().to(x.dtype)
    _, exponent = torch.frexp(x)  # |x| is at least 2^(exponent - 1)
    step = torch.ldexp(torch.ones_like(x), (exponent - 1).clamp(min=of.lowest) - (of.significant - 1))
    return (torch.round(x / step) * step).clamp(-of.largest, of.largest)


class Amaxes:
    """The largest absolute values of operands in the steps so far, by weight and operand, for delayed scales."""

    def __init__(self) -> None:
        self.steps: list[dict[tuple[str, str], float]] = []
        self._now: dict[tuple[str, str], float] = {}
        self.collects = True

    def of(self, weight: str, operand: str, x: Tensor, history: int) -> float | None:
        """Return the largest value of the last steps; None in the first step."""
        here = float(x.abs().max()) if x.numel() else 0.0
        if self.collects:
            self._now[weight, operand] = max(here, self._now.get((weight, operand), 0.0))
        if not self.steps:
            return None
        return max(step.get((weight, operand), 0.0) for step in self.steps[-history:])

    def end_step(self) -> None:
        """Remember a step."""
        self.steps.append(self._now)
        self._now = {}


class Scaled(NamedTuple):
    """The linear layers that multiply rounded operands. layers: those of the model. micro: sequences per scale.
    sets: the sequences whose tokens an expert computes at once, each a list of micro-batches."""

    settings: Float8
    layers: int
    micro: int
    sets: Sequence[Sequence[Sequence[int]]]
    amaxes: Amaxes

    def has(self, weight: str) -> bool:
        """Whether products with a weight have rounded operands."""
        if not weight.startswith("layers.") or weight.endswith(("router.weight", "shared_gate.weight")):
            return False
        number, name = int(weight.split(".")[1]), weight.removesuffix(".weight")
        for entry in self.settings.keep:
            if {"first": number == 0, "last": number == self.layers - 1}.get(entry, fnmatchcase(name, entry)):
                return False
        return True

    def product(self, weight: str, w: Tensor, x: Tensor) -> Tensor:
        """x [B, S, I] and w [..., O, I] -> x W^T [B, S, ..., O]."""
        if not self.has(weight):
            return apply(w, x)
        parts = [self._of_tokens(weight, w, part) for part in torch.split(x, self.micro)]
        return torch.cat(parts)

    def _of_tokens(self, weight: str, w: Tensor, x: Tensor) -> Tensor:
        """The same of one micro-batch, whose tokens are counted position by position."""
        B, S, _ = x.shape
        y = self.of_rows(weight, w, x.transpose(0, 1).flatten(0, 1))
        return y.view(S, B, *y.shape[1:]).transpose(0, 1)

    def of_rows(self, weight: str, w: Tensor, x: Tensor) -> Tensor:
        """x [T, I], which share scales, and w [..., O, I] -> [T, ..., O]."""
        if not self.has(weight):
            return apply(w, x)

        def rounding(x: Tensor, operand: str) -> Tensor:
            return self._rounded(x, operand, weight)

        matrix = w.flatten(0, -2) if w.dim() > 2 else w
        function: Any = _Product.apply
        found: Tensor = function(x, matrix, rounding, self.settings.weight_gradients)
        return found.view(len(x), *w.shape[:-1])

    def _rounded(self, x: Tensor, operand: str, weight: str) -> Tensor:
        s = self.settings
        of = _FORMATS[s.gradients if operand == "gradients" else "e4m3"]
        rows, columns = len(x), x.shape[1]  # of a part with one scale
        if s.recipe == "row":
            rows = 1
        elif s.recipe == "block":
            rows, columns = s.block if operand == "weights" else 1, s.block
        found = torch.zeros_like(x)
        for top in range(0, len(x), max(rows, 1)):
            for left in range(0, x.shape[1], max(columns, 1)):
                place = slice(top, top + rows), slice(left, left + columns)
                found[place] = self._of_part(x[place], of, operand, weight)
        return found

    def _of_part(self, x: Tensor, of: _Format, operand: str, weight: str) -> Tensor:
        s, amax = self.settings, float(x.abs().max())
        if s.recipe == "delayed":
            past = self.amaxes.of(weight, operand, x, s.history)
            amax = amax if past is None else past or of.largest * 2.0**-s.margin
        scale = torch.tensor(of.largest * 2.0**-s.margin / max(amax, 1e-12), dtype=x.dtype)
        if s.power_of_two:
            scale = 2.0 ** torch.floor(torch.log2(scale.float().to(x.dtype)))
        return nearest(x * scale, of) / scale


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, rounded: Rounding, of_weights: bool) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.rounded, ctx.of_weights = rounded, of_weights
        return rounded(x, "activations") @ rounded(w, "weights").T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (g,), (x, w), rounded = grads, ctx.saved_tensors, ctx.rounded
        d_x = rounded(g, "gradients") @ rounded(w.T, "weights").T
        d_w = rounded(g.T, "gradients") @ rounded(x.T, "activations").T if ctx.of_weights else g.T @ x
        return d_x, d_w, None, None


def expert_sets(sequences: int, micro: int, data: int, expert: int) -> list[list[list[int]]]:
    """Return the micro-batches whose tokens reach an expert together: the n-th ones of neighbouring data ranks."""
    each = sequences // data
    together = max(1, min(expert, data))
    return [
        [[rank * each + start + n for n in range(micro)] for rank in range(first, first + together)]
        for first in range(0, data, together)
        for start in range(0, each, micro)
    ]
