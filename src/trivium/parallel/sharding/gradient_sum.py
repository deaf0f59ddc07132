"""A flat sum of parts, which takes no memory while nothing has been added to it.

So the memory of gradients is free for activations until the first backward, and need not be set to zero.
"""

from collections.abc import Mapping

import torch

from trivium.kernels.arithmetic import Arithmetic

Tensor = torch.Tensor


class GradientSum:
    """`flat` [size]; the first part at a place is stored there, later ones are added to it. A first part that is as
    large as the whole becomes it, without a copy: nobody else may change it any more. Parts may be sparse."""

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self._empty = torch.empty(size, dtype=dtype, device=device)
        self._empty.untyped_storage().resize_(0)
        self.flat = self._empty
        self._stops: dict[int, int] = {}  # ends of the filled ranges, by their starts

    def has_begun(self, start: int) -> bool:
        """Whether something was added at the place that begins there."""
        return start in self._stops

    def is_at(self, start: int, part: Tensor) -> bool:
        """Whether `part` is itself the place that begins there."""
        here = self.flat.data_ptr() + start * self.flat.element_size()
        return self.has_begun(start) and not part.is_sparse and part.data_ptr() == here

    def add(self, start: int, part: Tensor) -> Tensor:
        """Add `part` at the place that begins at `start`; returns that place, in the part's shape."""
        stop = start + part.numel()
        if not self._stops and self._is_whole(part):
            self.flat, self._stops[start] = part.view(-1), stop
            return part
        self._open()
        place = self.flat[start:stop].view(part.shape)
        if start in self._stops:
            place.add_(part)
        elif part.is_sparse:
            place.zero_().add_(part)
        else:
            place.copy_(part)
        self._stops[start] = stop
        return place

    def store(self, parts: Mapping[int, Tensor]) -> list[Tensor]:
        """The first parts at the places that begin at these starts, in one launch; returns the places."""
        self._open()
        places = [self.flat[s : s + part.numel()].view(part.shape) for s, part in parts.items()]
        torch._foreach_copy_(places, list(parts.values()))
        self._stops |= {s: s + part.numel() for s, part in parts.items()}
        return places

    def add_product(self, start: int, stop: int, grad: Tensor, x: Tensor, arithmetic: Arithmetic) -> None:
        """Add grad^T x at the place from `start` to `stop`; grad [T, O], x [T, I]. An arithmetic of several matrices
        adds as many products."""
        is_whole = not self._stops and stop - start == len(self._empty)
        if is_whole and not arithmetic.widens(grad, self._empty.dtype):
            self.add(start, arithmetic.gradient_of_weight(grad, x))
            return
        self._open()
        place = self.flat[start:stop].view(-1, x.shape[1])
        arithmetic.add_gradient_of_weight(place, grad, x, first=start not in self._stops)
        self._stops[start] = stop

    def whole(self) -> Tensor:
        """The sum, zero where nothing was added."""
        self._open()
        end = 0
        for start in sorted((*self._stops, self.flat.numel())):
            if start > end:
                self.flat[end:start].zero_()
            end = self._stops.get(start, start)
        return self.flat

    def clear(self) -> None:
        """Forget every part, and give the memory back."""
        self._stops.clear()
        self.flat = self._empty

    def _open(self) -> None:
        if self.flat is self._empty:
            self.flat = torch.empty_like(self._empty)

    def _is_whole(self, part: Tensor) -> bool:
        """Whether `part` could be `flat`, and has its memory for itself."""
        like = self._empty
        return (
            part.numel() == like.numel()
            and part.dtype == like.dtype
            and not part.is_sparse
            and part.is_contiguous()
            and part.untyped_storage().size() == part.nbytes
        )
