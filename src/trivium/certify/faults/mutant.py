"""A seeded fault: one function of the running code replaced while a plan is certified; nothing on disk changes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from trivium.certify.ways import AS_IT_IS, Replaced, Way
from trivium.comms.collectives import PendingResult
from trivium.comms.mesh import Mesh
from trivium.plan.plan import Plan

Function = Callable[..., Any]
Make = Callable[[Function, Mesh], Function]  # (the right function, this rank's mesh) -> the wrong one


class Mutant(NamedTuple):
    """A fault by name. recreates: the reported bug in a sentence. plans: on one of these it must be caught,
    where the engine goes this way. everywhere: the fault is in code that the oracle shares, and so in it, too."""

    name: str
    recreates: str
    owner: Any  # the module or class whose attribute is replaced
    attribute: str
    make: Make
    plans: tuple[Plan, ...]
    way: Way = AS_IT_IS
    everywhere: bool = False

    @contextmanager
    def applied(self, mesh: Mesh) -> Iterator[None]:
        """Inside, the code of this process has the fault."""
        original = vars(self.owner)[self.attribute]
        with Replaced(self.owner, self.attribute, _replaced(original, self.make, mesh)).applied():
            yield


def fault(
    owner: Any, attribute: str, *plans: Plan, way: Way = AS_IT_IS, everywhere: bool = False
) -> Callable[[Make], Mutant]:
    """The decorated function makes the wrong function from the right one; its name and docstring are the mutant's."""

    def decorate(make: Make) -> Mutant:
        name = make.__name__.replace("_", "-")
        recreates = " ".join((make.__doc__ or "").split())
        return Mutant(name, recreates, owner, attribute, make, plans, way, everywhere)

    return decorate


def plan(
    tensor: int = 1, pipeline: int = 1, data: int = 1, chunks: int = 1, context: int = 1, **more: Any
) -> Plan:
    """A small legal plan; `model` and `batch` are merged into its own, `order` and `shards` are the layout's."""
    model = {"layers": 4, "hidden": 16, "heads": 4, "vocabulary": 37, "vocabulary_multiple": 2, "sequence": 8}
    batch = {"sequences": 8, "micro": 1}
    layout = {"tensor": tensor, "pipeline": pipeline, "data": data, "chunks": chunks, "context": context}
    layout |= {name: more.pop(name) for name in ("order", "shards") if name in more}
    tree = {
        "model": {**model, **more.pop("model", {})},
        "batch": {**batch, **more.pop("batch", {})},
        "layout": layout,
        "schedule": "interleaved" if chunks > 1 else "1f1b",
    }
    return Plan.model_validate({**tree, **more}).checked()


def with_own(original: Function, place: int, times: int = 1) -> Function:
    """A sum over ranks in which one number (0 the squared norm, 1 the loss) stays this rank's own."""

    def begin(shares: torch.Tensor, mesh: Mesh) -> PendingResult:
        own = float(shares[place]) * times
        right = original(shares, mesh)
        return PendingResult(right, shares, lambda: shares[place].fill_(own))

    return begin


def _replaced(original: Any, make: Make, mesh: Mesh) -> Any:
    match original:
        case staticmethod():
            return staticmethod(make(original.__func__, mesh))
        case classmethod():
            return classmethod(make(original.__func__, mesh))
        case property():
            return property(make(original.fget, mesh))  # type: ignore[arg-type]
    return make(original, mesh)
