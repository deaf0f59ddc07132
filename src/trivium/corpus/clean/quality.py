"""Heuristics on a document's words and lines: each a named rule with its threshold in the config."""

import re
from collections.abc import Sequence
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
    r"(?:read more|items? in cart|add to cart|subscribe|share (?:on|this)(?: \w+)?|follow us|back to top)\W*$", re.I
)
# possessive (`*+`): a million points after a digit are passed once, not once for each of them
_COUNTER = re.compile(r"^\W*\d[\d.,k]*+\s*+(?:likes?|shares?|comments?|views?|retweets?|followers|posts?)?+\W*$", re.I)
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
    """Return the step that drops a document at the first rule it breaks; metadata gains `quality`, the figures."""

    def verdict(document: Document, figures: Figures) -> Verdict:
        broken = broken_rule(figures, config)
        if broken is not None:
            return broken
        shown = {k: round(v, 4) if isinstance(v, float) else v for k, v in figures._asdict().items()}
        return Keep(noted(document, quality=shown))

    return measured_step("quality", measure_all, verdict)


def gopher_step(config: QualityConfig) -> Step:
    """Return the step with the rules of Gopher alone (Rae et al., arXiv 2112.11446, A1.1); metadata gains `gopher`."""

    def verdict(document: Document, figures: Figures) -> Verdict:
        broken = broken_rule(figures, config, only=_GOPHER)
        shown = {name: round(getattr(figures, name), 4) for name in _GOPHER_FIGURES}
        return broken or Keep(noted(document, gopher=shown))

    return measured_step("gopher", measure_all, verdict)


def measure_all(strings: Sequence[str]) -> list[Figures]:
    """Return every figure of each text."""
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


def is_boilerplate(line: str) -> bool:
    """Return whether a line is navigation, a counter, a call to act, or a cookie or policy notice."""
    words = len(line.split())
    if words <= CALL_WORDS and (_COUNTER.match(line) or _MENU.match(line) or _CALL.search(line)):
        return True
    return words <= NOTICE_WORDS and bool(_POLICY.search(line))


def broken_rule(figures: Figures, config: QualityConfig, *, only: frozenset[str] | None = None) -> Drop | None:
    """Return the first rule that a document breaks, with the setting that lifts it. only: rules on these figures."""
    for figure, setting, is_minimum, remedy, rule in _RULES:
        value, limit = getattr(figures, figure), getattr(config, setting)
        if (value < limit if is_minimum else value > limit) and (only is None or figure in only):
            return Drop(rule.format(limit), f"quality.{setting}={remedy}")
    return None


# In the order in which the rules are applied: the figure, the setting that limits it, whether that is a minimum, the
# value under which no document breaks the rule, and the rule's name with the limit in it.
_RULES = (
    ("characters", "characters", True, "0", "under {} characters"),
    ("words", "words_low", True, "0", "under {} words"),
    ("words", "words_high", False, "1000000000", "over {} words"),
    ("word_letters", "word_letters_low", True, "0", "words too short"),
    ("word_letters", "word_letters_high", False, "1e9", "words too long"),
    ("symbols", "symbols", False, "1", "too many symbols"),
    ("alphabetic_words", "alphabetic_words", True, "0", "too many words without letters"),
    ("common_words", "common_words", True, "0", "too few common words"),
    ("bullet_lines", "bullet_lines", False, "1", "too many bullet lines"),
    ("ellipsis_lines", "ellipsis_lines", False, "1", "too many lines end in an ellipsis"),
    ("punctuated_lines", "punctuated_lines", True, "0", "too few lines end in punctuation"),
    ("short_lines", "short_lines", False, "1", "too many short lines"),
    ("boilerplate_words", "boilerplate_words", False, "1", "boilerplate"),
)
