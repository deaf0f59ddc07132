"""The rules of C4 (Raffel et al., JMLR 21(140), section 2.2, and its published code): lines, then the page."""

import re
from dataclasses import replace

from trivium.corpus.config import C4Config
from trivium.corpus.document import Document
from trivium.corpus.steps import Drop, Keep, Step, Verdict, noted

_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
_ENDS = (".", "?", "!", '"', "'", "”", "’")
_ELLIPSES = ("...", "…")
_POLICY = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
# Only from the first of a run of marks, and possessive, so that a long run takes linear time.
_SENTENCE = re.compile(r"(?<![.!?])[.!?]++[\"'”’)]*+(?=\s|$)")


def c4_step(config: C4Config) -> Step:
    """Return the step that removes lines and drops pages as C4 did; metadata gains `c4`: lines kept and removed."""
    words = "|".join(re.escape(word.lower()) for word in config.bad_words)
    bad = re.compile(rf"(?<!\w)(?:{words})(?!\w)") if words else None

    def judge(document: Document) -> Verdict:
        lowered = document.text.lower()
        if "lorem ipsum" in lowered:
            return Drop("lorem ipsum")
        if "{" in document.text:
            return Drop("curly bracket")
        if bad is not None and bad.search(lowered):
            return Drop("bad word", "c4.bad_words=[]")
        lines = [line for each in document.text.split("\n") if (line := each.strip())]
        if "[" in document.text:
            lines = [_CITATION.sub("", line) for line in lines]
        kept = [line for line in lines if not line_fault(line, config)]
        if sum(map(num_sentences, kept)) < config.sentences:
            return Drop(f"under {config.sentences} sentences", "c4.sentences=0")
        figures = {"lines": len(kept), "removed": len(lines) - len(kept)}
        return Keep(noted(replace(document, text="\n".join(kept)), c4=figures))

    return Step("c4", judge)


def line_fault(line: str, config: C4Config) -> str:
    """Return why C4 removes a line, or ""."""
    words = line.split()
    lowered = line.lower()
    if len(line) > config.word_letters and any(len(word) > config.word_letters for word in words):
        return "word too long"
    if not line.endswith(_ENDS) or line.endswith(_ELLIPSES):
        return "no end of a sentence"
    if len(words) < config.line_words:
        return "too few words"
    if "javascript" in lowered:
        return "javascript"
    return "policy" if any(phrase in lowered for phrase in _POLICY) else ""


def num_sentences(line: str) -> int:
    """Return the number of ends of sentences before a blank, at least 1."""
    return max(1, len(_SENTENCE.findall(line)))
