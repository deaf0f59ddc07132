"""Norms, from their definitions."""

from collections.abc import Iterator

import torch

from trivium.certify.oracle.terms import Rule, Settings, Tensor, Twin, Weights


def rms(x: Tensor, epsilon: float) -> Tensor:
    """x over the root of its mean square."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)


def _layer_norm_rules(s: Settings, at: str) -> Iterator[tuple[str, Rule]]:
    yield f"{at}.weight", Rule((s.form.hidden,), mean=1.0)
    yield f"{at}.bias", Rule((s.form.hidden,))


def _layer_norm(weights: Weights, s: Settings, x: Tensor, at: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return rms(centred, s.form.norm_epsilon) * weights[f"{at}.weight"] + weights[f"{at}.bias"]


def _rms_norm_rules(s: Settings, at: str) -> Iterator[tuple[str, Rule]]:
    yield f"{at}.weight", Rule((s.form.hidden,), mean=1.0)


def _rms_norm(weights: Weights, s: Settings, x: Tensor, at: str) -> Tensor:
    return rms(x, s.form.norm_epsilon) * weights[f"{at}.weight"]


def _rms_norm_offset_rules(s: Settings, at: str) -> Iterator[tuple[str, Rule]]:
    yield f"{at}.weight", Rule((s.form.hidden,))


def _rms_norm_offset(weights: Weights, s: Settings, x: Tensor, at: str) -> Tensor:
    return rms(x, s.form.norm_epsilon) * (1 + weights[f"{at}.weight"])


LAYER_NORM = Twin(_layer_norm_rules, _layer_norm)
RMS_NORM = Twin(_rms_norm_rules, _rms_norm)
RMS_NORM_OFFSET = Twin(_rms_norm_offset_rules, _rms_norm_offset)
