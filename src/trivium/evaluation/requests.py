"""The questions put to a model, its answers, and what anything must offer to be evaluated."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trivium.evaluation.config import Sampling as Sampling


@dataclass(frozen=True, slots=True)
class Request:
    """How likely is `continuation` (which begins with its own space) after `context`?"""

    context: str
    continuation: str


@dataclass(frozen=True, slots=True)
class Scored:
    """The answer to a request.

    loglikelihood: nats, summed over the continuation. tokens, characters: of the continuation.
    greedy: whether the likeliest token was the right one at every position. truncated: whether the beginning of
    the context had to be left out.
    """

    loglikelihood: float
    tokens: int
    characters: int
    greedy: bool
    truncated: bool


class Likelihoods(Protocol):
    """Something that says how likely a continuation is."""

    def loglikelihood(self, requests: Sequence[Request]) -> list[Scored]:
        """One answer per request, in order."""
        ...


class Scorer(Likelihoods, Protocol):
    """A model, in whatever layout it runs."""

    def generate(self, prompts: Sequence[str], *, settings: Sampling) -> list[str]:
        """One continuation per prompt, in order, without the prompt."""
        ...
