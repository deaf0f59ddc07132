"""Settings of `trivium generate` and `trivium serve`."""

from typing import Annotated

from pydantic import Field

from trivium.config import Config, Positive, Short
from trivium.evaluation.config import MIN_REPETITION_PENALTY, Sampling
from trivium.plan.layout import Layout
from trivium.plan.sizes import Degree
from trivium.seeds import seed_for

RepetitionPenalty = Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=10)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class Drawing(Sampling):
    """Sampling with penalties on tokens that are in the text already."""

    repetition_penalty: RepetitionPenalty = (
        1.0  # divides the scores of tokens that are in the text already (arXiv 1909.05858); 1 disables it
    )
    frequency_penalty: Penalty = 0.0  # subtracted from a token's score for each time that the model has written it
    presence_penalty: Penalty = 0.0  # subtracted from the scores of all tokens that the model has written


class GenerationConfig(Config):
    """Prompts, and how they are continued."""

    # null uses the first words of the run's held-out documents, or neutral words if there are none
    prompts: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    sampling: Drawing = Drawing()
    # alternatives per token; None returns no log-probabilities
    logprobs: Annotated[Annotated[int, Field(ge=0, le=100)] | None, Short("logprobs")] = None
    together: Positive = 16  # texts generated in one batch
    layout: Layout = Layout()  # layout of the ranks that generate: pipeline, data and tensor

    def drawing(self, *, seed: int) -> Drawing:
        """Return the sampling settings of a run with this seed."""
        own = seed_for(seed, "generate", self.sampling.seed) % 2**32  # generators have seeds of 32 bits
        return self.sampling.model_copy(update={"seed": own})


class ServeConfig(Config):
    """Address and limits of the server, and the ranks of its model."""

    host: Annotated[str, Short("host")] = (
        "127.0.0.1"  # address to listen on; any other than this machine's own requires an API key
    )
    port: Annotated[int, Field(ge=0, le=65535), Short("port")] = 8000  # TCP port; 0 selects a free one
    keys: Annotated[str | None, Short("keys")] = None  # path of a file of API keys, one per line; None requires no key
    hosts: tuple[str, ...] = ()  # accepted names in the Host header, in addition to this machine's own
    body_bytes: Positive = 1 << 20  # maximum bytes of a request's body
    max_tokens: Positive = 1024  # maximum tokens per text
    texts: Positive = 16  # maximum texts per request (prompts times n)
    messages: Positive = 512  # maximum messages per conversation
    logprobs: Annotated[int, Field(ge=0, le=100)] = 20  # maximum number of alternatives per token
    queue: Positive = 32  # maximum number of waiting requests; further ones receive status 429
    deadline_seconds: Annotated[float, Field(gt=0)] = 120.0  # time limit of a request, including the time in the queue
    together: Positive = 16  # texts generated in one batch
    tensor: Annotated[Degree, Short("tp")] = 1  # tensor parallelism: ranks on this machine that split each layer
