"""Muon (kellerjordan.github.io/posts/muon), of each matrix of a parameter by itself."""

import math

import torch

from trivium.certify.oracle.optimizer import Tensor, Update


def update(weight: Tensor, gradient: Tensor, state: dict[str, Tensor], by: Update) -> None:
    """Update a weight and its state in place."""
    s = by.settings
    mu = s.get("momentum", 0.95)
    m = state.setdefault("m", weight.new_zeros(weight.shape))
    m.copy_(mu * m + (1 - mu) * gradient)
    direction = mu * m + (1 - mu) * gradient if s.get("nesterov", True) else m
    weight.mul_(1 - by.lr * by.decay)
    for rows in _matrices(weight, by):
        d = direction.reshape(-1, weight.shape[-1])[rows]
        height, width = d.shape
        x = d / max(float(torch.linalg.matrix_norm(d)), s.get("epsilon", 1e-7))
        for _ in range(s.get("iterations", 5)):
            gram = x @ x.T  # Gram matrix of the rows, also where there are more rows than columns
            x = 3.4445 * x - 4.7750 * gram @ x + 2.0315 * gram @ gram @ x
        factor = math.sqrt(max(1, height / width))
        if s.get("adjust", "original") == "match_rms_adamw":
            factor = 0.2 * math.sqrt(max(height, width))
        weight.view(-1, width)[rows] -= by.lr * factor * x


def _matrices(weight: Tensor, by: Update) -> list[Tensor]:
    """The rows of each matrix: queries, keys and values are three, gate and up are two, also of every expert."""
    rows = torch.arange(weight[..., 0].numel())
    if by.name.endswith(("attention.qkv.weight", "attention.qkv.adapter.b")):
        of_group = rows.view(by.model.kv_heads or by.model.heads, -1, by.head_width)
        return [part.flatten() for part in (of_group[:, :-2], of_group[:, -2], of_group[:, -1])]
    return list(rows.view(math.prod(weight.shape[:-2]), -1))
