"""Held-out documents and the evaluation passages made from them."""

import re

from trivium.corpus.config import HarvestConfig
from trivium.corpus.document import Document
from trivium.corpus.harvest.heldout import _ABBREVIATION, _SENTENCE, _sentences, choose_documents, passages
from trivium.seeds import generator_for

SENTENCE = "Document {} says in sentence {} that its reader will come to the end of all of it sooner or later. "


def held(documents, seed=1, **config):
    return choose_documents(documents, HarvestConfig(**config), seed=seed)


def some(count):
    return [Document(str(n), "".join(SENTENCE.format(n, k) for k in "abcdefghijkl"), "s") for n in range(count)]


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


PROSE = " ".join(
    f"Sentence number {word} of this paragraph says that the reader will come to the end of it sooner or later."
    for word in ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
)


def test_passages_are_whole_sentences_of_the_wanted_length_that_share_none():
    found = passages(PROSE, shortest=40, longest=80)
    assert len(found) >= 3
    assert all(40 <= len(passage.split()) <= 80 and passage in PROSE for passage in found)
    assert all(re.search(r"\b[a-z]{3,}\.$", passage) for passage in found)
    sentences = [s for passage in found for s in passage.split(". ")]
    assert len(sentences) == len(set(sentences))


def test_code_and_short_endings_give_no_passage():
    code = " ".join(f"Call f_{n}(x[{n}]) == {n} if a.b_{n} != None." for n in range(30))
    assert passages(code, shortest=40, longest=80) == []
    assert passages(PROSE.replace("later.", "at 7."), shortest=40, longest=80) == []


def test_a_passage_never_crosses_a_paragraph():
    text = "\n\n".join(["This is a paragraph of one sentence that is far too short."] * 20)
    assert passages(text, shortest=40, longest=80) == []


def test_a_sentence_goes_on_behind_an_abbreviation():
    """The expected sentences follow the rule as it is written, applied to the full sentence so far."""
    generator = generator_for(1, "sentences")
    words = ["Dr.", "No.", "e.g.", "(etc.", "B-etc.", "X vs.", "A", "x.", "Foo", "bar!"]
    for _ in range(300):
        paragraph = " ".join(generator.choice(words, size=generator.integers(1, 13)))
        expected = []
        for part in _SENTENCE.split(paragraph):
            if expected and _ABBREVIATION.search(expected[-1]):
                expected[-1] += f" {part}"
            else:
                expected.append(part)
        assert _sentences(paragraph) == expected
