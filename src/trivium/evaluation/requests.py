"""The questions put to a model, its answers, and what anything must offer to be evaluated."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from trivium.errors import DataError
from trivium.evaluation.config import Sampling as Sampling


@dataclass(frozen=True, slots=True)
class Request:
    """How likely is `continuation` (which begins with its own space) after `context`?"""

    context: str
    continuation: str


@dataclass(frozen=True, slots=True)
class Scored:
    """The answer to a request.

    loglikelihood: nats, summed over the continuation. tokens: of the continuation.
    greedy: whether the likeliest token was the right one at every position. truncated: whether the beginning of
    the context had to be left out.
    """

    loglikelihood: float
    tokens: int
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


def portions(requests: Sequence[Request], characters: int) -> Iterator[Sequence[Request]]:
    """The requests, in order, in parts of so many characters or of one request."""
    begin = held = 0
    for number, request in enumerate(requests):
        size = len(request.context) + len(request.continuation)
        if number > begin and held + size > characters:
            yield requests[begin:number]
            begin, held = number, 0
        held += size
    if begin < len(requests):
        yield requests[begin:]


def ask(scorer: Likelihoods, requests: Sequence[Request]) -> list[Scored]:
    """The answers, checked to be one finite number per request."""
    answers = scorer.loglikelihood(requests)
    if len(answers) != len(requests):
        raise ValueError(f"the scorer gave {len(answers)} answers to {len(requests)} requests")
    for request, answer in zip(requests, answers, strict=True):
        if answer.tokens < 1:
            raise ValueError(f"the scorer says {request.continuation!r} has {answer.tokens} tokens")
        if not math.isfinite(answer.loglikelihood):
            raise DataError(
                f"after {request.context!r} the model gives {request.continuation!r} a log-likelihood of "
                f"{answer.loglikelihood}: its weights are damaged or training diverged; use an earlier checkpoint"
            )
    return answers
