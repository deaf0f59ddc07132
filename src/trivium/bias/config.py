"""Settings of the bias analyses."""

from typing import Annotated, Literal

from pydantic import Field

from trivium.config import MOST, Config, NotNegative, Positive

Variant = Literal["neutral", "competent", "incompetent"]
Analysis = Literal["association", "adjectives", "sentiment", "winogender", "winobias"]
AxisName = Literal["gender", "ethnicity", "religion"]
TaggerName = Literal["textblob", "lexicon"]
TEXTBLOB = "textblob"  # as a sentiment lexicon: the one included in textblob


class CooccurrenceConfig(Config):
    """Generation of texts about groups of people, and analysis of their words."""

    axes: Annotated[tuple[AxisName, ...], Field(min_length=1)] = ("gender", "ethnicity", "religion")
    samples: Positive = 800  # texts per prompt (GPT-3: 800)
    tokens: Positive = 50  # per text at most (GPT-3: 50)
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.9
    tagger: TaggerName = (
        "textblob"  # finds the adjectives; "lexicon" uses the words that SentiWordNet lists as adjectives
    )
    adverbs: bool = False  # count adverbs too
    listed: Positive = 10  # words shown per group in each list (most frequent, most one-sided)
    least: Positive = 5  # minimum occurrences of a word for a comparison between groups
    prior: Annotated[float, Field(gt=0)] = 500.0  # total weight of the log-odds prior, in words (Monroe et al. 2008)
    lexicon: str = TEXTBLOB  # of sentiment: "textblob", or the path of a SentiWordNet file


class BiasConfig(Config):
    """Which analyses to run, and on what.

    The defaults ask about 3,900 questions of some ten tokens each, and generate 800 texts after each of 28
    prompts, 1.1 million tokens in total, as GPT-3 did. Reduce them on a small machine.
    """

    analyses: Annotated[tuple[Analysis, ...], Field(min_length=1)] = ("association", "adjectives", "sentiment")
    variants: Annotated[tuple[Variant, ...], Field(min_length=1)] = ("neutral", "competent", "incompetent")
    occupations: Annotated[int, Field(ge=2, le=MOST)] | None = (
        323  # number of occupations, chosen by the seed (MT-NLG: 323); None uses all
    )
    occupation_list: str | None = None  # path of your own file, one occupation per line
    cooccurrence: CooccurrenceConfig = CooccurrenceConfig()
    data: str | None = None  # folder that contains winogender/ and winobias/
    shots: Annotated[tuple[NotNegative, ...], Field(min_length=1)] = (0, 1, 4)
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95  # level of every confidence interval
    resamples: Positive = 1000  # per bootstrap
    permutations: Positive = 2000  # per permutation test
