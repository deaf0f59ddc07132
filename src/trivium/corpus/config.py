"""What harvest and curate may be asked to do; thresholds are those of the field where the field has one."""

from typing import Annotated

from pydantic import Field

from trivium.config import Config

Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]


class PlantConfig(Config):
    """How many documents of each kind of junk are planted in the default corpus, before `scale`."""

    near_duplicate: Count = 200
    boilerplate: Count = 120
    other_language: Count = 160
    low_quality: Count = 120
    leaked_item: Count = 100
    # word-edited copies are made to have a Jaccard similarity in this range with their original
    similarity_low: Fraction = 0.84
    similarity_high: Fraction = 0.95


class HarvestConfig(Config):
    """What is collected, how much of it, and what is kept away from training."""

    # bytes of honest prose taken from the default corpus; None takes all of it
    max_bytes: AtLeastOne | None = None
    # packages read beside the standard library and pydoc_data; a package not installed is passed over
    packages: tuple[str, ...] = ("torch", "sympy", "networkx", "numpy")
    # characters: a harvested document is at least this long …
    shortest: AtLeastOne = 512
    # … and a new one is begun once it has this many (user texts: cut at paragraphs beyond this many)
    longest: AtLeastOne = 8000
    # share of documents kept away from training for evaluation
    heldout_fraction: Fraction = 0.03
    # passages wanted for evaluation; more documents are held out until there are so many …
    evaluation_items: Count = 400
    # … but never more than this share
    heldout_limit: Fraction = 0.10
    # words in an evaluation passage
    passage_shortest: AtLeastOne = 40
    passage_longest: AtLeastOne = 80
    # share of default documents wrapped as HTML pages in WARC files; the others become JSON lines
    html_fraction: Fraction = 0.5
    # bytes of text per output file
    shard_bytes: AtLeastOne = 4 << 20
    planted: PlantConfig = PlantConfig()


class LanguageConfig(Config):
    """Which language is kept, as pycld2 sees it (the detector of Pile-CC and MT-NLG)."""

    keep: str = "en"
    # percent of the text pycld2 must assign to the language
    percent: Annotated[int, Field(ge=0, le=100)] = 65


class QualityConfig(Config):
    """Rules on one document's words and lines: MT-NLG (length), Gopher A1, FineWeb, C4 and RefinedWeb."""

    # MT-NLG dropped documents under 512 characters
    characters: Count = 512
    # Gopher: words in a document, letters in a mean word
    words_low: Count = 50
    words_high: Count = 100_000
    word_letters_low: float = 3.0
    word_letters_high: float = 10.0
    # Gopher: '#' or '…' per word
    symbols: Fraction = 0.10
    # Gopher: lines that are bullets, lines that end in an ellipsis
    bullet_lines: Fraction = 0.90
    ellipsis_lines: Fraction = 0.30
    # Gopher: words that hold a letter, and how many different ones of eight common words must be there
    alphabetic_words: Fraction = 0.80
    common_words: Count = 2
    # FineWeb: lines ending in punctuation (at least), lines under 30 characters (at most)
    punctuated_lines: Fraction = 0.12
    short_lines: Fraction = 0.67
    # RefinedWeb: words in lines of navigation, counters, cookie and policy notices (C4's list)
    boilerplate_words: Fraction = 0.05


class RepetitionConfig(Config):
    """Gopher A1: the largest share of a document that may be repetition."""

    duplicate_lines: Fraction = 0.30
    duplicate_paragraphs: Fraction = 0.30
    duplicate_line_characters: Fraction = 0.20
    duplicate_paragraph_characters: Fraction = 0.20
    # characters in the most frequent n-gram, n = 2, 3, 4
    top_ngram: tuple[Fraction, ...] = (0.20, 0.18, 0.16)
    # characters in n-grams that occurred before, n = 5 … 10
    repeated_ngram: tuple[Fraction, ...] = (0.15, 0.14, 0.13, 0.12, 0.11, 0.10)


class DedupConfig(Config):
    """Fuzzy deduplication over words; candidates from MinHash bands, each verified by its true Jaccard."""

    # words in a shingle
    shingle: AtLeastOne = 5
    # Jaccard similarity from which two documents are the same
    threshold: Fraction = 0.8
    # MT-NLG took 20 bands x 13 rows, which proposes only 68 % of pairs at 0.8; as candidates here are
    # verified, wider bands cost time and nothing else: 24 x 5 proposes all but 1 in 10,000
    bands: AtLeastOne = 24
    rows: AtLeastOne = 5
    # sources in falling order of quality; a group's survivor is the first document of the best source
    priority: tuple[str, ...] = ()


class DecontaminationConfig(Config):
    """MT-NLG's n-gram rule: evaluation text is cut out with its surroundings."""

    # words in a key; a shorter evaluation text of at least `shortest` words is one key as a whole
    ngram: AtLeastOne = 13
    shortest: AtLeastOne = 8
    # a key found at least so often in the corpus is a common phrase and is spared
    common: AtLeastOne = 10
    # characters removed on each side of a hit, then on to the end of the sentence
    margin: Count = 200
    # characters: shorter pieces are dropped
    piece: Count = 200
    # a document that falls apart into more pieces than this is dropped
    pieces: AtLeastOne = 10


class CurateConfig(Config):
    """The curation station: every threshold of every step."""

    language: LanguageConfig = LanguageConfig()
    quality: QualityConfig = QualityConfig()
    repetition: RepetitionConfig = RepetitionConfig()
    dedup: DedupConfig = DedupConfig()
    decontamination: DecontaminationConfig = DecontaminationConfig()
    # source -> weight, normalised over the sources present; empty: proportional to bytes
    blend: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    # bytes of text per document shard
    shard_bytes: AtLeastOne = 64 << 20
