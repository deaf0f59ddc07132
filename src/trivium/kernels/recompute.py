"""Run a block's forward again in backward instead of keeping its activations."""

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint


def recomputed(function: Callable[..., torch.Tensor], *arguments: object) -> torch.Tensor:
    """The same value and gradients as `function(*arguments)`, keeping only the arguments.

    Randomness is keyed by names, never drawn from a state, so the second run repeats it by itself.
    """
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
