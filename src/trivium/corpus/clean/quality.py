"""Rules on the figures of a document's words and lines, each with its threshold in the config.

They are those of MT-NLG, Gopher (Rae et al., arXiv 2112.11446, A1.1), RefinedWeb and FineWeb (Penedo et al.,
arXiv 2406.17557, section 3.6, and its published code).
"""

import operator
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from trivium.config import Config
from trivium.corpus.config import FineWebConfig, QualityConfig
from trivium.corpus.document import Document
from trivium.corpus.kernels.characters import WEB_STOP
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
from trivium.corpus.kernels.repeats import AGAIN_CHARACTERS, PART_CHARACTERS, repeats
from trivium.corpus.kernels.texts import joined
from trivium.corpus.steps import Drop, Keep, Step, Verdict, measured_step, noted

_SHORT_LINE = 30  # characters, in the rules of RefinedWeb
# C4's policy phrases. A line with one of them is no content.
_POLICY = re.compile(
    r"terms of use|terms of service|terms and conditions|privacy policy|cookie policy|uses? cookies|use of cookies"
    r"|all rights reserved|(?:enable|activate|requires|turn on) javascript|lorem ipsum",
    re.I,
)
# RefinedWeb's line rules: menu words, calls to act in short lines, counters, nothing but digits.
_MENU = re.compile(r"^(?:sign[ -]?(?:in|up)|log ?in|register|home|menu|search|skip to \w+)\W*$", re.I)
_CALL = re.compile(
    r"(?:read more|items? in cart|add to cart|subscribe|share (?:on|this)(?: \w+)?|follow us|back to top)\W*$", re.I
)
# Possessive (`*+`), so that a million points after a digit take linear time.
_COUNTER = re.compile(r"^\W*\d[\d.,k]*+\s*+(?:likes?|shares?|comments?|views?|retweets?|followers|posts?)?+\W*$", re.I)
Figures = dict[str, float]  # counts, and shares of words or lines


class Rule(NamedTuple):
    """A document is dropped for `reason` if `is_broken(figure, limit)`.

    setting: the name of the limit in the config. lifted: a limit that no document breaks.
    """

    figure: str
    setting: str
    is_broken: Callable[[float, float], bool]
    lifted: str
    reason: str


# In the order in which they are applied.
QUALITY_RULES = (
    Rule("characters", "characters", operator.lt, "0", "under {} characters"),
    Rule("words", "words_low", operator.lt, "0", "under {} words"),
    Rule("words", "words_high", operator.gt, "1000000000", "over {} words"),
    Rule("word_letters", "word_letters_low", operator.lt, "0", "words too short"),
    Rule("word_letters", "word_letters_high", operator.gt, "1e9", "words too long"),
    Rule("symbols", "symbols", operator.gt, "1", "too many symbols"),
    Rule("alphabetic_words", "alphabetic_words", operator.lt, "0", "too many words without letters"),
    Rule("common_words", "common_words", operator.lt, "0", "too few common words"),
    Rule("bullet_lines", "bullet_lines", operator.gt, "1", "too many bullet lines"),
    Rule("ellipsis_lines", "ellipsis_lines", operator.gt, "1", "too many lines end in an ellipsis"),
    Rule("punctuated_lines", "punctuated_lines", operator.lt, "0", "too few lines end in punctuation"),
    Rule("short_lines", "short_lines", operator.gt, "1", "too many short lines"),
    Rule("boilerplate_words", "boilerplate_words", operator.gt, "1", "boilerplate"),
)
_NOT_GOPHER = ("characters", "punctuated_lines", "short_lines", "boilerplate_words")
GOPHER_RULES = tuple(rule for rule in QUALITY_RULES if rule.figure not in _NOT_GOPHER)
FINEWEB_RULES = (
    Rule("punctuated_lines", "punctuated_lines", operator.le, "0", "too few lines end in punctuation"),
    Rule("short_lines", "short_lines", operator.ge, "1", "too many short lines"),
    Rule("duplicate_characters", "duplicate_characters", operator.ge, "1", "repeated lines"),
    Rule("newlines_per_word", "newlines_per_word", operator.gt, "1", "a list"),
)


def quality_step(config: QualityConfig) -> Step:
    """Return the step that drops a document at the first rule it breaks; metadata gains `quality`, the figures."""
    return _step("quality", measure_quality, QUALITY_RULES, config, "quality")


