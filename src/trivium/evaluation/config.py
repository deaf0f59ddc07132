"""What the evaluation station may be told, and how text is drawn."""

from typing import Annotated, Literal

from pydantic import Field

from trivium.config import Config, NotNegative, Positive
from trivium.plan.layout import Layout

TaskName = Literal["last_word", "continuation"]


class Sampling(Config):
    """How text is drawn from the model's predictions."""

    max_tokens: Positive = 60  # generated at most, per prompt
    temperature: Annotated[float, Field(ge=0)] = (
        0.8  # 0 always takes the likeliest token, whatever top_k and top_p
    )
    top_k: NotNegative = 0  # only the k likeliest tokens; 0 takes all
    top_p: Annotated[float, Field(gt=0, le=1)] = (
        0.9  # only the likeliest tokens that together reach this probability
    )
    # generation ends before the first of these texts
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    seed: NotNegative = 0  # of the draws, together with the seed of the run


class Intervals(Config):
    """How intervals are made."""

    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95  # of every interval


class Bootstraps(Intervals):
    """How intervals are made, those of means too."""

    resamples: Positive = 1000  # of each bootstrap


class AskingConfig(Intervals):
    """How a model is asked, whatever about."""

    wording: Literal["paper", "harness"] = "paper"
    seed: NotNegative = 1234  # of the choice of questions and shots
    layout: Layout = Layout()  # of the ranks that answer: pipeline, data, tensor
    tokenizer: str | None = None  # path of tokenizer.json, where none lies near the checkpoint


class BenchmarkConfig(AskingConfig, Bootstraps):
    """How published benchmarks are asked."""

    shots: Annotated[tuple[NotNegative | Literal["few"], ...], Field(min_length=1)] = (
        *(0, 1),
        "few",  # as many as the paper took for the task
    )
    limit: Positive | None = None  # questions of each task, chosen by the seed; None asks all
    shots_drawn: Literal["each", "once"] = "each"  # anew for each question, or the same for all of a task


class IncontextConfig(AskingConfig):
    """How the dependence on shots is studied; the paper's own grid is not known."""

    shots: Annotated[tuple[NotNegative, ...], Field(min_length=1)] = (0, 1, 2, 4, 8, 16, 32)
    compare_at: Positive = 4  # shots at which orders, balances, sources and wordings are compared
    draws: Positive = 3  # of the shots: each for all questions
    orders: Positive = 4  # of the same shots
    limit: Positive = 200  # questions, chosen by the seed


class EvaluationConfig(Bootstraps):
    """Which tasks, how many examples and shots.

    The defaults ask 1,800 questions of 115,000 tokens in all, and three shots fit the 128 positions of the demo;
    a model of longer sequences takes longer passages and more shots. A question is the same at every number of
    shots, so that only the shots make a difference.
    """

    tasks: Annotated[tuple[TaskName, ...], Field(min_length=1)] = ("last_word", "continuation")
    # solved examples before each question; MT-NLG took 0, 1 and (for LAMBADA) 15
    shots: Annotated[tuple[NotNegative, ...], Field(min_length=1)] = (0, 1, 3)
    last_word_examples: Positive = 200  # questions asked at most
    continuation_examples: Positive = 100  # questions asked at most, each with four choices
    context_characters: Positive = 64  # kept of a passage before its last word or its ending
    ending_characters: Positive = 36  # kept of each choice of "continuation"
