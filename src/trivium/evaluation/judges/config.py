"""Settings of a judge, and of the measures of its agreement with people."""

from typing import Annotated

from pydantic import Field

from trivium.config import Config, NotNegative, Positive, Short
from trivium.evaluation.config import Bootstraps
from trivium.evaluation.judges.parse import NonTranslation


class JudgeConfig(Config):
    """How a judge is asked. The defaults ask for one greedy answer per item."""

    samples: Annotated[Positive, Short("samples")] = 1  # answers per item, whose mean is its score; G-Eval takes 20
    # Temperature of the first attempt; null sends none, for endpoints that accept none
    temperature: Annotated[float | None, Field(ge=0, le=2), Short("temperature")] = 0.0
    temperature_step: Annotated[float, Field(ge=0, le=1)] = 0.1  # added for each further attempt at an answer
    attempts: Annotated[Positive, Short("attempts")] = 3  # attempts at an answer that can be parsed; GEMBA-MQM takes 10
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_tokens: Annotated[Positive, Short("max-tokens")] = 1024  # tokens of an answer, reasoning included
    reasoning_effort: Annotated[str | None, Short("effort")] = None  # sent to an endpoint as it is, as low or high
    seed: Annotated[NotNegative, Short("seed")] = 1234  # seed of sampling; each sample and attempt has its own
    max_errors: Positive = 5  # errors of an MQM answer that count, the most severe first
    # Whether a non-translation is critical, whatever severity the answer states
    non_translation: NonTranslation = "critical"
    requests: Positive = 8  # requests to an endpoint at the same time, or texts of a model in one batch
    timeout_seconds: Annotated[float, Field(gt=0)] = 120.0  # of one request
    retries: NotNegative = 5  # of a request that failed, with growing pauses


class MetaConfig(Bootstraps):
    """Intervals and tests of agreement. `resamples` is the number of permutations of each test, too."""

    seed: Annotated[NotNegative, Short("seed")] = 1234  # seed of resamples, permutations and sign flips
