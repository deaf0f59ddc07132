"""Put requests to a scorer, and refuse answers that are none."""

import math
from collections.abc import Sequence

from trivium.errors import DataError
from trivium.evaluation.requests import Likelihoods, Request, Scored


def answers_of(scorer: Likelihoods, requests: Sequence[Request]) -> list[Scored]:
    """One answer with a finite log-likelihood per request; DataError names the first that has none."""
    answers = scorer.loglikelihood(requests)
    if len(answers) != len(requests):
        raise ValueError(f"the scorer gave {len(answers)} answers to {len(requests)} requests")
    for request, answer in zip(requests, answers, strict=True):
        if not math.isfinite(answer.loglikelihood):
            raise DataError(
                f"after {request.context!r} the model gives {request.continuation!r} a log-likelihood of "
                f"{answer.loglikelihood}: its weights are damaged or training diverged; use an earlier checkpoint"
            )
    return answers
