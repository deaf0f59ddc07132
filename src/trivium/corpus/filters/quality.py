"""Heuristics on a document's words and lines: each a named rule with its threshold in the config."""

import re
from typing import NamedTuple

from trivium.corpus.config import QualityConfig
from trivium.corpus.document import Document
from trivium.corpus.steps import Drop, Keep, Step, Verdict, noted

_COMMON = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
_BULLETS = ("-", "*", "•", "‣", "▪", "◦", "–")
_STOPS = (".", "!", "?", '"', "'", "”", "’", ")", ":", ";", "…", ",")
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
_COUNTER = re.compile(
    r"^\W*\d[\d.,k]*\s*(?:likes?|shares?|comments?|views?|retweets?|followers|posts?)?\W*$", re.I
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

    def judge(document: Document) -> Verdict:
        figures = measure(document.text)
        broken = broken_rule(figures, config)
        if broken:
            return Drop(broken)
        shown = {k: round(v, 4) if isinstance(v, float) else v for k, v in figures._asdict().items()}
        return Keep(noted(document, quality=shown))

    return Step("quality", judge)


def gopher_step(config: QualityConfig) -> Step:
    """The step with the rules of Gopher alone (Rae et al., arXiv 2112.11446, A1.1); metadata gains `gopher`."""

    def judge(document: Document) -> Verdict:
        figures = measure(document.text)
        broken = broken_rule(figures, config, only=_GOPHER)
        shown = {name: round(getattr(figures, name), 4) for name in _GOPHER_FIGURES}
        return Drop(broken) if broken else Keep(noted(document, gopher=shown))

    return Step("gopher", judge)


def measure(text: str) -> Figures:
    """Every figure of a text."""
    words = text.split()
    lines = [stripped for line in text.split("\n") if (stripped := line.strip())]
    num_words, num_lines = max(len(words), 1), max(len(lines), 1)
    letters = sum(map(len, words))
    signs = max(text.count("#"), text.count("…") + text.count("..."))
    lowered = {word.strip(".,;:!?()\"'").lower() for word in words}
    return Figures(
        characters=len(text),
        words=len(words),
        word_letters=letters / num_words,
        symbols=signs / num_words,
        bullet_lines=sum(line.startswith(_BULLETS) for line in lines) / num_lines,
        ellipsis_lines=sum(line.endswith(("…", "...")) for line in lines) / num_lines,
        alphabetic_words=sum(any(map(str.isalpha, word)) for word in words) / num_words,
        common_words=len(_COMMON & lowered),
        punctuated_lines=sum(line.endswith(_STOPS) for line in lines) / num_lines,
        short_lines=sum(len(line) < 30 for line in lines) / num_lines,
        boilerplate_words=sum(len(line.split()) for line in lines if is_boilerplate(line)) / num_words,
    )


def is_boilerplate(line: str) -> bool:
    """Whether a line is navigation, a counter, a call to act, or a cookie or policy notice."""
    words = line.split()
    if len(words) <= 10 and (_MENU.match(line) or _CALL.search(line) or _COUNTER.match(line)):
        return True
    return bool(_POLICY.search(line)) and len(words) <= 60


def broken_rule(figures: Figures, config: QualityConfig, *, only: frozenset[str] | None = None) -> str:
    """The name of the first rule a document breaks, or nothing; `only`: of the rules on these figures."""
    rules = (
        ("characters", f"under {config.characters} characters", figures.characters < config.characters),
        ("words", f"under {config.words_low} words", figures.words < config.words_low),
        ("words", f"over {config.words_high} words", figures.words > config.words_high),
        ("word_letters", "words too short", figures.word_letters < config.word_letters_low),
        ("word_letters", "words too long", figures.word_letters > config.word_letters_high),
        ("symbols", "too many symbols", figures.symbols > config.symbols),
        (
            "alphabetic_words",
            "too many words without letters",
            figures.alphabetic_words < config.alphabetic_words,
        ),
        ("common_words", "too few common words", figures.common_words < config.common_words),
        ("bullet_lines", "too many bullet lines", figures.bullet_lines > config.bullet_lines),
        (
            "ellipsis_lines",
            "too many lines end in an ellipsis",
            figures.ellipsis_lines > config.ellipsis_lines,
        ),
        (
            "punctuated_lines",
            "too few lines end in punctuation",
            figures.punctuated_lines < config.punctuated_lines,
        ),
        ("short_lines", "too many short lines", figures.short_lines > config.short_lines),
        ("boilerplate_words", "boilerplate", figures.boilerplate_words > config.boilerplate_words),
    )
    return next((rule for figure, rule, broken in rules if broken and (only is None or figure in only)), "")
