"""What the evaluation and generation stations may be told."""

from typing import Annotated, Literal

from pydantic import Field

from trivium.config import Config

Positive = Annotated[int, Field(ge=1)]
TaskName = Literal["last_word", "continuation"]
# Openings of the kind of text the default corpus holds: reference documentation in English.
PROMPTS = (
    "The function returns the",
    "If the argument is not a string, an exception is",
    "This module provides a simple interface for",
)


class Sampling(Config):
    """How text is drawn from the model's predictions."""

    max_tokens: Positive = 60  # generated at most, per prompt
    temperature: Annotated[float, Field(ge=0)] = 0.8  # 0 always takes the likeliest token
    top_k: Annotated[int, Field(ge=0)] = 0  # only the k likeliest tokens; 0 takes all
    top_p: Annotated[float, Field(gt=0, le=1)] = (
        0.9  # only the likeliest tokens that together reach this probability
    )
    stop: tuple[str, ...] = ()  # generation ends before the first of these texts
    seed: Annotated[int, Field(ge=0)] = 0  # of the draws, together with the seed of the run


class GenerationConfig(Config):
    """Samples for the report."""

    prompts: Annotated[tuple[str, ...], Field(min_length=1)] = PROMPTS
    sampling: Sampling = Sampling()


class EvaluationConfig(Config):
    """Which tasks, how many examples and shots.

    The defaults ask 1,800 questions of 115,000 tokens in all, and three shots fit the 128 positions of the demo;
    a model of longer sequences takes longer passages and more shots. A question is the same at every number of
    shots, so that only the shots make a difference.
    """

    tasks: Annotated[tuple[TaskName, ...], Field(min_length=1)] = ("last_word", "continuation")
    # solved examples before each question; MT-NLG took 0, 1 and (for LAMBADA) 15
    shots: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = (0, 1, 3)
    last_word_examples: Positive = 200  # questions asked at most
    continuation_examples: Positive = 100  # questions asked at most, each with four choices
    context_characters: Positive = 64  # kept of a passage before its last word or its ending
    ending_characters: Positive = 36  # kept of each choice of "continuation"
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95  # of every interval
    resamples: Positive = 1000  # of each bootstrap
