"""Memory of the host that the device copies from and to while it works.

On a processor host and device are one: tensors are copied all the same, so that the same code runs and its bytes can be
counted.
"""

import weakref
from collections.abc import Iterator, Sequence
from math import prod
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any

import numpy as np
import torch

Tensor = torch.Tensor
# A point in the work of a device; None on a processor, where all work before is done.
Mark = torch.Event | torch.cuda.Event | None


def on_host(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor in the memory of the host of `device`, with no defined values. For a GPU it is pinned, in whole
    pages of its own: a page can be pinned once, and torch's allocator of pinned memory would round the size up to a
    power of two."""
    size_bytes = prod(shape) * dtype.itemsize
    memory = np.empty(size_bytes, np.uint8)
    if device.type == "cuda" and size_bytes:
        memory = np.frombuffer(mmap(-1, size_bytes, flags=MAP_PRIVATE | MAP_ANONYMOUS), np.uint8)
        runtime: Any = torch.cuda.cudart()
        address = memory.ctypes.data
        torch.cuda.check_error(runtime.cudaHostRegister(address, memory.nbytes, 0))
        weakref.finalize(memory, runtime.cudaHostUnregister, address)  # the tensor keeps `memory` as long as it lives
    return torch.from_numpy(memory).view(dtype).view(tuple(shape))


def mark(device: torch.device) -> Mark:
    """Return the end of the work that the device was given so far."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def wait(until: Mark) -> None:
    """Let the work that the device is given from now on begin only then."""
    if until is not None:
        torch.cuda.current_stream().wait_event(until)


class Lane:
    """Copies in one direction, one after the other, which run beside the work of the device. The caller holds tensors
    of the device until it has waited for the end of their copies."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None  # made with the first copy

    def copy(self, targets: Sequence[Tensor], sources: Sequence[Tensor], after: Mark) -> Mark:
        """Begin copies after a mark, and return that of their end."""
        if self._device.type != "cuda":
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source)
            return None
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        with torch.cuda.stream(self._stream):
            if after is not None:
                self._stream.wait_event(after)
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source, non_blocking=True)
            return self._stream.record_event()

    def finish(self) -> None:
        """Wait until all copies are made."""
        if self._stream is not None:
            self._stream.synchronize()


class Exchange:
    """Brings tensors of the host to the device, a few at a time, and what was made of them back."""

    def __init__(self, device: torch.device, places: int) -> None:
        """places: how many pieces are on the device at once."""
        self._device, self._places = device, places
        self._into, self._back = Lane(device), Lane(device)
        self.bytes_here = 0  # most bytes that were on the device at once

    def through(self, pieces: Sequence[Sequence[Tensor]]) -> Iterator[list[Tensor]]:
        """Yield copies of pieces on the device, in order. What the caller makes of one returns to the host when it asks
        for the next; all have returned when there is none left. A piece is several tensors."""
        sizes = [[x.nbytes for x in piece] for piece in pieces]
        room = max(map(sum, sizes), default=0)
        places = [torch.empty(room, dtype=torch.uint8, device=self._device) for _ in pieces[: self._places]]
        self.bytes_here = max(self.bytes_here, room * len(places))
        free: list[Mark] = [mark(self._device)] * len(places)  # when what was in a place has left it
        views = [self._cut(places[n % self._places], piece) for n, piece in enumerate(pieces)]
        arrived: list[Mark] = []
        for n, (here, piece) in enumerate(zip(views, pieces, strict=True)):
            for m in range(len(arrived), min(n + 2, len(pieces))):
                arrived.append(self._into.copy(views[m], pieces[m], free[m % self._places]))
            wait(arrived[n])
            yield here
            free[n % self._places] = self._back.copy(piece, here, mark(self._device))
        self._back.finish()

    def _cut(self, place: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
        """Return tensors like these, one after the other in a place."""
        found, start = [], 0
        for x in like:
            found.append(place[start : start + x.nbytes].view(x.dtype).view(x.shape))
            start += x.nbytes
        return found
