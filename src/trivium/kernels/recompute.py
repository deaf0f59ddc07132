"""Run a block's forward again in backward instead of keeping its activations."""

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint


def recomputed(function: Callable[..., torch.Tensor], *arguments: object) -> torch.Tensor:
    """Return `function(*arguments)` with its gradients, keeping only the arguments and computing the function again in
    the backward. Random numbers are functions of names and have no state, so that the second run repeats them."""
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
