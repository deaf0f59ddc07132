"""Heuristics on a document's words and lines: each a named rule with its threshold in the config."""

import re
from collections.abc import Sequence
from types import MappingProxyType
from typing import NamedTuple

from trivium.corpus.config import QualityConfig
from trivium.corpus.document import Document
from trivium.corpus.kernels.measures import (
    BULLET_LINES,
    CALL_WORDS,
    CHARACTERS,
    COMMON,
    ELLIPSES,
    ELLIPSIS_LINES,
    HASHES,
    LETTER_WORDS,
    LINES,
    NOTICE_WORDS,
    SHORT_LINES,
    STOPPED_LINES,
    WORD_CHARACTERS,
    WORDS,
    measures,
)
from trivium.corpus.kernels.texts import joined
from trivium.corpus.measure import Found, Measure
from trivium.corpus.steps import Drop, Keep, Step, Verdict, measured_step, noted

_SHORT_LINE = 30  # characters
# C4's policy phrases; a line that holds one is no content
_POLICY = re.compile(
    r"terms of use|terms of service|terms and conditions|privacy policy|cookie policy|uses? cookies|use of cookies"
    r"|all rights reserved|(?:enable|activate|requires|turn on) javascript|lorem ipsum",
    re.I,
)
# RefinedWeb's line rules: menu words, calls to act in short lines, counters, nothing but digits
_MENU = re.compile(r"^(?:sign[ -]?(?:in|up)|log ?in|register|home|menu|search|skip to \w+)\W*$", re.I)
_CALL = re.compile(
    r"(?:read more|items? in cart|add to cart|subscribe|share (?:on|this)(?: \w+)?|follow us|back to top)\W*$",
    re.I,
)
# possessive (`*+`): a million points after a digit are passed once, not once for each of them
_COUNTER = re.compile(
    r"^\W*\d[\d.,k]*+\s*+(?:likes?|shares?|comments?|views?|retweets?|followers|posts?)?+\W*$", re.I
)
_GOPHER_FIGURES = (
    "words",
    "word_letters",
    "symbols",
    "bullet_lines",
    "ellipsis_lines",
    "alphabetic_words",
    "common_words",
)
_GOPHER = frozenset(_GOPHER_FIGURES)


class Figures(NamedTuple):
    """What the rules look at; shares are of words or lines as named."""

    characters: int
    words: int
    word_letters: float
    symbols: float
    bullet_lines: float
    ellipsis_lines: float
    alphabetic_words: float
    common_words: int
    punctuated_lines: float
    short_lines: float
    boilerplate_words: float


def quality_step(config: QualityConfig) -> Step:
    """The step that drops a document at the first rule it breaks; metadata gains `quality`, the figures."""

    def verdict(document: Document, found: Found) -> Verdict:
        figures = Figures(*found)
        broken = _broken(figures, config)
        if broken is not None:
            return broken
        shown = {k: round(v, 4) if isinstance(v, float) else v for k, v in figures._asdict().items()}
        return Keep(noted(document, quality=shown))

    return measured_step("quality", _MEASURE, verdict)


def gopher_step(config: QualityConfig) -> Step:
    """The step with the rules of Gopher alone (Rae et al., arXiv 2112.11446, A1.1); metadata gains `gopher`."""

    def verdict(document: Document, found: Found) -> Verdict:
        figures = Figures(*found)
        broken = _broken(figures, config, only=_GOPHER)
        shown = {name: round(getattr(figures, name), 4) for name in _GOPHER_FIGURES}
        return broken or Keep(noted(document, gopher=shown))

    return measured_step("gopher", _MEASURE, verdict)


def measure(text: str) -> Figures:
    """Every figure of a text."""
    return measure_all([text])[0]


