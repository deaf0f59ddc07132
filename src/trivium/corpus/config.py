"""Settings of harvests and curations. Thresholds are those of the literature where it has any."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from trivium.config import Config, NotNegative, Positive, Short, Weight

STORIES = "corpus/harvest/stories.jsonl.xz"  # the default corpus, inside the package
Fraction = Annotated[float, Field(ge=0, le=1)]
Treatment = Literal["mask", "drop", "keep"]


def _split(value: object) -> object:
    """Split `a,b`, as written on a command line."""
    return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value


class ReadConfig(Config):
    """The field with the text of a row, and the size beyond which an item is quarantined unread.

    Memory stays within a few times `longest_bytes`, or up to 40 times if a JSON row of that size consists of small
    values. A zstd frame with a wide window takes up to 2 GiB more.
    """

    # fields that may hold a row's text: the first one with text is used; `data.text` names a nested field
    text: Annotated[tuple[str, ...], BeforeValidator(_split), Field(min_length=1)] = ("text", "content", "body")
    # limit of one record, line or document, in bytes after decompression
    longest_bytes: Positive = 32 << 20
    # limit of the ratio of decompressed to compressed bytes; a larger item over longest_bytes is a compression bomb
    unpacked_ratio: Positive = 200


class PlantConfig(Config):
    """Number of documents of each kind of junk that are planted in the default corpus."""

    near_duplicate: NotNegative = 200  # maximum number of near duplicates; a small corpus gets fewer
    boilerplate: NotNegative = 120  # maximum number of boilerplate documents
    other_language: NotNegative = 160  # maximum number of documents in other languages
    low_quality: NotNegative = 120  # maximum number of low-quality documents
    leaked_item: NotNegative = 100  # maximum number of evaluation passages inserted into documents
    similarity_low: Fraction = 0.84  # lowest Jaccard similarity of a planted near duplicate with its original
    similarity_high: Fraction = 0.95  # highest Jaccard similarity of a planted near duplicate with its original


class HarvestConfig(Config):
    """The text that is collected, how much of it, and how much is held out of training."""

    # bytes of text taken from the default corpus; None: all of it
    max_bytes: Annotated[Positive | None, Short("max-bytes")] = None
    # minimum characters of a document of the default corpus
    shortest: Positive = 512
    # characters at which a document of the default corpus ends; longer texts in your files are cut at blank lines
    longest: Positive = 8000
    # cut long texts of rows as well; false: only those of text files, which have no rows
    cut_rows: bool = True
    # share of documents held out for evaluation
    heldout_fraction: Fraction = 0.03
    # number of evaluation passages; more documents are held out until this number is reached
    evaluation_items: NotNegative = 400
    # maximum share of documents held out, whatever evaluation_items is
    heldout_limit: Fraction = 0.10
    passage_shortest: Positive = 40  # minimum words of an evaluation passage
    passage_longest: Positive = 80  # maximum words of an evaluation passage
    # share of the default corpus written as HTML pages in WARC files; the rest becomes JSON lines
    html_fraction: Fraction = 0.5
    # bytes of text per output file
    shard_bytes: Positive = 4 << 20
    planted: PlantConfig = PlantConfig()
    read: ReadConfig = ReadConfig()


class ExtractConfig(Config):
    """The extraction of the main text of a page."""

    # blocks: corpus/clean/main_text.py; justext: the paper's; justext and trafilatura need the extra `extract`
    extractor: Literal["blocks", "resiliparse", "justext", "trafilatura"] = "blocks"
    # jusText: the language whose stop words identify text
    stoplist: str = "English"
    # maximum consecutive repetitions of a character that is not a blank; a text with more is dropped
    longest_run: Positive = 1000


class LanguageConfig(Config):
    """The languages that are kept, according to pycld2 (the detector of Pile-CC and MT-NLG)."""

    keep: Annotated[tuple[str, ...], BeforeValidator(_split)] = ("en",)  # language codes of pycld2
    # minimum percentage of the text that pycld2 assigns to the language it detects
    percent: Annotated[int, Field(ge=0, le=100)] = 65
    # characters examined first, in four pieces of the text; 0: always the complete text
    sample: NotNegative = 512
    # minimum percentage of the sample in one language; below it, the complete text decides
    sure: Annotated[int, Field(ge=0, le=100)] = 95


class QualityConfig(Config):
    """Limits of a document's words and lines: MT-NLG (length), Gopher A1, FineWeb, C4 and RefinedWeb."""

    # minimum characters (MT-NLG)
    characters: NotNegative = 512
    # minimum words (Gopher)
    words_low: NotNegative = 50
    # maximum words (Gopher)
    words_high: NotNegative = 100_000
    word_letters_low: float = 3.0  # minimum of the mean word length (Gopher)
    word_letters_high: float = 10.0  # maximum of the mean word length (Gopher)
    # maximum number of '#' and '…' per word (Gopher)
    symbols: Fraction = 0.10
    bullet_lines: Fraction = 0.90  # maximum share of lines that begin with a bullet (Gopher)
    ellipsis_lines: Fraction = 0.30  # maximum share of lines that end in an ellipsis (Gopher)
    alphabetic_words: Fraction = 0.80  # minimum share of words with a letter (Gopher)
    common_words: NotNegative = 2  # minimum number of distinct words among eight common ones (Gopher)
    punctuated_lines: Fraction = 0.12  # minimum share of lines that end in punctuation (FineWeb)
    short_lines: Fraction = 0.67  # maximum share of lines under 30 characters (FineWeb)
    # maximum share of words in lines of navigation, counters, cookie and policy notices (RefinedWeb; C4's list)
    boilerplate_words: Fraction = 0.05