def gopher_step(config: QualityConfig) -> Step:
    """Return the step with the rules of Gopher alone; metadata gains `gopher`."""
    return _step("gopher", measure_quality, GOPHER_RULES, config, "quality")


def fineweb_step(config: FineWebConfig) -> Step:
    """Return the step with the rules that FineWeb added; metadata gains `fineweb`."""
    measure = partial(measure_fineweb, short_line=config.short_line)
    return _step("fineweb", measure, FINEWEB_RULES, config, "fineweb")


def _step(
    name: str,
    measure: Callable[[Sequence[str]], Sequence[Figures]],
    rules: Sequence[Rule],
    config: Config,
    section: str,
) -> Step:
    shown = {rule.figure for rule in rules}

    def verdict(document: Document, figures: Figures) -> Verdict:
        broken = broken_rule(figures, config, rules)
        if broken is not None:
            limit = getattr(config, broken.setting)
            return Drop(broken.reason.format(limit), f"{section}.{broken.setting}={broken.lifted}")
        return Keep(noted(document, **{name: {k: round(v, 4) for k, v in figures.items() if k in shown}}))

    return measured_step(name, measure, verdict)


def broken_rule(figures: Figures, config: Config, rules: Sequence[Rule]) -> Rule | None:
    """Return the first rule that a document breaks."""
    broken = (rule for rule in rules if rule.is_broken(figures[rule.figure], getattr(config, rule.setting)))
    return next(broken, None)


def measure_quality(strings: Sequence[str]) -> list[Figures]:
    """Return the figures of each text for the rules of quality and Gopher."""
    texts = joined(strings)
    counts, suspects = measures(texts, short=_SHORT_LINE)
    boilerplate = [0] * texts.num_texts
    for text, start, end, words in zip(*(column.tolist() for column in suspects), strict=True):
        line = texts.data[start:end].tobytes().decode("utf-8", "surrogatepass")
        boilerplate[text] += words if is_boilerplate(line) else 0
    return [_quality_figures(row, words) for row, words in zip(counts.tolist(), boilerplate, strict=True)]


def _quality_figures(counts: list[int], boilerplate: int) -> Figures:
    words, lines = max(counts[WORDS], 1), max(counts[LINES], 1)
    return {
        "characters": counts[CHARACTERS],
        "words": counts[WORDS],
        "word_letters": counts[WORD_CHARACTERS] / words,
        "symbols": max(counts[HASHES], counts[ELLIPSES]) / words,
        "bullet_lines": counts[BULLET_LINES] / lines,
        "ellipsis_lines": counts[ELLIPSIS_LINES] / lines,
        "alphabetic_words": counts[LETTER_WORDS] / words,
        "common_words": counts[COMMON].bit_count(),
        "punctuated_lines": counts[STOPPED_LINES] / lines,
        "short_lines": counts[SHORT_LINES] / lines,
        "boilerplate_words": boilerplate / words,
    }


def measure_fineweb(strings: Sequence[str], *, short_line: int) -> list[Figures]:
    """Return FineWeb's figures of each text, without empty lines. short_line: characters in a short line at most."""
    texts = joined(strings)
    every, _ = measures(texts, short=short_line + 1, stops=WEB_STOP)
    repeated, _ = repeats(texts, tops=0, repeated=0)
    return [
        {
            "punctuated_lines": counts[STOPPED_LINES] / max(counts[LINES], 1),
            "short_lines": counts[SHORT_LINES] / max(counts[LINES], 1),
            "duplicate_characters": parts[AGAIN_CHARACTERS] / max(parts[PART_CHARACTERS], 1),
            "newlines_per_word": max(counts[LINES] - 1, 0) / max(counts[WORDS], 1),
        }
        for counts, parts in zip(every.tolist(), repeated.tolist(), strict=True)
    ]


def is_boilerplate(line: str) -> bool:
    """Return whether a line is navigation, a counter, a call to act, or a cookie or policy notice."""
    words = len(line.split())
    if words <= CALL_WORDS and (_COUNTER.match(line) or _MENU.match(line) or _CALL.search(line)):
        return True
    return words <= NOTICE_WORDS and bool(_POLICY.search(line))
