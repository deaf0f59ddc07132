"""Activations that wait for their backward in the memory of the host.

The storages that a layer keeps are copied to the host when its forward ends, each once. Those of a layer return when
the backward of the next one begins, so that they are there when its own begins. No more than two layers are on the
device at once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import saved_tensors_hooks

from trivium.kernels.host import Lane, Mark, mark, on_host, wait

Tensor = torch.Tensor
ALLOCATION_BYTES = 1 << 21  # host memory is allocated in multiples of it


class AtBackward(torch.autograd.Function):
    """The identity, whose backward calls `action` once, when the gradients of all tensors are there."""

    @staticmethod
    def forward(ctx: Any, action: Callable[[], None], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.action = action
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ctx.action()
        return (None, *grads)


class HostActivations:
    """The activations of a rank that are on its host. peak: most bytes there at once; peak_here: most bytes of them on
    the device at once, on their way."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.there, self.back = Lane(device), Lane(device)
        self.leaving: Kept | None = None
        self.forget_peaks()
        self._bytes = self._here = 0
        self._free: list[Tensor] = []  # buffers on the host to use again, because pinning takes long

    def take(self, size: int) -> Tensor:
        """Return a buffer of at least `size` bytes on the host."""
        large = [n for n, x in enumerate(self._free) if x.nbytes >= size]
        if large:
            return self._free.pop(min(large, key=lambda n: self._free[n].nbytes))
        if self._free:  # all are too small: one is replaced
            self.back.finish()
            self._free.pop()
        return on_host((-(-size // ALLOCATION_BYTES) * ALLOCATION_BYTES,), torch.uint8, self.device)

    def give(self, memory: Tensor) -> None:
        """Take back a buffer of `take`. Copies from it finish before anything is copied to it."""
        self._free.append(memory)

    def forget_peaks(self) -> None:
        """Begin to measure peaks."""
        self.peak = self.peak_here = 0

    def run(
        self, layer: Callable[[Tensor], Tensor], x: Tensor, weights: frozenset[int], before: "Kept | None"
    ) -> tuple[Tensor, "Kept"]:
        """Return layer(x), and what its backward needs, which is on the host. weights: identities of storages that stay
        where they are. before: the same of the previous layer, if that is on the host too."""
        if before is None:  # the first layer of a micro-batch: those of the previous one were sent
            self.settle()
        kept = Kept(self, weights, before)
        (entered,) = AtBackward.apply(kept.drop, x)
        with saved_tensors_hooks(kept.pack, kept.unpack):
            y = layer(entered)
        kept.send()
        (left,) = AtBackward.apply(kept.need, y)
        return left, kept

    def settle(self) -> None:
        """Let the device wait until the last copies to the host are done, and free their memory on the device."""
        if self.leaving is not None:
            self.leaving.sent()
            self.leaving = None

    def count(self, there: int, here: int) -> None:
        """Count bytes that are added on the host and on the device; negative: removed."""
        self._bytes, self._here = self._bytes + there, self._here + here
        self.peak, self.peak_here = max(self.peak, self._bytes), max(self.peak_here, self._here)


class _Place(NamedTuple):
    """A kept tensor: a view of a storage, by its number."""

    storage: int
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class Kept:
    """The tensors that the backward of one layer needs for one micro-batch."""

    def __init__(self, host: HostActivations, weights: frozenset[int], before: "Kept | None") -> None:
        self._host, self._weights, self._before = host, weights, before
        self._numbers: dict[int, int] = {}  # of storages, by identity
        self._here: list[Tensor] = []  # bytes of each storage, while they are on the device
        self._there: list[Tensor] = []
        self._moved: Mark = None
        self._memory = torch.empty(0, dtype=torch.uint8)
        self.bytes = 0

    def pack(self, tensor: Tensor) -> Tensor | _Place:
        """Keep a tensor's storage, which is copied to the host when the forward of the layer ends."""
        storage = tensor.untyped_storage()
        identity = int(storage._cdata)
        if identity in self._weights or tensor.device != self._host.device:
            return tensor
        if identity not in self._numbers:
            self._numbers[identity] = len(self._here)
            self._here.append(torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage))
        number = self._numbers[identity]
        return _Place(number, tensor.dtype, tensor.shape, tensor.stride(), int(tensor.storage_offset()))

    def unpack(self, packed: Tensor | _Place) -> Tensor:
        """Return a kept tensor."""
        if isinstance(packed, Tensor):
            return packed
        storage = self._here[packed.storage].untyped_storage()
        found = torch.empty(0, dtype=packed.dtype, device=self._host.device)
        return found.set_(storage, packed.offset, packed.size, packed.stride)

    def send(self) -> None:
        """Start copying all storages to the host."""
        host, self._numbers = self._host, {}
        self.bytes = sum(x.nbytes for x in self._here)
        self._memory = host.take(self.bytes)
        self._there = list(self._memory[: self.bytes].split([x.nbytes for x in self._here]))
        host.count(self.bytes, self.bytes)
        self._moved = host.there.copy(self._there, self._here, mark(host.device))
        host.settle()
        host.leaving = self

    def sent(self) -> None:
        """Free the storages on the device after `send`."""
        wait(self._moved)
        self._here = []
        self._host.count(0, -self.bytes)

    def fetch(self) -> None:
        """Start copying all storages back, unless that was done."""
        self._host.settle()
        if not self._here and self._there:
            self._here = [torch.empty_like(x, device=self._host.device) for x in self._there]
            self._host.count(0, self.bytes)
            self._moved = self._host.back.copy(self._here, self._there, mark(self._host.device))

    def need(self) -> None:
        """Called when the backward of this layer begins."""
        self.fetch()
        wait(self._moved)
        if self._before is not None:
            self._before.fetch()

    def drop(self) -> None:
        """Called when the backward of this layer has ended."""
        self._here, self._there, self._before = [], [], None
        self._host.give(self._memory)
        self._host.count(-self.bytes, -self.bytes)
