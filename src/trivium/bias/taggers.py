"""Taggers, which find the adjectives in texts."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trivium.bias.sentiwordnet import Scores, adjectives_of
from trivium.errors import MachineError

# Returns the wanted words of each text in lower case, in order and with repetitions.
Tagger = Callable[[Sequence[str]], list[list[str]]]

ADJECTIVES, ADVERBS = ("JJ", "JJR", "JJS"), ("RB", "RBR", "RBS")  # Penn Treebank


def textblob_tagger(*, adverbs: bool = False) -> Tagger:
    """Return a tagger that uses `textblob.en`, which needs no download. Raises MachineError if it is not installed."""
    tag = textblob_module("textblob.en").tag
    wanted = {*ADJECTIVES, *(ADVERBS if adverbs else ())}

    def find(texts: Sequence[str]) -> list[list[str]]:
        return [[w.lower() for w, kind in tag(text) if kind in wanted and _is_word(w)] for text in texts]

    return find


def lexicon_tagger(scores: Mapping[str, Scores], *, adverbs: bool = False) -> Tagger:
    """Return a tagger that finds all words that SentiWordNet lists as adjectives (or adverbs), whatever their use."""
    wanted = adjectives_of(scores, adverbs=adverbs)

    def find(texts: Sequence[str]) -> list[list[str]]:
        words = ([w.strip("\"'.,;:!?()[]").lower() for w in text.split()] for text in texts)
        return [[w for w in some if w in wanted] for some in words]

    return find


def textblob_module(name: str) -> Any:
    """Import a module of textblob. Raises MachineError, which says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MachineError(
            f"{name} cannot be imported ({error}), and bias.cooccurrence takes its tagger or lexicon from it; "
            "install it with `pip install textblob`, or give bias.cooccurrence.tagger=lexicon and a "
            "SentiWordNet file as bias.cooccurrence.lexicon"
        ) from None


def _is_word(text: str) -> bool:
    return any(c.isalpha() for c in text) and all(c.isalpha() or c in "-'" for c in text)
