"""The filters FineWeb added (Penedo et al., arXiv 2406.17557, section 3.6, and its published code)."""

from typing import NamedTuple

from trivium.corpus.config import FineWebConfig
from trivium.corpus.document import Document
from trivium.corpus.steps import Drop, Keep, Step, Verdict, noted

_STOPS = (".", "'", '"', "!", "?", "”", "’", "…")


class Figures(NamedTuple):
    """Shares of a document's lines, characters and words, in the order the rules look at them."""

    punctuated_lines: float
    short_lines: float
    duplicate_characters: float
    newlines_per_word: float


def fineweb_step(config: FineWebConfig) -> Step:
    """The step that drops a document at the first rule it breaks; metadata gains `fineweb`, the figures."""

    def judge(document: Document) -> Verdict:
        figures = measure(document.text, config)
        broken = broken_rule(figures, config)
        shown = {name: round(value, 4) for name, value in figures._asdict().items()}
        return Drop(broken) if broken else Keep(noted(document, fineweb=shown))

    return Step("fineweb", judge)


def measure(text: str, config: FineWebConfig) -> Figures:
    """Every figure of a text; lines without anything in them are no lines."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    seen: set[str] = set()
    repeated = 0
    for line in lines:
        repeated += len(line) if line in seen else 0
        seen.add(line)
    return Figures(
        punctuated_lines=sum(line.endswith(_STOPS) for line in lines) / max(len(lines), 1),
        short_lines=sum(len(line) <= config.short_line for line in lines) / max(len(lines), 1),
        duplicate_characters=repeated / max(sum(map(len, lines)), 1),
        newlines_per_word=max(len(lines) - 1, 0) / max(len(text.split()), 1),
    )


def broken_rule(figures: Figures, config: FineWebConfig) -> str:
    """The name of the first rule a document breaks, or nothing."""
    rules = {
        "too few lines end in punctuation": figures.punctuated_lines <= config.punctuated_lines,
        "too many short lines": figures.short_lines >= config.short_lines,
        "repeated lines": figures.duplicate_characters >= config.duplicate_characters,
        "a list": figures.newlines_per_word > config.newlines_per_word,
    }
    return next((name for name, broken in rules.items() if broken), "")
