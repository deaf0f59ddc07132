"""Numbers that cross between a processor and its accelerator while both go on.

From or to memory that may be paged out, a copy would wait until the accelerator is through with all it was given.
"""

from collections.abc import Callable, Sequence

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
    here = _coming(x)
    copied = torch.cuda.Event()
    copied.record()

    def told() -> list[float]:
        copied.synchronize()
        return here.tolist()

    return told


def fetched(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies in the processor's memory. An accelerator's are all on their way before they are waited for, together, to
    pinned memory, which torch keeps when they are gone and gives to the next ones."""
    here = [_coming(x) for x in tensors]
    if any(x.device.type == "cuda" for x in tensors):
        torch.cuda.synchronize()
    return here


def _coming(x: Tensor) -> Tensor:
    here = torch.empty_like(x, device="cpu", pin_memory=x.device.type == "cuda")
    return here.copy_(x, non_blocking=True)
