"""An accelerator without memory, which tells when the processor would have waited for it.

What it can do where torch was built without CUDA is little: no slices, no reading.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode


class Crossings(TorchDispatchMode):
    """copies: from the processor to the accelerator or back; waits: those that hold the processor up."""

    device = torch.device("cuda", 0)

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[str] = []
        self.waits: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, str(function)
        if name == "aten._pin_memory.default":  # which no tensor without memory has
            found = torch.empty_like(args[0])
            found.is_said_pinned = True
            return found
        found = function(*args, **kwargs)
        if name == "aten._to_copy.default" and found.device != args[0].device:
            self.copies.append(name)
            if not (kwargs.get("non_blocking") and hasattr(args[0], "is_said_pinned")):
                self.waits.append(f"{name} from {args[0].device} to {found.device}")
        return found


@contextmanager
def accelerator() -> Iterator[Crossings]:
    """Inside, tensors have no memory, and may be on `device`."""
    with FakeTensorMode(), Crossings() as seen:
        yield seen