class RepetitionConfig(Config):
    """Maximum shares of a document that may be repetition (Gopher A1)."""

    duplicate_lines: Fraction = 0.30  # maximum share of lines that occurred before
    duplicate_paragraphs: Fraction = 0.30  # maximum share of paragraphs that occurred before
    # maximum share of characters in lines that occurred before
    duplicate_line_characters: Fraction = 0.20
    # maximum share of characters in paragraphs that occurred before
    duplicate_paragraph_characters: Fraction = 0.20
    # maximum shares of characters in the most frequent n-gram, n = 2, 3, 4
    top_ngram: tuple[Fraction, ...] = (0.20, 0.18, 0.16)
    # maximum shares of characters in n-grams that occurred before, n = 5 … 10
    repeated_ngram: tuple[Fraction, ...] = (0.15, 0.14, 0.13, 0.12, 0.11, 0.10)


class C4Config(Config):
    """C4's rules on lines and pages, with the figures of its published code."""

    line_words: NotNegative = 3  # minimum words of a line
    sentences: NotNegative = 5  # minimum sentences of a page
    word_letters: Positive = 1000  # maximum letters of a word
    # a page with any of these words is dropped; C4 used a public list, which is not part of this package
    bad_words: tuple[str, ...] = ()


class FineWebConfig(Config):
    """FineWeb's own rules, with the figures of its published code."""

    punctuated_lines: Fraction = 0.12  # minimum share of lines that end in punctuation
    short_lines: Fraction = 0.67  # maximum share of short lines
    short_line: NotNegative = 30  # maximum characters of a short line
    duplicate_characters: Fraction = 0.01  # maximum share of characters in repeated lines (the paper's text says 0.1)
    newlines_per_word: Fraction = 0.3  # maximum line ends per word


class PrivacyConfig(Config):
    """The treatment of personal data by the filter `privacy`: masked by its kind, document dropped, or kept."""

    email: Treatment = "mask"  # e-mail addresses: mask them, drop the document, or keep them
    phone: Treatment = "mask"  # telephone numbers: mask them, drop the document, or keep them
    ip: Treatment = "mask"  # IP addresses: mask them, drop the document, or keep them
    key: Treatment = "mask"  # keys and tokens: mask them, drop the document, or keep them
    # keep private, loopback and documentation addresses, which identify nobody
    spare_private_ips: bool = True


class ClassifierConfig(Config):
    """The paper's quality classifier, a linear model on hashed word n-grams, and sampling by its score."""

    # a trained model for the filter `classifier`: its file, or the folder that `corpus step train-classifier` wrote
    model: str | None = None
    # words of the longest n-gram
    ngram: Positive = 2
    # binary logarithm of the number of buckets for n-grams
    bits: Annotated[int, Field(ge=8, le=30)] = 20
    documents: Positive = 200_000  # maximum training documents of each kind (the paper: 800,000)
    words: Positive = 512  # words used of each document
    epochs: Positive = 5  # training epochs
    rate: Annotated[float, Field(gt=0)] = 0.1  # initial learning rate
    # share of documents held out to measure accuracy (the paper: 10 %, accuracy 90.3 %)
    heldout_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.10
    # keep a document if pareto(alpha) > 1 - score; GPT-3 used 9
    alpha: Annotated[float, Field(gt=0)] = 3.0
    # keep a document if score >= threshold, instead of sampling
    threshold: Fraction | None = None


