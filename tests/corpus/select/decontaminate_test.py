"""The n-gram rule, against a plain reference that follows its words step by step."""

import re
from collections import Counter

import numpy as np
import pytest

from trivium.corpus.config import DecontaminationConfig
from trivium.corpus.document import Document
from trivium.corpus.kernels.ngrams import find_ngrams
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.select import decontaminate as decontaminate_module
from trivium.corpus.select.decontaminate import Counters, Keys, cut, decontaminate, keys_of
from trivium.seeds import generator_for

CONFIG = DecontaminationConfig()


def reference(text, keys):
    """Pieces left, by scanning what is left of the text again after every cut."""
    pieces, start, splits = [], 0, 0
    while True:
        words = list(re.finditer(r"日|[^\W日]+", text[start:]))
        lowered = [w.group().lower() for w in words]
        found = None
        for i in range(len(lowered)):
            for size in range(13, 7, -1):
                if i + size <= len(lowered) and " ".join(lowered[i : i + size]) in keys:
                    found = found or (words[i].start() + start, words[i + size - 1].end() + start)
            if found:
                break
        if not found:
            pieces.append((start, len(text)))
            break
        splits += 1
        left = found[0] - 200
        while left > start and text[left] not in ".!?":
            left -= 1
        if left > start:
            pieces.append((start, left + 1))
        right = found[1] + 200
        while right < len(text) and text[right] not in ".!?":
            right += 1
        if right + 1 >= len(text):
            break
        start = right + 1
    return ([p for p in pieces if p[1] - p[0] >= 200] if splits else pieces), splits


def hits_in(text, keys):
    return keys.hits(texts_of([text])).get(0, [])


def sentences(generator, count, vocabulary=400):
    words = [f"w{n}" for n in range(vocabulary)]
    made = []
    for _ in range(count):
        run = [words[i] for i in generator.integers(vocabulary, size=int(generator.integers(4, 18)))]
        made.append(" ".join(run).capitalize() + ".!?"[int(generator.integers(3))])
    return " ".join(made)


@pytest.mark.parametrize("seed", range(60))
def test_the_pieces_left_are_those_of_the_reference(seed):
    generator = generator_for(seed, "decontaminate-test")
    items = {str(n): sentences(generator, int(generator.integers(1, 6))) for n in range(12)}
    parts = [sentences(generator, int(generator.integers(1, 20))) for _ in range(int(generator.integers(1, 14)))]
    leaks = [items[str(int(generator.integers(12)))].upper().replace(" ", ",  ") for _ in parts]
    text = " ".join(
        x for pair in zip(parts, leaks, strict=True) for x in (pair if generator.random() < 0.6 else pair[:1])
    )
    keys = Keys(items, CONFIG)
    result = cut(text, hits_in(text, keys), CONFIG)
    assert (result.pieces, result.splits) == reference(text, keys.owners)
    for start, end in result.pieces:
        assert not set(keys.owners) & {k for n in range(8, 14) for k in ngrams(text[start:end], n)}


def ngrams(text, size):
    words = re.findall(r"\w+", text.lower())
    return {" ".join(words[i : i + size]) for i in range(len(words) - size + 1)}


def test_keys_are_13_grams_or_whole_short_texts():
    words = [f"a{n}" for n in range(15)]
    assert len(keys_of(" ".join(words), CONFIG)) == 3
    assert keys_of("A0, a1; a2 a3 a4 a5 a6 a7!", CONFIG) == ["a0 a1 a2 a3 a4 a5 a6 a7"]
    assert keys_of("only seven words stand in this text", CONFIG) == []


def test_common_phrases_are_spared_and_rarer_ones_are_not():
    phrase = "this is a phrase that everybody writes at the start of every page they make"
    rare = "these are words that only one person in all the world would have written down"
    keys = Keys({"a": phrase, "b": rare}, CONFIG)
    texts = [f"{phrase}. And more." for _ in range(10)] + [f"{rare}."] * 9
    counts = Counter(keys.text_of(hit.key) for hits in keys.hits(texts_of(texts)).values() for hit in hits)
    common = {key for key, count in counts.items() if count >= 10}
    assert set(common) == set(keys_of(phrase, CONFIG))
    keys.spare(common)
    assert set(keys.owners) == set(keys_of(rare, CONFIG))


def test_each_outcome_is_counted_under_its_name():
    generator = generator_for(3, "counters")
    leak = sentences(generator, 3, vocabulary=90)
    clean = sentences(generator, 12)
    counters, keys = Counters(), Keys({"leak": leak}, CONFIG)
    texts = {"clean": clean, "trimmed": f"{clean} {leak}", "split": f"{clean} {leak} {clean}", "removed": leak}
    texts["many"] = " ".join(f"{clean} {leak}" for _ in range(11)) + clean
    left = {
        name: decontaminate(Document(name, text, "s"), hits_in(text, keys), CONFIG, counters)
        for name, text in texts.items()
    }
    assert {name: len(pieces) for name, pieces in left.items()} == {
        "clean": 1,
        "trimmed": 1,
        "split": 2,
        "removed": 0,
        "many": 0,
    }
    assert counters.as_json() == {"documents": 5, "split": 1, "trimmed": 1, "removed": 1, "too_many_pieces": 1}
    found = set(map(keys.text_of, counters.keys))
    assert {keys.owners[key] for key in found} == keys.items_with(found) == {"leak"}
    assert len(keys) == len(keys.owners)
    assert [piece.id for piece in left["split"]] == ["split#0", "split#1"]
    assert left["trimmed"][0].id == "trimmed"


@pytest.mark.parametrize("seed", range(20))
def test_letters_of_several_bytes_move_no_cut(seed):
    generator = generator_for(seed, "bytes")
    strange = str.maketrans({"w": "ŵ", "1": "日", "5": "𝟧"})
    items = {str(n): sentences(generator, 3).translate(strange) for n in range(6)}
    parts = [sentences(generator, 9).translate(strange) for _ in range(4)]
    text = " ".join(x for pair in zip(parts, items.values()) for x in pair)
    keys = Keys(items, CONFIG)
    result = cut(text, hits_in(text, keys), CONFIG)
    assert result.splits > 0
    assert (result.pieces, result.splits) == reference(text, keys.owners)


def test_a_shorter_key_counts_where_the_longer_one_that_begins_there_was_spared():
    words = [f"word{n}" for n in range(13)]
    keys = Keys({"long": " ".join(words), "short": " ".join(words[:9])}, CONFIG)
    text = " ".join(words)
    assert [keys.text_of(hit.key) for hit in hits_in(text, keys)] == [text]
    keys.spare([text])
    assert [keys.text_of(hit.key) for hit in hits_in(text, keys)] == [" ".join(words[:9])]


def test_key_with_a_colliding_hash_is_not_a_hit(monkeypatch):
    items = {"a": "these are eight words that nobody else writes", "b": "and here another eight words for the ÉTÉ"}
    text = "So THESE, are eight words that nobody else writes, x and here another eight words for the été"
    keys = Keys(items, CONFIG)
    assert [text[hit.start : hit.end] for hit in hits_in(text, keys)] == [text[3:49], text[53:]]

    def with_other_keys(*arguments):
        matches = find_ngrams(*arguments)
        return np.column_stack([matches[:, :3], 1 - matches[:, 3]])

    monkeypatch.setattr(decontaminate_module, "find_ngrams", with_other_keys)
    assert keys.hits(texts_of([text])) == {}
