"""Dropout whose mask is a function of names, so that every layout, and a second forward, draws the same."""

from dataclasses import dataclass

import torch

from trivium.seeds import seed_for


@dataclass(frozen=True)
class DropoutKey:
    """The run's seed, the step, the number of each sample of the micro-batch, and a sample's positions."""

    seed: int
    step: int
    samples: tuple[int, ...]
    sequence: int


def keyed_dropout(x: torch.Tensor, rate: float, *, site: str, key: DropoutKey, positions: torch.Tensor) -> torch.Tensor:
    """Zero elements with probability `rate` and scale the rest; x [S here, B, H], positions [S here].

    The mask of a sample covers all its positions, whoever holds them; this rank takes its own.
    """
    masks = [_mask(x, rate, seed_for(key.seed, "dropout", site, key.step, n), key.sequence) for n in key.samples]
    return x * torch.stack([m[positions] for m in masks], dim=1).to(x.dtype) / (1 - rate)


def _mask(x: torch.Tensor, rate: float, seed: int, sequence: int) -> torch.Tensor:
    generator = torch.Generator(device=x.device).manual_seed(seed)
    return torch.rand((sequence, x.shape[-1]), generator=generator, device=x.device) >= rate
