"""Laws of the junk of the default corpus: it is planted as it is described."""

import pytest

from trivium.corpus.config import PlantConfig
from trivium.corpus.dedup.minhash import jaccard, shingles
from trivium.corpus.document import Document
from trivium.corpus.harvest.heldout import Item
from trivium.corpus.harvest.plant import boilerplate_text, edited_copy, foreign_text, low_quality_text, plant
from trivium.seeds import generator_for

HONEST = [
    Document(f"{n:016x}", "\n\n".join(f"Word{n} word{k} " + f"of{k} text{n} " * 30 for k in range(8)), "s")
    for n in range(40)
]
ITEMS = [Item(str(n), "h", f"Passage {n}.") for n in range(40)]


def test_an_edited_copy_is_as_similar_as_measured():
    text = " ".join(f"w{n}" for n in range(300))
    copy, similarity = edited_copy(text, similarity=0.9, low=0.85, generator=generator_for(1, "copy"))
    assert similarity == jaccard(shingles(text, size=5), shingles(copy, size=5))
    assert 0.85 <= similarity <= 0.9


@pytest.mark.parametrize("compose", [boilerplate_text, foreign_text, low_quality_text])
def test_composed_pages_differ_from_each_other_and_are_too_long_to_be_dropped_for_their_length(compose):
    texts = [compose(generator_for(n, "compose")) for n in range(40)]
    assert len(set(texts)) == 40
    # Chinese says the same in fewer characters
    assert sum(len(text) >= 512 for text in texts) >= 30


def test_leaks_replace_their_hosts_and_everything_else_is_new():
    planted = plant(HONEST, ITEMS, PlantConfig(), seed=1)
    honest = {document.id: document for document in HONEST}
    for one in planted:
        assert (one.document.id in honest) == (one.kind == "leaked_item")
        if one.kind == "leaked_item":
            paragraphs = one.document.text.split("\n\n")
            paragraphs.remove(f"Passage {one.details['item']}.")
            assert "\n\n".join(paragraphs) == honest[one.document.id].text
    assert not {p.follows for p in planted} & {p.document.id for p in planted if p.kind == "leaked_item"}


def test_nothing_is_planted_when_nothing_is_asked_for():
    none = PlantConfig(near_duplicate=0, boilerplate=0, other_language=0, low_quality=0, leaked_item=0)
    assert plant(HONEST, ITEMS, none, seed=1) == []
