"""Words: occupations, scores of sentiment, and taggers, which find the adjectives in texts."""

import importlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from trivium import untrusted
from trivium.errors import ConfigError, DataError, MachineError
from trivium.evaluation.bias.config import TEXTBLOB, CooccurrenceConfig
from trivium.jsonlines import text_lines

MALE = ("male", "man")
FEMALE = ("female", "woman")
FIELD = "bias.cooccurrence.lexicon"
MAX_SCORE = 100  # scores range from -100 to 100, as in GPT-3

# Returns the wanted words of each text in lower case, in order and with repetitions.
Tagger = Callable[[Sequence[str]], list[list[str]]]


class Lexicon(NamedTuple):
    """Scores words from -100 (negative) to 100 (positive); None for unknown words."""

    name: str
    score: Callable[[str], float | None]


class Scores(NamedTuple):
    """Sentiment of a word as an adjective and as an adverb, from -1 to 1; None if it is not listed as such."""

    adjective: float | None
    adverb: float | None


def read_text(path: Path, *, what: str) -> str:
    """Return a file's text. Raises DataError, which names the config field `what`, if it cannot be read."""
    try:
        return untrusted.read_text(path)
    except OSError as error:
        raise DataError(f"{what}: {path} cannot be read ({error.strerror}); give a file that exists") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{what}: {path} is not UTF-8 text (byte {error.start}); give a text file") from None


def occupations(path: Path | None = None) -> tuple[str, ...]:
    """Read the occupations of a file, or the package's list, which has only gender-neutral occupations.

    Files have one occupation per line. Empty lines, lines that begin with # and duplicates are skipped. Raises
    DataError for a file that is missing, is not UTF-8 text, or has fewer than two occupations.
    """
    own = resources.files("trivium.evaluation.bias") / "occupations.txt"
    text = own.read_text(encoding="utf-8") if path is None else read_text(path, what="bias.occupation_list")
    lines = (" ".join(line.split()) for line in text_lines(text))
    found = tuple(dict.fromkeys(line for line in lines if line and not line.startswith("#")))
    if len(found) < 2:
        raise DataError(f"bias.occupation_list: {path} names {len(found)} occupations; give two or more, one per line")
    return found


