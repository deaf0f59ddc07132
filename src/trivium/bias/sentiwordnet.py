"""Read a SentiWordNet 3.0 file (Baccianella, Esuli and Sebastiani 2010), which users provide.

Lines have six tab-separated columns: part of speech, id, positive, negative, terms as word#sense, gloss.
"""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from trivium.bias.lexicons import read_text
from trivium.errors import DataError
from trivium.jsonlines import text_lines

FIELD = "bias.cooccurrence.lexicon"
ADJECTIVE, ADVERB = frozenset("as"), frozenset("r")  # a: adjective, s: satellite adjective, r: adverb


class Scores(NamedTuple):
    """Sentiment of a word as an adjective and as an adverb, from -1 to 1; None if it is not listed as such."""

    adjective: float | None
    adverb: float | None


class _Sense(NamedTuple):
    kind: str
    rank: int
    score: float  # positive minus negative


def read_sentiwordnet(path: Path) -> dict[str, Scores]:
    """Return the scores of adjectives and adverbs: the mean over a word's senses, with weight 1/n for the n-th
    sense.

    Raises DataError, which names the line, for an invalid format, and for a file without adjectives.
    """
    senses: dict[str, list[_Sense]] = defaultdict(list)
    for number, line in enumerate(text_lines(read_text(path, what=FIELD)), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            for word, sense in _parsed(path, number, line):
                senses[word].append(sense)
    found = {word: Scores(_mean(s, ADJECTIVE), _mean(s, ADVERB)) for word, s in senses.items()}
    found = {word: s for word, s in found.items() if s != (None, None)}
    if not adjectives_of(found, adverbs=False):
        raise DataError(
            f"{FIELD}: {path} lists no adjective; give SentiWordNet_3.0.0.txt, or 'textblob' for the lexicon that "
            "comes with textblob"
        )
    return found


def adjectives_of(scores: Mapping[str, Scores], *, adverbs: bool) -> frozenset[str]:
    """Return the words listed as adjectives, and with `adverbs` also those listed as adverbs."""
    return frozenset(w for w, s in scores.items() if s.adjective is not None or (adverbs and s.adverb is not None))


def _parsed(path: Path, number: int, line: str) -> list[tuple[str, _Sense]]:
    columns = line.split("\t")
    try:
        kind, _, positive, negative, terms = columns[:5]
        score = float(positive) - float(negative)
        ranked = [term.rsplit("#", 1) for term in terms.split()]
        found = [(word.lower().replace("_", " "), _Sense(kind, int(rank), score)) for word, rank in ranked]
    except ValueError:
        found = []
    if not found or not all(s.rank >= 1 and -1 <= s.score <= 1 for _, s in found):
        raise DataError(
            f"{FIELD}: {path}, line {number}: {line[:60]!r} is not SentiWordNet's (part of speech, id, positive, "
            "negative, word#sense …, between tabs); give the file as it was published"
        )
    return found


def _mean(senses: list[_Sense], kinds: frozenset[str]) -> float | None:
    mine = [s for s in senses if s.kind in kinds]
    weights = sum(1 / s.rank for s in mine)
    return sum(s.score / s.rank for s in mine) / weights if mine else None
