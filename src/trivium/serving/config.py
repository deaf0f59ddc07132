"""What `trivium generate` and `trivium serve` may be told."""

from typing import Annotated

from pydantic import Field

from trivium.config import Config, Positive
from trivium.evaluation.config import Sampling
from trivium.plan.layout import Layout


class Drawing(Sampling):
    """How text is drawn, against repetition too."""

    repetition_penalty: Annotated[float, Field(gt=0, le=10)] = (
        1.0  # scores of tokens that stand in the text already are divided by it (arXiv 1909.05858); 1: not at all
    )


class GenerationConfig(Config):
    """What is written after which prompts."""

    # null: the first words of documents that the run held out of training, or neutral ones where there are none
    prompts: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    sampling: Drawing = Drawing()
    logprobs: Annotated[int, Field(ge=0, le=100)] | None = (
        None  # alternatives told per token; None: no probabilities
    )
    together: Positive = 16  # texts written side by side
    layout: Layout = Layout()  # of the ranks that write together: pipeline, data, tensor


class ServeConfig(Config):
    """Where the server listens, and what a request may cost. One process answers."""

    host: str = "127.0.0.1"  # others than this machine reach it only at another address, and then need a key
    port: Annotated[int, Field(ge=0, le=65535)] = 8000  # 0: a free one
    keys: str | None = None  # a file of API keys, one per line; None: no key is asked for
    hosts: tuple[str, ...] = ()  # names it may be called by, besides this machine's own
    body_bytes: Positive = 1 << 20  # of a request at most
    max_tokens: Positive = 1024  # written per text at most
    texts: Positive = 16  # per request at most: prompts times n
    logprobs: Annotated[int, Field(ge=0, le=100)] = 20  # alternatives shown per token at most
    queue: Positive = 32  # requests that wait at most; more are refused with 429
    deadline_seconds: Annotated[float, Field(gt=0)] = 120.0  # of a request, waiting included
    together: Positive = 16  # texts written side by side
