"""Which documents are kept away from training, and the evaluation passages made from them."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from trivium.corpus.config import HarvestConfig
from trivium.corpus.document import Document
from trivium.seeds import seed_for

_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_LAST_WORD = re.compile(r"(?:^|\s)([A-Za-z][a-z]{2,})\.$")
# possessive (`++`): a word of a million quotes is read once
_PLAIN_WORD = re.compile(r"^[\"'(]*+[A-Za-z]++(?:['’-][A-Za-z]++)*+[\"')]*+[.,;:!?]*+[\"')]*+$")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|etc|cf|vs|resp|Eq|Fig|No|Dr|Mr|Ms)\.$")


def passages(text: str, *, shortest: int, longest: int) -> list[str]:
    """Return passages of `shortest` to `longest` words that share no sentence, each inside one paragraph."""
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
    """Return whether a sentence is ended and nearly all its words are words, not code, numbers or formulas."""
    words = sentence.split()
    plain = sum(bool(_PLAIN_WORD.match(word)) for word in words)
    return len(words) >= 3 and sentence[0].isupper() and sentence[-1] in ".!?" and plain >= 0.9 * len(words)


_POOL = 3  # times heldout_limit: the share of documents looked at for passages
_RICH = 3  # passages that make a document worth holding out beyond the fraction asked for
_LOOKED_AT = 100  # documents for each passage wanted, so that a corpus without passages is not read to its end

One = TypeVar("One")


@dataclass(frozen=True, slots=True)
class Item:
    """One evaluation passage, the document that it comes from, and its own id."""

    id: str
    document: str
    text: str


def place_in_line(seed: int, *names: str) -> float:
    """Return the place of a document of these names among all, from 0 to 1; the lowest is first."""
    return seed_for(seed, "heldout", *names) / 2**63


def pool(config: HarvestConfig) -> float:
    """Return the place below which documents may be held out; if there is none, the first document may be."""
    return _POOL * config.heldout_limit


def choose(
    line: Iterable[One], document_of: Callable[[One], Document], seen: int, config: HarvestConfig
) -> tuple[list[One], list[Item]]:
    """Return those of a line that are held out, and their passages; nothing for a corpus of one document.

    The first `heldout_fraction` are taken as they come; after that, only documents rich in passages are, so that as
    little as possible is lost to training. seen: documents of the whole corpus. document_of: asked only for those
    whose passages are wanted.
    """
    chosen: list[One] = []
    items: list[Item] = []
    texts: set[str] = set()
    wanted = config.evaluation_items
    at_least = max(1, math.ceil(config.heldout_fraction * seen))
    at_most = max(1, math.floor(config.heldout_limit * seen))
    for number, one in enumerate(line if seen > 1 else ()):
        enough, looked = len(chosen) >= at_least, len(items) < wanted and number < _LOOKED_AT * wanted
        if len(chosen) >= at_most or (enough and not looked):
            break
        document = document_of(one) if looked else None
        found = [] if document is None else [t for t in _passages(document, config) if t not in texts]
        if enough and len(found) < _RICH:
            continue
        chosen.append(one)
        texts.update(found)
        if document is not None:
            name = document.id
            items += [Item(f"{name}-{n:02d}", name, text) for n, text in enumerate(found)]
    return chosen, items[:wanted]


def choose_documents(
    documents: Sequence[Document], config: HarvestConfig, *, seed: int
) -> tuple[list[Document], list[Item]]:
    """Return those of a corpus in memory that are held out, and their passages.

    The place of a document depends on the seed and its id alone, so the choice does not depend on their order.
    """
    ranked = sorted((place_in_line(seed, document.id), number) for number, document in enumerate(documents))
    line = [documents[number] for place, number in ranked if place < pool(config)]
    line = line or [documents[number] for _, number in ranked[:1]]
    return choose(line, lambda document: document, len(documents), config)


def _passages(document: Document, config: HarvestConfig) -> Iterable[str]:
    found = passages(document.text, shortest=config.passage_shortest, longest=config.passage_longest)
    return dict.fromkeys(found)