def measure_all(strings: Sequence[str]) -> list[Figures]:
    """Every figure of each text."""
    texts = joined(strings)
    counts, suspects = measures(texts, short=_SHORT_LINE)
    boilerplate = [0] * texts.num_texts
    for text, start, end, words in zip(*(column.tolist() for column in suspects), strict=True):
        line = texts.data[start:end].tobytes().decode("utf-8", "surrogatepass")
        boilerplate[text] += words if is_boilerplate(line) else 0
    return [_figures(row, words) for row, words in zip(counts.tolist(), boilerplate, strict=True)]


def _figures(counts: list[int], boilerplate: int) -> Figures:
    words, lines = max(counts[WORDS], 1), max(counts[LINES], 1)
    return Figures(
        characters=counts[CHARACTERS],
        words=counts[WORDS],
        word_letters=counts[WORD_CHARACTERS] / words,
        symbols=max(counts[HASHES], counts[ELLIPSES]) / words,
        bullet_lines=counts[BULLET_LINES] / lines,
        ellipsis_lines=counts[ELLIPSIS_LINES] / lines,
        alphabetic_words=counts[LETTER_WORDS] / words,
        common_words=counts[COMMON].bit_count(),
        punctuated_lines=counts[STOPPED_LINES] / lines,
        short_lines=counts[SHORT_LINES] / lines,
        boilerplate_words=boilerplate / words,
    )


_MEASURE = Measure("quality", measure_all, MappingProxyType({}))


def is_boilerplate(line: str) -> bool:
    """Whether a line is navigation, a counter, a call to act, or a cookie or policy notice."""
    words = len(line.split())
    if words <= CALL_WORDS and (_COUNTER.match(line) or _MENU.match(line) or _CALL.search(line)):
        return True
    return words <= NOTICE_WORDS and bool(_POLICY.search(line))


def broken_rule(figures: Figures, config: QualityConfig) -> str:
    """The name of the first rule a document breaks, or nothing."""
    broken = _broken(figures, config)
    return broken.reason if broken else ""


def _broken(figures: Figures, config: QualityConfig, *, only: frozenset[str] | None = None) -> Drop | None:
    """The first rule that a document breaks, with the setting that lifts it; `only`: of the rules on these figures."""
    found, limits = figures, config
    rules = (
        (
            "characters",
            f"under {limits.characters} characters",
            "characters=0",
            found.characters < limits.characters,
        ),
        ("words", f"under {limits.words_low} words", "words_low=0", found.words < limits.words_low),
        (
            "words",
            f"over {limits.words_high} words",
            "words_high=1000000000",
            found.words > limits.words_high,
        ),
        (
            "word_letters",
            "words too short",
            "word_letters_low=0",
            found.word_letters < limits.word_letters_low,
        ),
        (
            "word_letters",
            "words too long",
            "word_letters_high=1e9",
            found.word_letters > limits.word_letters_high,
        ),
        ("symbols", "too many symbols", "symbols=1", found.symbols > limits.symbols),
        (
            "alphabetic_words",
            "too many words without letters",
            "alphabetic_words=0",
            found.alphabetic_words < limits.alphabetic_words,
        ),
        ("common_words", "too few common words", "common_words=0", found.common_words < limits.common_words),
        ("bullet_lines", "too many bullet lines", "bullet_lines=1", found.bullet_lines > limits.bullet_lines),
        (
            "ellipsis_lines",
            "too many lines end in an ellipsis",
            "ellipsis_lines=1",
            found.ellipsis_lines > limits.ellipsis_lines,
        ),
        (
            "punctuated_lines",
            "too few lines end in punctuation",
            "punctuated_lines=0",
            found.punctuated_lines < limits.punctuated_lines,
        ),
        ("short_lines", "too many short lines", "short_lines=1", found.short_lines > limits.short_lines),
        (
            "boilerplate_words",
            "boilerplate",
            "boilerplate_words=1",
            found.boilerplate_words > limits.boilerplate_words,
        ),
    )
    return next(
        (
            Drop(rule, f"quality.{remedy}")
            for figure, rule, remedy, broken in rules
            if broken and (only is None or figure in only)
        ),
        None,
    )
