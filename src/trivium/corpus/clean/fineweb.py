"""The filters FineWeb added (Penedo et al., arXiv 2406.17557, section 3.6, and its published code)."""

from collections.abc import Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from trivium.corpus.config import FineWebConfig
from trivium.corpus.document import Document
from trivium.corpus.kernels.characters import WEB_STOP
from trivium.corpus.kernels.measures import LINES, SHORT_LINES, STOPPED_LINES, WORDS, measures
from trivium.corpus.kernels.repeats import AGAIN_CHARACTERS, PART_CHARACTERS, repeats
from trivium.corpus.kernels.texts import joined
from trivium.corpus.steps import Drop, Keep, Step, Verdict, measured_step, noted


class Figures(NamedTuple):
    """Shares of a document's lines, characters and words, in the order the rules look at them."""

    punctuated_lines: float
    short_lines: float
    duplicate_characters: float
    newlines_per_word: float


def fineweb_step(config: FineWebConfig) -> Step:
    """Return the step that drops a document at the first rule it breaks; metadata gains `fineweb`, the figures."""

    def verdict(document: Document, figures: Figures) -> Verdict:
        broken = broken_rule(figures, config)
        shown = {name: round(value, 4) for name, value in figures._asdict().items()}
        return Drop(broken, _REMEDIES[broken]) if broken else Keep(noted(document, fineweb=shown))

    return measured_step("fineweb", partial(measure_all, short_line=config.short_line), verdict)


def measure_all(strings: Sequence[str], *, short_line: int) -> list[Figures]:
    """Return every figure of each text; empty lines do not count. short_line: characters in a short line at most."""
    texts = joined(strings)
    counts, _ = measures(texts, short=short_line + 1, stops=WEB_STOP)
    parts, _ = repeats(texts, tops=0, repeated=0)
    return [_figures(*both) for both in zip(counts.tolist(), parts.tolist(), strict=True)]


def _figures(counts: list[int], parts: list[int]) -> Figures:
    lines = max(counts[LINES], 1)
    return Figures(
        punctuated_lines=counts[STOPPED_LINES] / lines,
        short_lines=counts[SHORT_LINES] / lines,
        duplicate_characters=parts[AGAIN_CHARACTERS] / max(parts[PART_CHARACTERS], 1),
        newlines_per_word=max(counts[LINES] - 1, 0) / max(counts[WORDS], 1),
    )


_REMEDIES = MappingProxyType(
    {
        "too few lines end in punctuation": "fineweb.punctuated_lines=0",
        "too many short lines": "fineweb.short_lines=1",
        "repeated lines": "fineweb.duplicate_characters=1",
        "a list": "fineweb.newlines_per_word=1",
    }
)


def broken_rule(figures: Figures, config: FineWebConfig) -> str:
    """Return the name of the first rule a document breaks, or nothing."""
    rules = {
        "too few lines end in punctuation": figures.punctuated_lines <= config.punctuated_lines,
        "too many short lines": figures.short_lines >= config.short_lines,
        "repeated lines": figures.duplicate_characters >= config.duplicate_characters,
        "a list": figures.newlines_per_word > config.newlines_per_word,
    }
    return next((name for name, broken in rules.items() if broken), "")
