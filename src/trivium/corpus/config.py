"""The settings of harvests and curations. Thresholds are those of the literature if it has any."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from trivium.config import Config, NotNegative, Positive, Weight

Fraction = Annotated[float, Field(ge=0, le=1)]
Treatment = Literal["mask", "drop", "keep"]


def _listed(value: object) -> object:
    """`a,b` as it is written on a command line, as a list."""
    return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value


class ReadConfig(Config):
    """Where a row's text stands, and how large a thing may be before it is set aside unread.

    Memory stays within a few times `longest_bytes`; reading a zstd frame of a wide window takes that besides, up to
    2 GiB.
    """

    # where a row's text stands: the first of these fields that holds text; `data.text` is a field of a field
    text: Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)] = ("text", "content", "body")
    # bytes of one record, line or document, unpacked
    longest_bytes: Positive = 32 << 20
    # a gzip member or zstd file beyond that and so many times larger than its packed bytes is a bomb
    unpacked_ratio: Positive = 200


class PlantConfig(Config):
    """How many documents of each kind of junk are planted in the default corpus, before `scale`."""

    near_duplicate: NotNegative = 200  # documents planted at most; a small corpus gets fewer of each kind
    boilerplate: NotNegative = 120  # the same
    other_language: NotNegative = 160  # the same
    low_quality: NotNegative = 120  # the same
    leaked_item: NotNegative = 100  # the same
    # word-edited copies are made to have a Jaccard similarity in this range with their original
    similarity_low: Fraction = 0.84
    similarity_high: Fraction = 0.95


class HarvestConfig(Config):
    """The settings of a harvest: what is collected, how much of it, and what is held out of training."""

    # bytes of honest prose taken from the default corpus; None: all of it
    max_bytes: Positive | None = None
    # of the default corpus: packages read beside the standard library and pydoc_data; one not installed is passed over
    packages: tuple[str, ...] = ("torch", "sympy", "networkx", "numpy")
    # characters: a document of the default corpus is at least this long …
    shortest: Positive = 512
    # … and a new one is begun once it has this many. Of your files, a longer text of any kind is cut at blank lines
    longest: Positive = 8000
    # share of documents kept away from training for evaluation
    heldout_fraction: Fraction = 0.03
    # passages wanted for evaluation; more documents are held out until there are so many …
    evaluation_items: NotNegative = 400
    # … but never more than this share
    heldout_limit: Fraction = 0.10
    # words in an evaluation passage
    passage_shortest: Positive = 40
    passage_longest: Positive = 80
    # share of default documents wrapped as HTML pages in WARC files; the others become JSON lines
    html_fraction: Fraction = 0.5
    # bytes of text per output file
    shard_bytes: Positive = 4 << 20
    planted: PlantConfig = PlantConfig()
    read: ReadConfig = ReadConfig()


class ExtractConfig(Config):
    """How the main text of a page is found."""

    # blocks: corpus/clean/main_text.py; justext is the paper's; it and trafilatura need the extra `extract`
    extractor: Literal["blocks", "resiliparse", "justext", "trafilatura"] = "blocks"
    # jusText: whose common words mark a paragraph as text
    stoplist: str = "English"
    # a text in which a character other than a blank follows itself more often than this is dropped
    longest_run: Positive = 1000


class LanguageConfig(Config):
    """Which languages are kept, as pycld2 sees them (the detector of Pile-CC and MT-NLG)."""

    keep: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ("en",)  # codes, as pycld2 says them
    # percent of the text pycld2 must assign to the language it found
    percent: Annotated[int, Field(ge=0, le=100)] = 65
    # characters asked first, in four pieces over the text; 0: always the whole text …
    sample: NotNegative = 512
    # … and the percent of them that must be of one language for that to be the text's; else the whole text decides
    sure: Annotated[int, Field(ge=0, le=100)] = 95


class QualityConfig(Config):
    """Rules on one document's words and lines: MT-NLG (length), Gopher A1, FineWeb, C4 and RefinedWeb."""

    # MT-NLG dropped documents under 512 characters
    characters: NotNegative = 512
    # Gopher: words in a document, letters in a mean word
    words_low: NotNegative = 50
    words_high: NotNegative = 100_000
    word_letters_low: float = 3.0
    word_letters_high: float = 10.0
    # Gopher: '#' or '…' per word
    symbols: Fraction = 0.10
    # Gopher: lines that are bullets, lines that end in an ellipsis
    bullet_lines: Fraction = 0.90
    ellipsis_lines: Fraction = 0.30
    # Gopher: words that hold a letter, and how many different ones of eight common words must be there
    alphabetic_words: Fraction = 0.80
    common_words: NotNegative = 2
    # FineWeb: lines ending in punctuation (at least), lines under 30 characters (at most)
    punctuated_lines: Fraction = 0.12
    short_lines: Fraction = 0.67
    # RefinedWeb: words in lines of navigation, counters, cookie and policy notices (C4's list)
    boilerplate_words: Fraction = 0.05


