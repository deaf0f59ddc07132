"""A fake GPU without memory, which records when the CPU would have waited for it.

Little works where torch was built without CUDA: neither slices nor reading values.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode


class Crossings(TorchDispatchMode):
    """Records copies between CPU and GPU.

    waits: copies that block the CPU, because they are synchronous or use memory that is not pinned.
    """

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
        if name == "aten.empty_like.default" and kwargs.get("pin_memory"):
            found.is_said_pinned = True
        if name == "aten._to_copy.default":
            self._judge(args[0], found, goes_on=kwargs.get("non_blocking", False))
        if name == "aten.copy_.default":
            self._judge(args[1], args[0], goes_on=len(args) > 2 and args[2])
        return found

    def _judge(self, source: torch.Tensor, target: torch.Tensor, *, goes_on: bool) -> None:
        if source.device == target.device:
            return
        way = f"from {source.device} to {target.device}"
        self.copies.append(way)
        here = source if source.device.type == "cpu" else target
        if not (goes_on and hasattr(here, "is_said_pinned")):
            self.waits.append(way)


@contextmanager
def accelerator() -> Iterator[Crossings]:
    """Inside, tensors have no memory, and may be on `device`."""
    with FakeTensorMode(), Crossings() as seen:
        yield seen
