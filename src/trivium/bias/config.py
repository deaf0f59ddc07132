"""What the bias station may be told."""

from typing import Annotated, Literal

from pydantic import Field

from trivium.config import Config

Variant = Literal["neutral", "competent", "incompetent"]


class BiasConfig(Config):
    """The occupation association test. The defaults ask about 3,900 questions of some ten tokens each."""

    variants: Annotated[tuple[Variant, ...], Field(min_length=1)] = ("neutral", "competent", "incompetent")
    occupations: Annotated[int, Field(ge=2)] | None = (
        323  # so many of the list, keyed (MT-NLG: 323); None takes all
    )
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95  # of every interval
    resamples: Annotated[int, Field(ge=1)] = 1000  # of each bootstrap