class SelectionConfig(Config):
    """Selection of the candidate documents that are most useful for a target set."""

    # transport: those with which training comes closest to the target, by the gradient of an optimal-transport
    # distance (GOT-D); importance: a draw that resembles the target, by resampling weights (DSIR)
    method: Literal["transport", "importance"] = "transport"
    # share of the candidates that is selected
    fraction: Fraction = 0.10
    # binary logarithm of the number of buckets for words and word pairs (DSIR: 10,000 buckets)
    bits: Annotated[int, Field(ge=4, le=24)] = 14
    # transport: entropic regularisation, in standard deviations of the costs, which differ little between texts;
    # a large one selects what is nearest to the target
    epsilon: Annotated[float, Field(ge=1e-4, le=1e4)] = 0.1
    tolerance: Annotated[float, Field(gt=0)] = 1e-3  # transport: error of the marginals at which iteration ends
    iterations: Positive = 1000  # transport: maximum number of iterations
    # transport: maximum number of documents that are drawn from what the model was trained on, and from the target, to
    # compute transport between them; memory is proportional to its square. All candidates are valued by the result
    sample: Positive = 4096
    # transport: candidates in a batch; memory is proportional to it times the documents of the target
    batch: Positive = 4096


class DedupConfig(Config):
    """Deduplication over words: MinHash bands propose pairs, and the true Jaccard similarity of each is computed."""

    # words of a shingle
    shingle: Positive = 5
    # minimum Jaccard similarity of near duplicates
    threshold: Fraction = 0.8
    # MinHash bands. MT-NLG's 20 x 13 proposes only 68 % of pairs at 0.8; 24 x 5 proposes all but 1 in 10,000, at the
    # cost of time alone because candidates are verified
    bands: Positive = 24
    # hash functions in a band
    rows: Positive = 5
    # minimum words of a line or paragraph for deduplication by these; shorter ones always stay
    shortest: NotNegative = 5
    # keep only the first of documents with one address, as for several snapshots of a crawl
    urls: bool = False
    # sources in falling order of quality; a document of the best source survives
    priority: tuple[str, ...] = ()
    # figure of the metadata, such as classifier_score: among documents of equal priority the highest survives
    quality: str = ""


class DecontaminationConfig(Config):
    """MT-NLG's n-gram rule: evaluation text is cut out with its surroundings."""

    # files and folders of evaluation texts in addition to the harvest's own passages; harvest.read has its defaults
    against: Annotated[tuple[str, ...], BeforeValidator(_split)] = ()
    # words of an n-gram key
    ngram: Positive = 13
    # minimum words of an evaluation text; one of fewer than `ngram` words is a single key
    shortest: Positive = 8
    # occurrences in the corpus from which a key is a common phrase and is spared
    common: Positive = 10
    # characters removed on each side of a match, up to the end of the sentence
    margin: NotNegative = 200
    # minimum characters of a remaining piece
    piece: NotNegative = 200
    # maximum number of pieces; a document that is cut into more is dropped
    pieces: Positive = 10


class CurateConfig(Config):
    """Settings of a curation: every threshold of every step."""

    extract: ExtractConfig = ExtractConfig()
    language: LanguageConfig = LanguageConfig()
    quality: QualityConfig = QualityConfig()
    repetition: RepetitionConfig = RepetitionConfig()
    c4: C4Config = C4Config()
    fineweb: FineWebConfig = FineWebConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    classifier: ClassifierConfig = ClassifierConfig()
    selection: SelectionConfig = SelectionConfig()
    # keep every document unchanged: no filter, deduplication or decontamination; pages of HTML are still extracted
    keep_all: bool = False
    # filters of single documents in the order in which they run; corpus/clean/filters.py lists all names
    filters: Annotated[tuple[str, ...], Short("filters")] = ("language", "quality", "repetition")
    dedup: DedupConfig = DedupConfig()
    decontamination: DecontaminationConfig = DecontaminationConfig()
    # source -> weight, normalised over the sources; unnamed sources get 0; empty: weights proportional to bytes
    blend: dict[str, Weight] = Field(default_factory=dict)
    # CPU seconds that a step may spend on one document before it is dropped
    document_seconds: Positive = 60
    # bytes of text per document shard
    shard_bytes: Positive = 64 << 20
