"""Numbers that cross between a processor and its accelerator while both go on.

From or to memory that may be paged out, a copy would wait until the accelerator is through with all it was given.
"""

from collections.abc import Callable

import numpy as np
import torch

Tensor = torch.Tensor


def sent(x: np.ndarray, device: torch.device, dtype: torch.dtype) -> Tensor:
    """On its way to a device, which goes on with what it was given before."""
    here = torch.from_numpy(np.ascontiguousarray(x)).to(dtype)
    return here.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else here.to(device)


def read_later(x: Tensor) -> Callable[[], list[float]]:
    """The numbers of a tensor when they are asked for: an accelerator goes on meanwhile."""
    if x.device.type != "cuda":
        return x.tolist
    here = torch.empty_like(x, device="cpu", pin_memory=True).copy_(x, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()

    def told() -> list[float]:
        copied.synchronize()
        return here.tolist()

    return told
