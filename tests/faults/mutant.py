"""A seeded fault: one function of the running code is replaced while a plan is certified; nothing on disk changes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from trivium.certify.ways import AS_IT_IS, Replaced, Way
from trivium.comms.group import PendingResult
from trivium.comms.mesh import Mesh
from trivium.plan.plan import Plan

Make = Callable[[Any, Mesh], Any]  # (correct function, mesh of this rank) -> wrong function


class Mutant(NamedTuple):
    """A fault by name.

    recreates: the reported bug in a sentence. plans: the fault must be caught on at least one of them, on the engine's
    code path `way`. everywhere: the oracle shares the faulty code, so the reference is computed with the fault too.
    """

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
        """Put the fault into the code of this process while the context is open."""
        original = vars(self.owner)[self.attribute]
        match original:
            case staticmethod() | classmethod():
                wrong = type(original)(self.make(original.__func__, mesh))
            case property():
                wrong = property(self.make(original.fget, mesh))
            case _:
                wrong = self.make(original, mesh)
        with Replaced(self.owner, self.attribute, wrong).applied():
            yield


def fault(
    owner: Any, attribute: str, *plans: Plan, way: Way = AS_IT_IS, everywhere: bool = False
) -> Callable[[Make], Mutant]:
    """Turn a function that makes the wrong function into a Mutant with its name and docstring."""

    def decorate(make: Make) -> Mutant:
        name = make.__name__.replace("_", "-")
        recreates = " ".join((make.__doc__ or "").split())
        return Mutant(name, recreates, owner, attribute, make, plans, way, everywhere)

    return decorate


def plan(tensor: int = 1, pipeline: int = 1, data: int = 1, chunks: int = 1, context: int = 1, **more: Any) -> Plan:
    """Return a small legal plan. `model` and `batch` are merged into the defaults; `order`, `shards` and `expert`
    belong to the layout."""
    model = {"layers": 4, "hidden": 16, "heads": 4, "vocabulary": 37, "vocabulary_multiple": 2, "sequence": 8}
    batch = {"sequences": 4, "micro": 1}
    layout = {"tensor": tensor, "pipeline": pipeline, "data": data, "chunks": chunks, "context": context}
    layout |= {name: more.pop(name) for name in ("order", "shards", "expert") if name in more}
    tree = {
        "model": {**model, **more.pop("model", {})},
        "batch": {**batch, **more.pop("batch", {})},
        "layout": layout,
        "schedule": "interleaved" if chunks > 1 else "1f1b",
    }
    return Plan.model_validate({**tree, **more}).checked()


def with_own(original: Callable[..., PendingResult], place: int, times: int = 1) -> Callable[..., PendingResult]:
    """Return a sum over ranks that leaves one number (0: the squared norm, 4: the loss) at this rank's own value."""

    def begin(shares: torch.Tensor, mesh: Mesh) -> PendingResult:
        own = float(shares[place]) * times
        right = original(shares, mesh)
        return PendingResult(right, shares, lambda: shares[place].fill_(own))

    return begin
