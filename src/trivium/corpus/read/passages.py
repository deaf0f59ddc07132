"""Evaluation passages: runs of whole sentences of prose that end in a word worth predicting."""

import re

_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_LAST_WORD = re.compile(r"(?:^|\s)([A-Za-z][a-z]{2,})\.$")
# possessive (`++`): a word of a million quotes is read once
_PLAIN_WORD = re.compile(r"^[\"'(]*+[A-Za-z]++(?:['’-][A-Za-z]++)*+[\"')]*+[.,;:!?]*+[\"')]*+$")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|etc|cf|vs|resp|Eq|Fig|No|Dr|Mr|Ms)\.$")


def passages(text: str, *, shortest: int, longest: int) -> list[str]:
    """Passages of `shortest` to `longest` words that share no sentence, each inside one paragraph."""
    found: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        run: list[str] = []
        for sentence in _sentences(" ".join(paragraph.split())):
            if not _is_plain(sentence):
                run = []
                continue
            run.append(sentence)
            while sum(len(s.split()) for s in run) > longest:
                run.pop(0)
            size = sum(len(s.split()) for s in run)
            if shortest <= size <= longest and _LAST_WORD.search(sentence):
                found.append(" ".join(run))
                run = []
    return found


def _sentences(paragraph: str) -> list[str]:
    # Only the last part is searched, and all are joined at the end: a page may be one line of abbreviations.
    sentences: list[list[str]] = []
    for part in _SENTENCE.split(paragraph):
        if sentences and _ABBREVIATION.search(sentences[-1][-1]):
            sentences[-1].append(part)
        else:
            sentences.append([part])
    return [" ".join(parts) for parts in sentences]


def _is_plain(sentence: str) -> bool:
    """Whether a sentence is ended and nearly all its words are words, not code, numbers or formulas."""
    words = sentence.split()
    plain = sum(bool(_PLAIN_WORD.match(word)) for word in words)
    return len(words) >= 3 and sentence[0].isupper() and sentence[-1] in ".!?" and plain >= 0.9 * len(words)
