"""Rotary positions, with complex numbers. Legend: B sequences, S positions, G key-value heads, D columns rotated."""

import math

import torch

from trivium.certify.oracle.terms import Tensor
from trivium.plan.layers.form import LayerForm


def rotated(form: LayerForm, x: Tensor, numbers: Tensor) -> Tensor:
    """x [B, S, G, n, columns of a head] with its pairs of columns rotated by position, and longer where YaRN is."""
    D = x.shape[-1]
    speeds = [_slowed(form, D, d) for d in range(D // 2)]
    if form.rope_pairs == "halves":
        return rotate(x, numbers, speeds) * _length(form)
    apart = torch.cat([x[..., ::2], x[..., 1::2]], dim=-1)
    pairs = rotate(apart, numbers, speeds).chunk(2, dim=-1)
    return torch.stack(pairs, dim=-1).flatten(-2) * _length(form)


def rotate(x: Tensor, numbers: Tensor, speeds: list[float]) -> Tensor:
    """x [B, S, G, n, D] as complex numbers (d, d + D/2), turned by position x the speed of the pair."""
    angles = numbers.double()[..., None] * torch.tensor(speeds, dtype=torch.float64)
    a, b = x.chunk(2, dim=-1)
    turned = torch.complex(a, b) * torch.polar(torch.ones_like(angles), angles)[:, :, None, None]
    return torch.cat([turned.real, turned.imag], dim=-1)


def _slowed(form: LayerForm, D: int, d: int) -> float:
    """Radians for each position, of the pair of columns d: base^(-2d/D), and less where it is slowed."""
    speed, given = math.exp(-2 * d / D * math.log(form.rope_base)), form.rope_scaling
    if given is None:
        return speed
    slow = speed / given.factor
    if given.kind == "linear":
        return slow
    wave = 2 * math.pi / speed  # positions for one turn
    few, many, span = given.slow or 0, given.fast or 0, given.original or 0
    if given.kind == "llama3":  # by Llama 3.1's reference code, in wave lengths
        if wave < span / many:
            return speed
        if wave > span / few:
            return slow
        smooth = (span / wave - few) / (many - few)
        return (1 - smooth) * slow + smooth * speed
    # YaRN, arXiv 2309.00071: the bounds are pairs, found by solving span / wave = turns for d.
    low, high = (D * math.log(span / (n * 2 * math.pi)) / (2 * math.log(form.rope_base)) for n in (many, few))
    low, high = max(math.floor(low), 0), min(math.ceil(high), D - 1)
    ramp = min(max((d - low) / ((high - low) or 0.001), 0), 1)
    return (1 - ramp) * speed + ramp * slow


def _length(form: LayerForm) -> float:
    """Return the factor by which rotation lengthens queries and keys (YaRN)."""
    given = form.rope_scaling
    if given is None or given.kind != "yarn":
        return 1.0
    if given.attention is not None:
        return given.attention
    return 1.0 if given.factor <= 1 else 0.1 * math.log(given.factor) + 1


def enlarged(form: LayerForm) -> float:
    """Return the factor by which YaRN enlarges scores (DeepSeek-V2's code)."""
    given = form.rope_scaling
    if given is None or not given.mscale_all_dim or given.factor <= 1:
        return 1.0
    return (1 + 0.1 * given.mscale_all_dim * math.log(given.factor)) ** 2