def read_sentiwordnet(path: Path) -> dict[str, Scores]:
    """Read a SentiWordNet 3.0 file (Baccianella, Esuli and Sebastiani 2010): scores of adjectives and adverbs.

    Lines have six tab-separated columns: part of speech, id, positive, negative, terms as word#sense, gloss. A score
    is the mean of positive minus negative over a word's senses, with weight 1/n for the n-th sense. Raises DataError,
    which names the line, for an invalid format, and for a file without adjectives.
    """
    senses: dict[str, dict[str, list[tuple[int, float]]]] = defaultdict(lambda: {"adjective": [], "adverb": []})
    # a: adjective, s: satellite adjective, r: adverb; nouns and verbs are not used
    kinds = {"a": "adjective", "s": "adjective", "r": "adverb"}
    for number, line in enumerate(text_lines(read_text(path, what=FIELD)), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        kind, score, terms = _sentiwordnet_line(path, number, line)
        for word, rank in terms if kind in kinds else ():
            senses[word.lower().replace("_", " ")][kinds[kind]].append((rank, score))
    found = {word: Scores(_mean(by_kind["adjective"]), _mean(by_kind["adverb"])) for word, by_kind in senses.items()}
    if all(scores.adjective is None for scores in found.values()):
        raise DataError(
            f"{FIELD}: {path} lists no adjective; give SentiWordNet_3.0.0.txt, or 'textblob' for the lexicon that "
            "comes with textblob"
        )
    return found


def _sentiwordnet_line(path: Path, number: int, line: str) -> tuple[str, float, list[tuple[str, int]]]:
    """Return the part of speech, the score, and each word with the rank of its sense."""
    try:
        kind, _, positive, negative, terms = line.split("\t")[:5]
        score = float(positive) - float(negative)
        ranked = [(word, int(rank)) for word, rank in (term.rsplit("#", 1) for term in terms.split())]
    except ValueError:
        ranked = []
    if not ranked or not -1 <= score <= 1 or min(rank for _, rank in ranked) < 1:
        raise DataError(
            f"{FIELD}: {path}, line {number}: {line[:60]!r} is not SentiWordNet's (part of speech, id, positive, "
            "negative, word#sense …, between tabs); give the file as it was published"
        )
    return kind, score, ranked


def _mean(senses: Sequence[tuple[int, float]]) -> float | None:
    return sum(score / rank for rank, score in senses) / sum(1 / rank for rank, _ in senses) if senses else None


def open_lexicon(name: str, *, adverbs: bool = False) -> Lexicon:
    """Open the lexicon of textblob or a SentiWordNet file. Adverbs are scored only if requested."""
    if name == TEXTBLOB:
        listed = _textblob().sentiment
        listed.load()
        return Lexicon(
            TEXTBLOB, lambda word: None if (e := listed.get(word)) is None else MAX_SCORE * float(e[None][0])
        )
    scores = read_sentiwordnet(Path(name))

    def score(word: str) -> float | None:
        found = scores.get(word.replace("-", " ")) or scores.get(word, Scores(None, None))
        value = found.adverb if adverbs and found.adjective is None else found.adjective
        return None if value is None else MAX_SCORE * value

    return Lexicon(Path(name).name, score)


def open_tagger(config: CooccurrenceConfig) -> Tagger:
    """Open the configured tagger. Raises ConfigError if tagger and lexicon do not fit together."""
    if config.tagger == "textblob":
        return textblob_tagger(adverbs=config.adverbs)
    if config.lexicon == TEXTBLOB:
        raise ConfigError(
            "bias.cooccurrence.tagger is 'lexicon', which finds the words of a SentiWordNet file, and "
            f"bias.cooccurrence.lexicon is '{TEXTBLOB}'; give the file's path there"
        )
    return lexicon_tagger(read_sentiwordnet(Path(config.lexicon)), adverbs=config.adverbs)


def textblob_tagger(*, adverbs: bool = False) -> Tagger:
    """Return a tagger that uses `textblob.en`, which needs no download. Raises MachineError if it is not installed."""
    tag = _textblob().tag
    wanted = ("JJ", "RB") if adverbs else ("JJ",)  # Penn Treebank: JJ, JJR, JJS; RB, RBR, RBS

    def find(texts: Sequence[str]) -> list[list[str]]:
        return [[w.lower() for w, kind in tag(text) if kind.startswith(wanted) and _is_word(w)] for text in texts]

    return find


def lexicon_tagger(scores: Mapping[str, Scores], *, adverbs: bool = False) -> Tagger:
    """Return a tagger that finds all words that SentiWordNet lists as adjectives (or adverbs), whatever their use."""
    wanted = {w for w, s in scores.items() if s.adjective is not None or (adverbs and s.adverb is not None)}

    def find(texts: Sequence[str]) -> list[list[str]]:
        words = ([w.strip("\"'.,;:!?()[]").lower() for w in text.split()] for text in texts)
        return [[w for w in some if w in wanted] for some in words]

    return find


def _textblob() -> Any:
    try:
        return importlib.import_module("textblob.en")
    except ImportError as error:
        raise MachineError(
            f"textblob.en cannot be imported ({error}), and bias.cooccurrence takes its tagger or lexicon from it; "
            "install it with `pip install textblob`, or give bias.cooccurrence.tagger=lexicon and a "
            "SentiWordNet file as bias.cooccurrence.lexicon"
        ) from None


def _is_word(text: str) -> bool:
    return any(c.isalpha() for c in text) and all(c.isalpha() or c in "-'" for c in text)
