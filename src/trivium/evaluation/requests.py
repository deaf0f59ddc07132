"""Requests to a model, their answers, and the interface of everything that can be evaluated."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from trivium.errors import DataError
from trivium.evaluation.config import Sampling as Sampling


@dataclass(frozen=True, slots=True)
class Request:
    """Asks for the likelihood of `continuation`, which includes its leading space, after `context`."""

    context: str
    continuation: str


@dataclass(frozen=True, slots=True)
class Scored:
    """The answer to a request.

    loglikelihood: in nats, summed over the continuation. tokens: length of the continuation. greedy: whether every
    token was the argmax. truncated: whether the beginning of the context was cut off.
    """

    loglikelihood: float
    tokens: int
    greedy: bool
    truncated: bool


class Likelihoods(Protocol):
    """Anything that can score a continuation."""

    def loglikelihood(self, requests: Sequence[Request]) -> list[Scored]:
        """Return one answer per request, in order."""
        ...


class Scorer(Likelihoods, Protocol):
    """A model that scores and generates, in whatever layout it runs."""

    def generate(self, prompts: Sequence[str], *, settings: Sampling) -> list[str]:
        """Return one continuation per prompt, in order, without the prompt."""
        ...


def portions(requests: Sequence[Request], characters: int) -> Iterator[Sequence[Request]]:
    """Split requests, in order, into parts of at most `characters` characters, or of one longer request."""
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
    """Score the requests and check that every answer is finite. Raises DataError otherwise."""
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
