"""What a training minimises, its losses by name, and the interface of a term that is added to the cross-entropy.

An objective says which targets count and what is summed: every target's loss has a weight, which may be negative, and
the weighted losses of the whole batch are divided once by a number, which is the sum of the weights unless the
objective has another one.

The cross-entropy needs the logarithm of the sum of exponentials of a token's scores. A term is a function of it, so
that value and gradient take no further pass over the scores. Every term is a file of `terms/`, with a function
`term_of` that returns the term of a model, or None. Importing a term does not import torch.
"""

import pkgutil
from abc import ABC, abstractmethod
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from trivium.config import Config
from trivium.objectives import terms
from trivium.objectives.routers import router_loss_names
from trivium.plan.model_shape import ModelShape

if TYPE_CHECKING:
    from torch import Tensor

LOSS = "loss"  # the name of what is minimised, without terms: by default the cross-entropy


class Term(ABC):
    """A loss of each target, weighted as its cross-entropy is. Training adds it; validation does not."""

    name: ClassVar[str]  # among the losses of a step, and in metrics.jsonl

    @abstractmethod
    def value(self, logs: "Tensor") -> "Tensor":
        """Return the term of each token. logs: the logarithms of their sums of exponentials."""

    @abstractmethod
    def slope(self, logs: "Tensor") -> "Tensor":
        """Return the derivative of `value` by `logs`."""


Terms = tuple[Term, ...]


@lru_cache(maxsize=1024)
def terms_of(model: ModelShape) -> Terms:
    """Return the terms that a model's training adds to the cross-entropy."""
    names = sorted(found.name for found in pkgutil.iter_modules(terms.__path__))
    modules: list[Any] = [import_module(f"{terms.__name__}.{name}") for name in names]
    return tuple(term for module in modules if (term := module.term_of(model)) is not None)


def loss_names(model: ModelShape) -> tuple[str, ...]:
    """Return the names of the losses of a training step, the cross-entropy first."""
    return (LOSS, *(term.name for term in terms_of(model)), *router_loss_names(model))


class Objective(Config):
    """A training objective. Its fields are the settings that a config may give."""

    of_pairs: ClassVar[bool] = False  # whether it compares the completions of preference pairs
    forward_passes: ClassVar[int] = 0  # of the whole batch before a step, which score its targets

    def names(self, model: ModelShape) -> tuple[str, ...]:
        """Return the names of the losses of a training step, first that of the loss."""
        return loss_names(model)


class NextToken(Objective):
    """The cross-entropy of the next token, and the terms of the model."""


NEXT_TOKEN = NextToken()
