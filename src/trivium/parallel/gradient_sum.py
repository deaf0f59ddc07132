"""A flat sum of parts, which takes no memory while nothing has been added to it."""

import torch

Tensor = torch.Tensor


class GradientSum:
    """`flat` [size]; the first part at a place is stored there, later ones are added to it.

    So the memory of gradients is free for activations until the first backward, and need not be set to zero.
    """

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.flat = torch.empty(size, dtype=dtype, device=device)
        self._stops: dict[int, int] = {}  # of the places that hold something, by their starts
        self.clear()

    def has_begun(self, start: int) -> bool:
        """Whether something was added at the place that begins there."""
        return start in self._stops

    def is_at(self, start: int, part: Tensor) -> bool:
        """Whether `part` is itself the place that begins there."""
        here = self.flat.data_ptr() + start * self.flat.element_size()
        return self.has_begun(start) and part.data_ptr() == here

    def add(self, start: int, part: Tensor) -> Tensor:
        """Add `part` at the place that begins at `start`; returns that place, in the part's shape."""
        storage = self.flat.untyped_storage()
        if not self._stops:
            storage.resize_(self.flat.numel() * self.flat.element_size())
        stop = start + part.numel()
        place = self.flat[start:stop].view(part.shape)
        if start in self._stops:
            place.add_(part)
        else:
            place.copy_(part)
            self._stops[start] = stop
        return place

    def whole(self) -> Tensor:
        """The sum, zero where nothing was added."""
        if not self._stops:
            self.flat.untyped_storage().resize_(self.flat.numel() * self.flat.element_size())
        end = 0
        for start in sorted((*self._stops, self.flat.numel())):
            self.flat[end:start].zero_()
            end = self._stops.get(start, start)
        return self.flat

    def clear(self) -> None:
        """Forget every part, and give the memory back."""
        self._stops.clear()
        self.flat.untyped_storage().resize_(0)
