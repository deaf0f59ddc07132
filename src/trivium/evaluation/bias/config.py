"""Settings of the bias analyses."""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from trivium.config import MAX_COUNT, Config, NotNegative, Positive

Variant = Literal["neutral", "competent", "incompetent"]
Analysis = Literal["association", "adjectives", "sentiment", "winogender", "winobias"]
AxisName = Literal["gender", "ethnicity", "religion"]
TaggerName = Literal["textblob", "lexicon"]
MAX_BLOCK_ELEMENTS = 1 << 22  # size of an array of random draws
TEXTBLOB = "textblob"  # as a sentiment lexicon: the one included in textblob


class Draws(NamedTuple):
    """The seed and numbers of random draws, and the level of confidence intervals."""

    seed: int
    permutations: int = 2000
    resamples: int = 1000
    confidence: float = 0.95

    def blocks(self, width: int) -> list[int]:
        """Divide the permutations of `width` values into blocks of bounded memory."""
        most = max(1, MAX_BLOCK_ELEMENTS // width)
        return [min(most, self.permutations - done) for done in range(0, self.permutations, most)]


class CooccurrenceConfig(Config):
    """Generation of texts about groups of people, and analysis of their words."""

    # attributes by which people are grouped
    axes: Annotated[tuple[AxisName, ...], Field(min_length=1)] = ("gender", "ethnicity", "religion")
    samples: Positive = 800  # number of texts per prompt (GPT-3: 800)
    tokens: Positive = 50  # maximum tokens per text (GPT-3: 50)
    temperature: Annotated[float, Field(gt=0)] = 1.0  # divides the logits before a token is drawn
    # tokens are drawn from the most likely ones that together have this probability
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.9
    # Finds the adjectives; "lexicon" uses the words that SentiWordNet lists as adjectives.
    tagger: TaggerName = "textblob"
    adverbs: bool = False  # count adverbs too
    listed: Positive = 10  # words shown per group in each list (most frequent, most one-sided)
    least: Positive = 5  # minimum occurrences of a word for a comparison between groups
    prior: Annotated[float, Field(gt=0)] = 500.0  # total weight of the log-odds prior, in words (Monroe et al. 2008)
    lexicon: str = TEXTBLOB  # sentiment lexicon: "textblob", or the path of a SentiWordNet file


class BiasConfig(Config):
    """The analyses to run, and their data.

    The defaults ask about 3,900 questions of some ten tokens each, and generate 800 texts after each of 28
    prompts, 1.1 million tokens in total, as GPT-3 did. Reduce them on a small machine.
    """

    # analyses to run; winogender and winobias need bias.data
    analyses: Annotated[tuple[Analysis, ...], Field(min_length=1)] = ("association", "adjectives", "sentiment")
    # descriptions of the person in a prompt; "neutral" has no adjective
    variants: Annotated[tuple[Variant, ...], Field(min_length=1)] = ("neutral", "competent", "incompetent")
    # Number of occupations, chosen by the seed (MT-NLG: 323); None uses all.
    occupations: Annotated[int, Field(ge=2, le=MAX_COUNT)] | None = 323
    occupation_list: str | None = None  # path of your own file, one occupation per line
    cooccurrence: CooccurrenceConfig = CooccurrenceConfig()
    data: str | None = None  # folder that contains winogender/ and winobias/
    # solved examples before each question of winogender and winobias
    shots: Annotated[tuple[NotNegative, ...], Field(min_length=1)] = (0, 1, 4)
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95  # level of every confidence interval
    resamples: Positive = 1000  # resamples of each bootstrap
    permutations: Positive = 2000  # permutations of each permutation test

    def draws(self, seed: int) -> Draws:
        """Return the random draws of all tests under this seed."""
        return Draws(seed, self.permutations, self.resamples, self.confidence)
