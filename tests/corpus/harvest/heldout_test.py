"""Laws of holding documents out."""

from trivium.corpus.config import HarvestConfig
from trivium.corpus.document import Document
from trivium.corpus.harvest.heldout import HeldOut

SENTENCE = (
    "Document {} says in sentence {} that its reader will come to the end of all of it sooner or later. "
)


def held(documents, seed=1, **config):
    line = HeldOut(HarvestConfig(**config), seed=seed)
    for document in documents:
        line.offer(document)
    return line.choose()


def some(count):
    return [
        Document(str(n), "".join(SENTENCE.format(n, k) for k in "abcdefghijkl"), "s") for n in range(count)
    ]


def test_the_choice_depends_on_seed_and_ids_alone():
    documents = some(300)
    chosen = {d.id for d in held(documents)[0]}
    assert chosen == {d.id for d in held(documents[::-1])[0]}
    assert chosen != {d.id for d in held(documents, seed=2)[0]}


def test_more_is_held_out_until_there_are_enough_passages_but_never_over_the_limit():
    few, _ = held(some(300), evaluation_items=5)
    assert len(few) == 9  # 3 %
    many, items = held(some(300), evaluation_items=60)
    assert len(few) < len(many) <= 30
    assert len(items) == 60
    assert {item.document for item in items} <= {d.id for d in many}
    assert len(held(some(300), evaluation_items=10_000)[0]) <= 30


def test_two_documents_give_one_and_one_gives_none():
    assert len(held(some(2))[0]) == 1
    assert held(some(1)) == ([], [])


def test_beyond_the_fraction_only_documents_with_passages_are_held_out():
    bare = [Document(f"bare{n}", "no sentence at all", "s") for n in range(200)]
    chosen, items = held(some(100) + bare, evaluation_items=40)
    assert len(items) == 40
    assert sum(document.id.startswith("bare") for document in chosen) <= 9
