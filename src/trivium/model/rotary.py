"""Rotary positions (RoPE, arXiv 2104.09864): queries and keys turned by an angle that grows with the position."""

import torch


def rotate(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, base: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [B, N, S, D], k [B, G, S, D], positions [B or 1, S]; pairs (d, d + D/2) turn, as in Llama checkpoints of
    Hugging Face."""
    D = q.shape[-1]
    frequencies = base ** (-torch.arange(0, D, 2, device=q.device, dtype=torch.float64) / D)
    angles = (positions.to(torch.float64).unsqueeze(-1) * frequencies).unsqueeze(1)  # B 1 S D/2
    cos, sin = angles.cos().to(q.dtype), angles.sin().to(q.dtype)
    return _turned(q, cos, sin), _turned(k, cos, sin)


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
