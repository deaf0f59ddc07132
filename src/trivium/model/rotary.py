"""Rotary positions (RoPE, arXiv 2104.09864): queries and keys turned by an angle that grows with the position."""

import torch


def rotate(x: torch.Tensor, base: float, first: int = 0) -> torch.Tensor:
    """x [B, N, S, D]; pairs (d, d + D/2) turn, as in Llama checkpoints of Hugging Face."""
    S, D = x.shape[-2:]
    frequencies = base ** (-torch.arange(0, D, 2, device=x.device, dtype=torch.float64) / D)
    angles = torch.outer(torch.arange(first, first + S, device=x.device, dtype=torch.float64), frequencies)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
