"""Exact duplicates: texts that are equal once case, punctuation and blanks are set aside."""

import re
from hashlib import blake2b

from trivium.corpus.document import Document
from trivium.corpus.steps import Drop, Keep, Step, Verdict

_WORDS = re.compile(r"\w+")


def text_key(text: str) -> bytes:
    """16 bytes that are equal for texts with the same words in the same order."""
    return blake2b(" ".join(_WORDS.findall(text.lower())).encode("utf-8", "replace"), digest_size=16).digest()


def exact_step() -> Step:
    """The step that keeps the first of equal texts, and of two different texts under one id the first."""
    seen_texts: set[bytes] = set()
    seen_ids: set[str] = set()

    def judge(document: Document) -> Verdict:
        key = text_key(document.text)
        if key in seen_texts:
            return Drop("same text as an earlier document")
        if document.id in seen_ids:
            return Drop("same id as an earlier document")
        seen_texts.add(key)
        seen_ids.add(document.id)
        return Keep(document)

    return Step("exact duplicates", judge)
