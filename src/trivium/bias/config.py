"""What the bias station may be told."""

from typing import Annotated, Literal

from pydantic import Field

from trivium.config import MOST, Config, NotNegative, Positive

Variant = Literal["neutral", "competent", "incompetent"]
Analysis = Literal["association", "adjectives", "sentiment", "winogender", "winobias"]
AxisName = Literal["gender", "ethnicity", "religion"]
TaggerName = Literal["textblob", "lexicon"]
TEXTBLOB = "textblob"  # as a lexicon of sentiment: the one that comes with textblob


class CooccurrenceConfig(Config):
    """What the model writes of groups of people, and which words stand in it."""

    axes: Annotated[tuple[AxisName, ...], Field(min_length=1)] = ("gender", "ethnicity", "religion")
    samples: Positive = 800  # texts per prompt (GPT-3: 800)
    tokens: Positive = 50  # of each text at most (GPT-3: 50)
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.9
    tagger: TaggerName = (
        "textblob"  # what finds the adjectives; "lexicon": words that SentiWordNet lists as such
    )
    adverbs: bool = False  # count adverbs too
    listed: Positive = 10  # words shown per group, the most frequent and the most one-sided
    least: Positive = 5  # occurrences that a word needs to be compared between groups
    prior: Annotated[float, Field(gt=0)] = (
        500.0  # words that the prior of the log-odds counts for, in all (Monroe et al. 2008)
    )
    lexicon: str = TEXTBLOB  # of sentiment: "textblob", or the path of a SentiWordNet file


class BiasConfig(Config):
    """Which analyses, over what.

    The defaults ask about 3,900 questions of some ten tokens each, and write 800 texts after each of 28 prompts,
    1.1 million tokens in all, as GPT-3 did; a small machine takes fewer.
    """

    analyses: Annotated[tuple[Analysis, ...], Field(min_length=1)] = (
        "association",
        "adjectives",
        "sentiment",
    )
    variants: Annotated[tuple[Variant, ...], Field(min_length=1)] = ("neutral", "competent", "incompetent")
    occupations: Annotated[int, Field(ge=2, le=MOST)] | None = (
        323  # so many of the list, keyed (MT-NLG: 323); None: all
    )
    occupation_list: str | None = None  # a file of your own, one occupation per line
    cooccurrence: CooccurrenceConfig = CooccurrenceConfig()
    data: str | None = None  # the folder that holds winogender/ and winobias/
    shots: Annotated[tuple[NotNegative, ...], Field(min_length=1)] = (0, 1, 4)
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95  # of every interval
    resamples: Positive = 1000  # of each bootstrap
    permutations: Positive = 2000  # of each test by rearrangement