class RepetitionConfig(Config):
    """Gopher A1: the largest share of a document that may be repetition."""

    duplicate_lines: Fraction = 0.30  # lines that occurred before
    duplicate_paragraphs: Fraction = 0.30  # paragraphs that occurred before
    duplicate_line_characters: Fraction = 0.20  # characters in such lines
    duplicate_paragraph_characters: Fraction = 0.20  # characters in such paragraphs
    # characters in the most frequent n-gram, n = 2, 3, 4
    top_ngram: tuple[Fraction, ...] = (0.20, 0.18, 0.16)
    # characters in n-grams that occurred before, n = 5 … 10
    repeated_ngram: tuple[Fraction, ...] = (0.15, 0.14, 0.13, 0.12, 0.11, 0.10)


class C4Config(Config):
    """C4's rules on lines and pages; the figures of its published code."""

    # a line has so many words, a page so many sentences, a word at most so many letters
    line_words: NotNegative = 3
    sentences: NotNegative = 5
    word_letters: Positive = 1000
    # a page with any of these words is dropped; C4 took a public list, which is not part of this package
    bad_words: tuple[str, ...] = ()


class FineWebConfig(Config):
    """FineWeb's own rules; the figures of its published code."""

    # lines that end in punctuation: more than this share
    punctuated_lines: Fraction = 0.12
    # lines of at most so many characters: less than this share
    short_lines: Fraction = 0.67
    short_line: NotNegative = 30
    # characters in lines that occurred before: less than this share (the paper's text says 0.1)
    duplicate_characters: Fraction = 0.01
    # line ends per word, at most
    newlines_per_word: Fraction = 0.3


class PrivacyConfig(Config):
    """What of each kind of personal data becomes: masked by its name in brackets, the document dropped, or left."""

    # the filter `privacy`: masked by its name in brackets, the document dropped, or left
    email: Treatment = "mask"
    phone: Treatment = "mask"  # the same
    ip: Treatment = "mask"  # the same
    key: Treatment = "mask"  # the same
    # addresses that name no one: private, loopback, documentation
    spare_private_ips: bool = True


class ClassifierConfig(Config):
    """The paper's quality classifier: a linear model on hashed word n-grams, and the sampling by its score."""

    # a trained model, for the filter `classifier`: its file, or the folder that `classify train` wrote
    model: str | None = None
    # words in the longest n-gram, and the logarithm of the number of buckets n-grams are hashed into
    ngram: Positive = 2
    bits: Annotated[int, Field(ge=8, le=30)] = 20
    # documents of each kind trained on at most (the paper: 800,000), and words of each looked at
    documents: Positive = 200_000
    words: Positive = 512
    epochs: Positive = 5  # of its training
    rate: Annotated[float, Field(gt=0)] = 0.1  # of its training, at first
    # share kept out of training to measure accuracy (the paper: 10 %, 90.3 % accuracy)
    heldout_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.10
    # keep if pareto(alpha) > 1 - score; GPT-3 took 9
    alpha: Annotated[float, Field(gt=0)] = 3.0
    # keep if score >= threshold instead
    threshold: Fraction | None = None


