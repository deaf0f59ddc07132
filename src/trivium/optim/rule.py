"""The interface of an optimizer rule. Runtime, checkpoint, memory model and certificate read a rule through it alone.

Every rule has the same form, with decoupled weight decay:

    D = transform(direction(gradient, states))          W <- (1 - lr * decay) * W - lr * D

`direction` acts on elements one by one, so it runs on any slice of a parameter. `transform` is the identity for rules
whose unit is an element; rules whose unit is a matrix get the whole matrix from the runtime. Importing a rule does not
import torch, so that plans and costs can read its states.
"""

import pkgutil
from abc import abstractmethod
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from trivium import optim
from trivium.config import Config

if TYPE_CHECKING:
    from torch import Tensor


Decay = Annotated[float, Field(ge=0, lt=1)]  # decay of a running mean, which would never change at 1


class State(NamedTuple):
    """One state tensor, of the shape of the parameter. dtype: None stands for that of the master weights."""

    name: str
    dtype: Literal["fp32", "bf16"] | None = None


class Rule(Config):
    """An optimizer rule; its fields are the settings that a group of parameters may give."""

    unit: ClassVar[Literal["element", "matrix"]] = "element"
    states: ClassVar[tuple[State, ...]] = ()

    @abstractmethod
    def direction(self, gradient: "Tensor", states: Mapping[str, "Tensor"], step: int) -> "Tensor":
        """Update `states` in place and return the direction of a gradient [n], as a tensor of its own.

        step: the number of the update, counted from 1.
        """

    def transform(self, matrix: "Tensor") -> "Tensor":
        """Return the update of a matrix [rows, columns] from its direction; asked only where the unit is a matrix."""
        return matrix

    def flops(self, rows: int, columns: int) -> float:
        """Return the floating-point operations of `transform`."""
        return 0.0


def rule_names() -> list[str]:
    """Return the names of all rules, sorted."""
    folder = [f"{place}/rules" for place in optim.__path__]
    return sorted(found.name for found in pkgutil.iter_modules(folder))


@cache
def rule_named(name: str) -> type[Rule]:
    """Return the rule of a name out of `rule_names`."""
    module: Any = import_module(f"{optim.__name__}.rules.{name}")
    rule: type[Rule] = module.RULE
    return rule
