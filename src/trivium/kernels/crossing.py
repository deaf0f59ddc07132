"""Copies between host and GPU that overlap with the work of both.

They use pinned memory, because a copy from or to pageable memory would wait until the GPU has finished all earlier
work.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

Tensor = torch.Tensor
PIECE_BYTES = 64 << 20  # size of the pinned memory through which tensors are copied
PIECES_AHEAD = 2  # in flight besides the newest


def sent(x: np.ndarray, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Start the copy of an array to a device and return the tensor; the device continues with earlier work
    meanwhile."""
    here = torch.from_numpy(np.ascontiguousarray(x)).to(dtype)
    return here.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else here.to(device)


def read_later(x: Tensor) -> Callable[[], list[float]]:
    """Return a function that returns the numbers of a tensor. The GPU continues until it is called."""
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
    """Copies in the processor's memory. An accelerator's come through pieces of pinned memory, of which a few are under
    way at once: pinned memory is never given back, so all of a model's would stay taken."""
    here = [torch.empty_like(x, device="cpu") for x in tensors]
    under_way: deque[_UnderWay] = deque()
    for target, x in zip(here, tensors, strict=True):
        if x.device.type == "cpu":
            target.copy_(x)
            continue
        for place, part in _pieces(target, x):
            coming = _coming(part)
            copied = torch.cuda.Event()
            copied.record()
            under_way.append(_UnderWay(place, coming, copied))
            if len(under_way) > PIECES_AHEAD:
                under_way.popleft().arrive()
    for each in under_way:
        each.arrive()
    return here


class _UnderWay(NamedTuple):
    place: Tensor
    coming: Tensor
    copied: torch.cuda.Event

    def arrive(self) -> None:
        self.copied.synchronize()
        self.place.copy_(self.coming)


def _pieces(target: Tensor, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    if x.nbytes <= PIECE_BYTES:
        return iter([(target, x)])
    size = PIECE_BYTES // x.element_size()
    return zip(target.view(-1).split(size), x.reshape(-1).split(size), strict=True)


def _coming(x: Tensor) -> Tensor:
    here = torch.empty_like(x, device="cpu", pin_memory=x.device.type == "cuda")
    return here.copy_(x, non_blocking=True)