class SelectionConfig(Config):
    """Which of many candidate documents are most like a target set."""

    # transport: gradient of an optimal-transport distance (GOT-D); importance: resampling by weights (DSIR)
    method: Literal["transport", "importance"] = "transport"
    # share of the candidates chosen
    fraction: Fraction = 0.10
    # logarithm of the number of buckets that words and word pairs are hashed into (DSIR: 10,000)
    bits: Annotated[int, Field(ge=4, le=24)] = 14
    # transport: blur of the distance, in units of the mean cost
    epsilon: Annotated[float, Field(gt=0)] = 0.05
    # largest error of the marginals at which iteration ends, and iterations at most
    tolerance: Annotated[float, Field(gt=0)] = 1e-3
    iterations: Positive = 1000
    # candidates in a batch: memory is this times the documents of the target
    batch: Positive = 4096


class DedupConfig(Config):
    """Fuzzy deduplication over words; candidates from MinHash bands, each verified by its true Jaccard."""

    # words in a shingle
    shingle: Positive = 5
    # Jaccard similarity from which two documents are the same
    threshold: Fraction = 0.8
    # MT-NLG took 20 bands x 13 rows, which proposes only 68 % of pairs at 0.8; as candidates here are
    # verified, wider bands cost time and nothing else: 24 x 5 proposes all but 1 in 10,000
    bands: Positive = 24
    rows: Positive = 5
    # lines and paragraphs of fewer words may stand in many documents (for deduplication by these)
    shortest: NotNegative = 5
    # whether of documents with one address only the first stays, as for several snapshots of a crawl
    urls: bool = False
    # sources in falling order of quality; a group's survivor is a document of the best source …
    priority: tuple[str, ...] = ()
    # … with the highest of this figure of its metadata (such as classifier_score or extraction.prose), else the first
    quality: str = ""


class DecontaminationConfig(Config):
    """MT-NLG's n-gram rule: evaluation text is cut out with its surroundings."""

    # files and folders of further evaluation texts, read as a corpus is, beside the harvest's own passages
    against: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    # words in a key; a shorter evaluation text of at least `shortest` words is one key as a whole
    ngram: Positive = 13
    shortest: Positive = 8
    # a key found at least so often in the corpus is a common phrase and is spared
    common: Positive = 10
    # characters removed on each side of a hit, then on to the end of the sentence
    margin: NotNegative = 200
    # characters: shorter pieces are dropped
    piece: NotNegative = 200
    # a document that falls apart into more pieces than this is dropped
    pieces: Positive = 10


class CurateConfig(Config):
    """The settings of a curation: every threshold of every step."""

    extract: ExtractConfig = ExtractConfig()
    language: LanguageConfig = LanguageConfig()
    quality: QualityConfig = QualityConfig()
    repetition: RepetitionConfig = RepetitionConfig()
    c4: C4Config = C4Config()
    fineweb: FineWebConfig = FineWebConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    classifier: ClassifierConfig = ClassifierConfig()
    selection: SelectionConfig = SelectionConfig()
    # filters of single documents by name, in the order in which they judge; corpus/clean/filters.py has all names
    filters: tuple[str, ...] = ("language", "quality", "repetition")
    dedup: DedupConfig = DedupConfig()
    decontamination: DecontaminationConfig = DecontaminationConfig()
    # source -> weight, normalised over the sources present; one that is not named has 0; empty: proportional to bytes
    blend: dict[str, Weight] = Field(default_factory=dict)
    # seconds of processor time that a step may take for one document, before the document is dropped
    document_seconds: Positive = 60
    # bytes of text per document shard
    shard_bytes: Positive = 64 << 20
