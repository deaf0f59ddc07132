"""Gopher's repetition rules (table A1): lines, paragraphs and n-grams that repeat inside one document."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trivium.corpus.config import RepetitionConfig
from trivium.corpus.document import Document
from trivium.corpus.steps import Drop, Keep, Step, Verdict, noted

_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)


def repetition_step(config: RepetitionConfig) -> Step:
    """The step that drops a document at the first repetition rule it breaks; metadata gains `repetition`."""

    def judge(document: Document) -> Verdict:
        figures = measure(document.text, config)
        for name, share, limit in figures:
            if share > limit:
                return Drop(f"repeated {name}")
        worst = max(figures, key=lambda rule: rule[1] / max(rule[2], 1e-9))
        return Keep(noted(document, repetition={worst[0]: round(worst[1], 4)}))

    return Step("repetition", judge)


def measure(text: str, config: RepetitionConfig) -> list[tuple[str, float, float]]:
    """Every rule as (name, share in this text, largest share allowed)."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    paragraphs = [part.strip() for part in text.split("\n\n") if part.strip()]
    rules = [
        ("lines", *_repeats(lines)),
        ("paragraphs", *_repeats(paragraphs)),
    ]
    words = text.split()
    codes, lengths = _codes(words)
    total = max(int(lengths.sum()), 1)
    limits = {
        "lines": (config.duplicate_lines, config.duplicate_line_characters),
        "paragraphs": (config.duplicate_paragraphs, config.duplicate_paragraph_characters),
    }
    found: list[tuple[str, float, float]] = []
    for name, share, characters in rules:
        found.append((name, share, limits[name][0]))
        found.append((f"{name} (characters)", characters, limits[name][1]))
    for n, limit in enumerate(config.top_ngram, start=2):
        found.append((f"{n}-gram", top_ngram_characters(codes, lengths, n) / total, limit))
    for n, limit in enumerate(config.repeated_ngram, start=5):
        found.append((f"{n}-grams", repeated_ngram_characters(codes, lengths, n) / total, limit))
    return found


def top_ngram_characters(codes: NDArray[np.uint64], lengths: NDArray[np.int64], n: int) -> int:
    """Characters in the occurrences of the n-gram that covers most; 0 when none occurs twice."""
    grams = _ngrams(codes, n)
    if len(grams) == 0:
        return 0
    _, first, counts = np.unique(grams, return_index=True, return_counts=True)
    sizes = np.convolve(lengths, np.ones(n, dtype=np.int64), mode="valid")[first]
    covered = np.where(counts > 1, counts * sizes, 0)
    return int(covered.max())


def repeated_ngram_characters(codes: NDArray[np.uint64], lengths: NDArray[np.int64], n: int) -> int:
    """Characters of words inside an n-gram that occurred before, each counted once."""
    grams = _ngrams(codes, n)
    if len(grams) == 0:
        return 0
    _, first = np.unique(grams, return_index=True)
    if len(first) == len(grams):
        return 0
    again = np.ones(len(grams), dtype=bool)
    again[first] = False
    covered = np.zeros(len(lengths), dtype=bool)
    for k in range(n):
        covered[k : k + len(grams)] |= again
    return int(lengths[covered].sum())


def _repeats(parts: Sequence[str]) -> tuple[float, float]:
    """Share of parts that occurred before, and of their characters."""
    seen: set[str] = set()
    again = [part for part in parts if part in seen or seen.add(part)]  # type: ignore[func-returns-value]
    characters = sum(map(len, parts))
    return len(again) / max(len(parts), 1), sum(map(len, again)) / max(characters, 1)


def _codes(words: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Each word's number (equal words, equal numbers) and length."""
    numbers: dict[str, int] = {}
    codes = np.fromiter((numbers.setdefault(w, len(numbers) + 1) for w in words), np.uint64, len(words))
    return codes * _MIX, np.fromiter(map(len, words), np.int64, len(words))


def _ngrams(codes: NDArray[np.uint64], n: int) -> NDArray[np.uint64]:
    count = len(codes) - n + 1
    if count <= 0:
        return np.zeros(0, dtype=np.uint64)
    rolled = np.zeros(count, dtype=np.uint64)
    for k in range(n):
        rolled = (rolled ^ (rolled >> np.uint64(29))) * _ODD + codes[k : k + count]
    return rolled
