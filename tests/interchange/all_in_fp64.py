"""transformers computes norms, scores and angles in fp32, whatever the dtype of a model."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch


@contextmanager
def all_in_fp64() -> Iterator[None]:
    """Let it compute everything in fp64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(torch, "float", torch.float64)
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        yield
