"""Settings of evaluation and of sampling."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field

from trivium.config import Config, NotNegative, Positive, Short
from trivium.plan.layout import Layout

MIN_REPETITION_PENALTY = 0.01  # divided by a smaller one, scores may overflow
TaskName = Literal["last_word", "continuation", "agreement", "word_order", "names"]

# Settings of transformers' `generate` that are not supported, with the values besides null that change nothing.
NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "num_beams": (1,),
        "num_return_sequences": (1,),
        "early_stopping": (True, False),  # controls when a beam search ends
        "length_penalty": (1,),
        "min_p": (0,),
        "typical_p": (1,),
        "min_length": (0,),
        "min_new_tokens": (0,),
        "no_repeat_ngram_size": (0,),
        "encoder_repetition_penalty": (1,),
        "epsilon_cutoff": (0,),
        "eta_cutoff": (0,),
        "guidance_scale": (1,),
        "bad_words_ids": ([],),
        "suppress_tokens": ([],),
        "begin_suppress_tokens": ([],),
        "sequence_bias": ([], {}),
        "forced_bos_token_id": (),
        "forced_eos_token_id": (),
        "use_cache": (True, False),  # cached and recomputed keys and values are equal
    }
)


class Sampling(Config):
    """Sampling of text from the model's predictions."""

    max_tokens: Annotated[Positive, Short("max-tokens")] = 60  # maximum number of tokens generated per prompt
    # 0 selects the most likely token, whatever top_k and top_p are
    temperature: Annotated[float, Field(ge=0), Short("temperature")] = 0.8
    top_k: Annotated[NotNegative, Short("top-k")] = 0  # sample from the k most likely tokens; 0 allows all
    # Sample from the most likely tokens that together reach this probability.
    top_p: Annotated[float, Field(gt=0, le=1), Short("top-p")] = 0.9
    # Generation ends before the first occurrence of any of these texts.
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    seed: NotNegative = 0  # seed of sampling, combined with the seed of the run


class Intervals(Config):
    """Confidence of intervals."""

    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95  # level of every confidence interval


class Bootstraps(Intervals):
    """Confidence of intervals, and bootstrap resampling for the intervals of means."""

    resamples: Positive = 1000  # resamples of each bootstrap


class AskingConfig(Intervals):
    """Settings common to all commands that ask a model about a benchmark."""

    # form of prompts: as in the paper of the task, or as in lm-evaluation-harness
    wording: Annotated[Literal["paper", "harness"], Short("wording")] = "paper"
    seed: Annotated[NotNegative, Short("seed")] = 1234  # seed that chooses questions and shots
    layout: Layout = Layout()  # layout of the ranks that answer: pipeline, data and tensor
    tokenizer: str | None = None  # path of tokenizer.json, if it is not near the checkpoint


class BenchmarkConfig(AskingConfig, Bootstraps):
    """Settings of published benchmarks."""

    # "few" is the number that the paper used for the task.
    shots: Annotated[tuple[NotNegative | Literal["few"], ...], Field(min_length=1)] = (0, 1, "few")
    limit: Positive | None = None  # questions per task, chosen by the seed; None uses all
    shots_drawn: Literal["each", "once"] = "each"  # "each" draws shots for every question, "once" for every task


class IncontextConfig(AskingConfig):
    """Settings of the study of in-context examples. The paper's own grid is not published."""

    shots: Annotated[tuple[NotNegative, ...], Field(min_length=1)] = (0, 1, 2, 4, 8, 16, 32)  # numbers of shots
    compare_at: Positive = 4  # number of shots at which orders, balances, sources and wordings are compared
    draws: Positive = 3  # sets of shots; each set is used for all questions
    orders: Positive = 4  # orders of one set of shots
    limit: Positive = 200  # questions, chosen by the seed


class EvaluationConfig(Bootstraps):
    """Tasks, and the numbers of their examples and shots.

    The defaults fit a model of 128 positions with three shots. Use longer passages and more shots for a model with a
    longer sequence. A question is the same at every number of shots, so that only the shots make a difference.
    """

    # tasks to score
    tasks: Annotated[tuple[TaskName, ...], Field(min_length=1)] = (
        "agreement",
        "word_order",
        "names",
        "continuation",
        "last_word",
    )
    # Solved examples before each question of last_word and continuation. MT-NLG used 0, 1 and (for LAMBADA) 15.
    shots: Annotated[tuple[NotNegative, ...], Field(min_length=1)] = (0, 1, 3)
    agreement_examples: Positive = 300  # maximum number of questions, each with two choices
    word_order_examples: Positive = 300  # maximum number of questions, each with two choices
    names_examples: Positive = 200  # maximum number of questions, each with four choices
    last_word_examples: Positive = 200  # maximum number of questions
    continuation_examples: Positive = 100  # maximum number of questions, each with four choices
    context_characters: Positive = 64  # characters of a passage before what is asked for; names has all of it
    ending_characters: Positive = 36  # characters of each choice of "continuation"
