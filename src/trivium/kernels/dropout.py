"""Dropout whose mask is a function of names, so that every layout, and a second forward, draws the same."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from trivium.kernels.activations import Activation, Pullback
from trivium.seeds import seed_for


@dataclass(frozen=True)
class DropoutKey:
    """The run's seed, the step, the number of each sample of the micro-batch, and a sample's positions."""

    seed: int
    step: int
    samples: tuple[int, ...]
    sequence: int


class Columns(NamedTuple):
    """The columns [first, first + those that are here) of `whole`, which tensor ranks divide."""

    first: int
    whole: int


def keyed_dropout(
    x: torch.Tensor, rate: float, *, site: str, key: DropoutKey, positions: torch.Tensor, columns: Columns | None = None
) -> torch.Tensor:
    """Zero elements with probability `rate` and scale the rest; x [S here, B, H here], positions [S here].

    The mask of a sample covers all its positions and columns, whoever holds them; this rank takes its own. columns: by
    default all of them are here.
    """
    first, whole = columns or (0, x.shape[-1])
    here = slice(first, first + x.shape[-1])
    masks = [_mask(x, whole, rate, seed_for(key.seed, "dropout", site, key.step, n), key.sequence) for n in key.samples]
    return x * torch.stack([m[positions, here] for m in masks], dim=1).to(x.dtype) / (1 - rate)


class Dropped:
    """An activation function, or none, followed by a dropout whose mask the backward draws again."""

    def __init__(self, drop: Callable[[torch.Tensor], torch.Tensor], function: Activation | None = None) -> None:
        self.drop, self.function = drop, function

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the value, with a graph."""
        return self.drop(x if self.function is None else self.function(x))

    def value(self, x: torch.Tensor) -> torch.Tensor:
        """Return the value without a graph."""
        return self.drop(x if self.function is None else self.function.value(x))

    def value_again(self, x: torch.Tensor) -> tuple[torch.Tensor, Pullback]:
        """Return the value, and its pullback."""
        if self.function is None:
            return self.drop(x), self.drop
        value, pullback = self.function.value_again(x)
        return self.drop(value), lambda grad: pullback(self.drop(grad))


def _mask(x: torch.Tensor, columns: int, rate: float, seed: int, sequence: int) -> torch.Tensor:
    generator = torch.Generator(device=x.device).manual_seed(seed)
    return torch.rand((sequence, columns), generator=generator, device=x.device) >= rate
