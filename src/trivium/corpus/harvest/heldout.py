"""Choose the documents that are held out of training, and make evaluation passages from them."""

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
# Possessive (`++`), so that a word of a million quotes takes linear time.
_PLAIN_WORD = re.compile(r"^[\"'(]*+[A-Za-z]++(?:['’-][A-Za-z]++)*+[\"')]*+[.,;:!?]*+[\"')]*+$")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|etc|cf|vs|resp|Eq|Fig|No|Dr|Mr|Ms)\.$")


def passages(text: str, *, shortest: int, longest: int) -> list[str]:
    """Return passages of `shortest` to `longest` words that share no sentence, each inside one paragraph."""
    found: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        run: list[list[str]] = []  # the words of consecutive sentences
        for sentence in _sentences(" ".join(paragraph.split())):
            words = sentence.split()
            if not _is_plain(sentence, words):
                run = []
                continue
            run.append(words)
            while (size := sum(map(len, run))) > longest:
                run.pop(0)
            if shortest <= size and _LAST_WORD.search(sentence):
                found.append(" ".join(word for words in run for word in words))
                run = []
    return found


def _sentences(paragraph: str) -> list[str]:
    # Only the last part is searched, and all are joined at the end, because a page may be one line of abbreviations.
    sentences: list[list[str]] = []
    for part in _SENTENCE.split(paragraph):
        if sentences and _ABBREVIATION.search(sentences[-1][-1]):
            sentences[-1].append(part)
        else:
            sentences.append([part])
    return [" ".join(parts) for parts in sentences]


def _is_plain(sentence: str, words: Sequence[str]) -> bool:
    """Return whether a sentence is complete, and nearly all its words are words rather than code or numbers."""
    plain = sum(bool(_PLAIN_WORD.match(word)) for word in words)
    return len(words) >= 3 and sentence[0].isupper() and sentence[-1] in ".!?" and plain >= 0.9 * len(words)


_POOL_FACTOR = 3  # multiple of heldout_limit: the share of documents that may be searched for passages
_MIN_PASSAGES = 3  # for which a document beyond `heldout_fraction` is held out
_DOCUMENTS_PER_PASSAGE = 100  # searched at most, so that a corpus without passages is not read to its end

One = TypeVar("One")


@dataclass(frozen=True, slots=True)
class Item:
    """One evaluation passage, the document that it comes from, and its own id."""

    id: str
    document: str
    text: str


def place_in_line(seed: int, *names: str) -> float:
    """Return a document's position among all documents, from 0 to 1. Those with the lowest are held out first."""
    return seed_for(seed, "heldout", *names) / 2**63


def pool(config: HarvestConfig) -> float:
    """Return the position below which documents may be held out. If there is none, the first document may be."""
    return _POOL_FACTOR * config.heldout_limit


def choose(
    line: Iterable[One], document_of: Callable[[One], Document], seen: int, config: HarvestConfig
) -> tuple[list[One], list[Item]]:
    """Return those of a line that are held out, and their passages. Of a corpus of one document, nothing is.

    The first `heldout_fraction` are taken in order. After that, only documents with several passages are, so that
    training loses as little as possible. seen: documents of the whole corpus. document_of: called only for documents
    whose passages are needed.
    """
    chosen: list[One] = []
    items: list[Item] = []
    texts: set[str] = set()
    wanted = config.evaluation_items
    at_least = max(1, math.ceil(config.heldout_fraction * seen))
    at_most = max(1, math.floor(config.heldout_limit * seen))
    for number, one in enumerate(line if seen > 1 else ()):
        enough, searching = len(chosen) >= at_least, len(items) < wanted and number < _DOCUMENTS_PER_PASSAGE * wanted
        if len(chosen) >= at_most or (enough and not searching):
            break
        found: list[Item] = []
        if searching:
            document = document_of(one)
            every = passages(document.text, shortest=config.passage_shortest, longest=config.passage_longest)
            new = [text for text in dict.fromkeys(every) if text not in texts]
            found = [Item(f"{document.id}-{n:02d}", document.id, text) for n, text in enumerate(new)]
        if enough and len(found) < _MIN_PASSAGES:
            continue
        chosen.append(one)
        texts.update(item.text for item in found)
        items += found
    return chosen, items[:wanted]


def choose_documents(
    documents: Sequence[Document], config: HarvestConfig, *, seed: int
) -> tuple[list[Document], list[Item]]:
    """Return the held-out documents of a corpus in memory, and their passages.

    The choice depends on the seed and the ids alone, not on the order of the documents.
    """
    ranked = sorted((place_in_line(seed, document.id), number) for number, document in enumerate(documents))
    line = [documents[number] for place, number in ranked if place < pool(config)]
    line = line or [documents[number] for _, number in ranked[:1]]
    return choose(line, lambda document: document, len(documents), config)
