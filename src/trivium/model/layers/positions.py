"""Rotary positions (RoPE, arXiv 2104.09864): queries and keys turned by an angle that grows with the position.

Legend: B sequences, S positions, N heads, G key-value heads, D columns of a head that are rotated.
"""

import math
from typing import Any, NamedTuple

import torch

from trivium.plan.layers.positions import Rotary
from trivium.plan.rope_scaling import RopeScaling


class Pairs(NamedTuple):
    """The columns that are rotated together: neighbours, or d and d + D/2, as in Hugging Face's Llama checkpoints.
    last: whether the last columns of a wider head are rotated, not the first."""

    neighbours: bool
    last: bool

    def of(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the first and the second column of each pair of x [..., D], as views."""
        return (x[..., ::2], x[..., 1::2]) if self.neighbours else x.chunk(2, dim=-1)


class Rotation:
    """Rotates queries and keys as a description says."""

    def __init__(self, part: Rotary) -> None:
        self.D, self.base, self.scaling = part.columns, part.base, part.scaling
        self.pairs = Pairs(part.neighbours, part.last)

    def __call__(self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """q [B, N, S, D], k [B, G, S, D], positions [B or 1, S] -> both rotated."""
        waves = self._waves(positions, q)
        return _Turn.apply(q, *waves, self.pairs), _Turn.apply(k, *waves, self.pairs)

    def alone(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x [B, N, S, D], positions [B or 1, S] -> x rotated."""
        found: torch.Tensor = _Turn.apply(x, *self._waves(positions, x), self.pairs)
        return found

    def _waves(self, positions: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines [B or 1, 1, S, D/2]."""
        angles = (positions.to(torch.float64).unsqueeze(-1) * self.angles(like.device)).unsqueeze(1)
        cos, sin = angles.cos(), angles.sin()
        if self.magnitude != 1:
            cos, sin = cos * self.magnitude, sin * self.magnitude
        return cos.to(like.dtype), sin.to(like.dtype)

    def angles(self, device: torch.device) -> torch.Tensor:
        """Return the angle of each pair of columns at position 1, [D/2] in fp64."""
        plain = self.base ** (-torch.arange(0, self.D, 2, device=device, dtype=torch.float64) / self.D)
        if self.scaling is None:
            return plain
        slowed = self._slowed(plain, self.scaling)
        return plain * (1 - slowed) + plain / self.scaling.factor * slowed

    @property
    def magnitude(self) -> float:
        """The factor of sines and cosines."""
        given = self.scaling
        if given is None or given.kind != "yarn":
            return 1.0
        return given.attention or 0.1 * math.log(max(given.factor, 1.0)) + 1.0

    def _slowed(self, plain: torch.Tensor, given: RopeScaling) -> torch.Tensor:
        """Return to which extent each pair is scaled by the factor, from 0 to 1, [D/2]."""
        if given.kind == "linear":
            return torch.ones_like(plain)
        assert given.original and given.slow and given.fast, f"{given.kind} counts turns: {given}"
        if given.kind == "llama3":
            turns = given.original / (2 * math.pi) * plain
            return ((given.fast - turns) / (given.fast - given.slow)).clamp(0, 1)
        first, last = (
            self.D / 2 * math.log(given.original / (turns * 2 * math.pi), self.base)
            for turns in (given.fast, given.slow)
        )  # the pairs that turn so often, as if there were one at every fraction
        begin, end = max(math.floor(first), 0), min(math.ceil(last), self.D - 1)
        pairs = torch.arange(len(plain), device=plain.device, dtype=plain.dtype)
        span = end - begin or 0.001  # no division by zero, as in YaRN's code
        return ((pairs - begin) / span).clamp(0, 1)


class _Turn(torch.autograd.Function):
    """Rotation of pairs of columns, written into one tensor with the memory layout of the input. The backward pass is
    the inverse rotation. With autograd, forward and backward would each concatenate two halves made of four products.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, pairs: Pairs) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.pairs = pairs
        return _turned(x, cos, sin, pairs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(grads[0], cos, -sin, ctx.pairs), None, None, None


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, pairs: Pairs) -> torch.Tensor:
    """Return x with the columns that have an angle rotated and the others unchanged, in the memory layout of x."""
    columns = 2 * cos.shape[-1]
    if columns < x.shape[-1]:
        found, some = x.clone(), slice(-columns, None) if pairs.last else slice(columns)
        found[..., some] = _turned(x[..., some], cos, sin, pairs)
        return found
    turned = x * (cos.repeat_interleave(2, -1) if pairs.neighbours else torch.cat([cos, cos], dim=-1))
    (a, b), (of_a, of_b) = pairs.of(x), pairs.of(turned)
    of_a.addcmul_(b, sin, value=-1)
    of_b.addcmul_(a, sin)
    return turned
