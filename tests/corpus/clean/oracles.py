"""The figures of the quality, FineWeb and repetition rules in plain Python, as references for the kernels."""

from collections import Counter

from trivium.corpus.clean import quality
from trivium.corpus.kernels.characters import BULLETS, STOPS, WEB_STOPS
from trivium.corpus.kernels.measures import COMMON_WORDS, MARKS


def lines_of(text):
    return [line.strip() for line in text.split("\n") if line.strip()]


def quality_figures(text):
    words, lines = text.split(), lines_of(text)
    num_words, num_lines = max(len(words), 1), max(len(lines), 1)
    signs = max(text.count("#"), text.count("…") + text.count(".."))
    lowered = {word.strip(MARKS).lower() for word in words}
    return {
        "characters": len(text),
        "words": len(words),
        "word_letters": sum(map(len, words)) / num_words,
        "symbols": signs / num_words,
        "bullet_lines": sum(line.startswith(BULLETS) for line in lines) / num_lines,
        "ellipsis_lines": sum(line.endswith(("…", "...")) for line in lines) / num_lines,
        "alphabetic_words": sum(any(map(str.isalpha, word)) for word in words) / num_words,
        "common_words": len(lowered.intersection(COMMON_WORDS)),
        "punctuated_lines": sum(line.endswith(STOPS) for line in lines) / num_lines,
        "short_lines": sum(len(line) < 30 for line in lines) / num_lines,
        "boilerplate_words": sum(len(line.split()) for line in lines if quality.is_boilerplate(line)) / num_words,
    }


def fineweb_figures(text, config):
    lines = lines_of(text)
    return {
        "punctuated_lines": sum(line.endswith(WEB_STOPS) for line in lines) / max(len(lines), 1),
        "short_lines": sum(len(line) <= config.short_line for line in lines) / max(len(lines), 1),
        "duplicate_characters": repeats(lines)[1],
        "newlines_per_word": max(len(lines) - 1, 0) / max(len(text.split()), 1),
    }


def repetition_rules(text, config):
    words = text.split()
    total = max(sum(map(len, words)), 1)
    paragraphs = [part.strip() for part in text.split("\n\n") if part.strip()]
    found = []
    for name, parts, limits in (
        ("lines", lines_of(text), (config.duplicate_lines, config.duplicate_line_characters)),
        ("paragraphs", paragraphs, (config.duplicate_paragraphs, config.duplicate_paragraph_characters)),
    ):
        share, characters = repeats(parts)
        found += [(name, share, limits[0]), (f"{name} (characters)", characters, limits[1])]
    for n, limit in enumerate(config.top_ngram, start=2):
        found.append((f"{n}-gram", top_ngram_characters(words, n) / total, limit))
    for n, limit in enumerate(config.repeated_ngram, start=5):
        found.append((f"{n}-grams", repeated_ngram_characters(words, n) / total, limit))
    return found


def repeats(parts):
    """Share of parts that occurred before, and of their characters."""
    seen, again = set(), []
    for part in parts:
        again += [part] if part in seen else []
        seen.add(part)
    return len(again) / max(len(parts), 1), sum(map(len, again)) / max(sum(map(len, parts)), 1)


def ngrams(words, n):
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def top_ngram_characters(words, n):
    counts = Counter(ngrams(words, n))
    return max((count * sum(map(len, gram)) for gram, count in counts.items() if count > 1), default=0)


def repeated_ngram_characters(words, n):
    seen, covered = set(), set()
    for place, gram in enumerate(ngrams(words, n)):
        if gram in seen:
            covered.update(range(place, place + n))
        seen.add(gram)
    return sum(len(words[place]) for place in covered)
