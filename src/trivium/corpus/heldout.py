"""Which documents are kept away from training, and the evaluation passages made from them."""

import math
from dataclasses import dataclass

from trivium.corpus.config import HarvestConfig
from trivium.corpus.document import Document
from trivium.corpus.passages import passages
from trivium.seeds import seed_for

_POOL = 3  # times heldout_limit: the share of documents looked at for passages
_RICH = 3  # passages that make a document worth holding out beyond the fraction asked for


@dataclass(frozen=True, slots=True)
class Item:
    """One evaluation passage, the document it stands in, and an id of its own."""

    id: str
    document: str
    text: str


class HeldOut:
    """Collects the documents that may be held out while a corpus streams by, then chooses among them.

    A document's place in line depends on the seed and its id alone, so the choice does not depend on the
    order of reading, and no more than three times `heldout_limit` of a corpus is ever in memory. The first
    `heldout_fraction` are taken as they come; after that, only documents rich in passages are, so that as
    little as possible is lost to training.
    """

    def __init__(self, config: HarvestConfig, *, seed: int) -> None:
        """An empty line."""
        self._config, self._seed = config, seed
        self._line: dict[str, tuple[float, Document]] = {}
        self._first: tuple[float, Document] | None = None
        self._seen = 0

    def offer(self, document: Document) -> None:
        """A document of the corpus, as plain text."""
        self._seen += 1
        place = seed_for(self._seed, "heldout", document.id) / 2**63
        if place < _POOL * self._config.heldout_limit:
            self._line[document.id] = (place, document)
        if self._first is None or place < self._first[0]:
            self._first = (place, document)

    def choose(self) -> tuple[list[Document], list[Item]]:
        """The documents held out, and their passages; nothing of a corpus of one document."""
        config = self._config
        if self._seen < 2 or self._first is None:
            return [], []
        line = sorted([*self._line.values()] or [self._first], key=lambda entry: entry[0])
        at_least = max(1, math.ceil(config.heldout_fraction * self._seen))
        at_most = max(1, math.floor(config.heldout_limit * self._seen))
        chosen: list[Document] = []
        items: list[Item] = []
        texts: set[str] = set()
        for _, document in line:
            enough = len(chosen) >= at_least
            if len(chosen) >= at_most or (enough and len(items) >= config.evaluation_items):
                break
            found = [t for t in dict.fromkeys(self._passages(document.text)) if t not in texts]
            if enough and len(found) < _RICH:
                continue
            chosen.append(document)
            texts.update(found)
            items += [Item(f"{document.id}-{n:02d}", document.id, text) for n, text in enumerate(found)]
        return chosen, items[: config.evaluation_items]

    def _passages(self, text: str) -> list[str]:
        return passages(text, shortest=self._config.passage_shortest, longest=self._config.passage_longest)
