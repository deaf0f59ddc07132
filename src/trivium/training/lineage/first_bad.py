"""Where a value that is not finite appears first: the module, and whether in its forward or its backward."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

Tensor = torch.Tensor
LOSS = "the loss"  # when every module's output is finite


class Place(NamedTuple):
    """A module by its name in the parameter table's terms, and "forward", "backward" or "weight gradient"."""

    module: str
    way: str


def bad_weights(stage: nn.Module) -> list[str]:
    """The parameters that hold something not finite."""
    return [name for name, p in stage.named_parameters() if not bool(torch.isfinite(p).all())]


class Trail:
    """Watches one forward and one backward of a stage, in the order in which they happen."""

    def __init__(self) -> None:
        self.found: Place | None = None
        self._running: list[str] = []  # modules, the innermost last
        # By tensor: what ran around the modules it came out of, and the modules it went into, the innermost last.
        self._roles: dict[int, tuple[list[str], list[str]]] = {}
        self._kept: list[Tensor] = []  # so that no tensor takes the number of one that is gone

    @contextmanager
    def watching(self, stage: nn.Module) -> Iterator[None]:
        """Inside, every module of the stage is watched."""
        handles = []
        for name, module in stage.named_modules():
            if name and not isinstance(module, nn.ModuleDict):
                handles.append(module.register_forward_pre_hook(self._entering(name)))
                handles.append(module.register_forward_hook(self._leaving(name)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _entering(self, name: str) -> Callable[[nn.Module, tuple[object, ...]], None]:
        def look(module: nn.Module, args: tuple[object, ...]) -> None:
            if args and isinstance(args[0], Tensor):
                # What comes in bad, and came out of no module so, was made bad between them.
                self._see(args[0], self._around(name))
                self._role(args[0])[1].append(name)
            self._running.append(name)

        return look

    def _leaving(self, name: str) -> Callable[[nn.Module, tuple[object, ...], object], None]:
        def look(module: nn.Module, args: tuple[object, ...], output: object) -> None:
            self._running.pop()
            for x in output.values() if isinstance(output, dict) else (output,):
                if isinstance(x, Tensor):
                    self._see(x, name)
                    self._role(x)[0].append(self._around(name))

        return look

    def _see(self, x: Tensor, name: str) -> None:
        if self.found is None and not bool(torch.isfinite(x).all()):
            self.found = Place(name, "forward")

    def _role(self, x: Tensor) -> tuple[list[str], list[str]]:
        if id(x) not in self._roles:
            self._roles[id(x)] = [], []
            self._kept.append(x)
            if x.requires_grad:
                x.register_hook(partial(self._see_gradient, id(x)))  # type: ignore[no-untyped-call]
        return self._roles[id(x)]

    def _see_gradient(self, key: int, grad: Tensor) -> None:
        if self.found is None and not bool(torch.isfinite(grad).all()):
            out_of, into = self._roles[key]
            # The gradient of what a module read is its work; that of what it wrote, its surroundings'.
            self.found = Place(into[-1] if into else out_of[-1], "backward")

    def _around(self, name: str) -> str:
        """What calls a module: the one that runs; a layer that none calls for itself."""
        if self._running:
            return self._running[-1]
        return name if name.startswith("layers.") else LOSS
