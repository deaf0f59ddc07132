"""The bulk encoder gives the ids of the library for every text, or is not used."""

import json
import os
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tokens.curated import prose
from trivium.errors import DataError
from trivium.tokens import bulk
from trivium.tokens.bulk import BYTE_OF, equal_encoding, merges_alone_decide
from trivium.tokens.tokenizer import END_OF_TEXT, Tokenizer, given_tokenizer, train_tokenizer

DATA = Path(os.environ.get("TRIVIUM_DATA", "/nonexistent"))
HARD = st.one_of(
    st.text(),
    st.text(st.sampled_from("\r\n\t \u00a0\u0085\u2028aZé1٣'’_!🦄\u0301")),
    st.lists(
        st.sampled_from([END_OF_TEXT, "<|endoftext|", "'ll", "'S", " 've", "  ", "\n\n", "ab" * 40, "\ud800", "\udc00"])
    ).map("".join),
)


TRAINED = train_tokenizer(
    [prose(i, 400) for i in range(5)] + ["aaa aaaa aaaaaaa \n\n\n  naïve 2024, 'tis we'll"] * 9, 700
)


@pytest.fixture(scope="module")
def gpt2():
    if not (DATA / "tokenizer" / "gpt2").is_dir():
        pytest.skip("TRIVIUM_DATA/tokenizer/gpt2 is not there: it holds GPT-2's tokenizer.json")
    return given_tokenizer(str(DATA / "tokenizer" / "gpt2"))


def same(tokenizer, text):
    """Assert that both encoders give the same ids, or both reject."""
    try:
        expected = tokenizer.encode(text)
    except DataError:
        with pytest.raises(DataError, match="lone surrogate"):
            tokenizer.encode_arrays([text])
        return
    (found,) = tokenizer.encode_arrays([text])
    assert found.tolist() == expected
    assert found.dtype == np.uint32


@settings(max_examples=400, deadline=None)
@given(HARD)
def test_ids_equal_those_of_the_library(text):
    assert TRAINED.bulk is not None
    same(TRAINED, text)


def test_ids_equal_those_of_gpt2(gpt2):
    assert gpt2.bulk is not None and gpt2.vocabulary == 50257 and gpt2.end_of_text == 50256

    @settings(max_examples=400, deadline=None)
    @given(HARD)
    def check(text):
        same(gpt2, text)

    check()


@pytest.mark.broad
def test_characters_have_equal_classes_in_both():
    """Letters, numbers, blanks and other characters separate words. Each Unicode character is tested between two of
    each kind, with GPT-2's many merges, which show how words were separated."""
    tokenizer = given_tokenizer("gpt2")
    characters = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cs", "Cn", "Co", "Lo")]
    others = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) in ("Cn", "Co", "Lo")][::17]
    alone = [f"a{c}a 1{c}1 !{c}! {c} {c}{c}'s \n{c}  x" for c in characters + others]
    texts = ["".join(alone[n : n + 50]) for n in range(0, len(alone), 50)]
    for expected, found in zip(tokenizer.encode_batch(texts), tokenizer.encode_arrays(texts), strict=True):
        assert found.tolist() == expected


@pytest.mark.parametrize("letter", ["\u088f", "\U00010940", "\U00018d1e", "\U0001e6c0", "\U00033479"])
def test_letters_that_only_the_bulk_encoder_knows_are_encoded_by_the_library(letter):
    here, other = TRAINED.bulk.encode([f"a{letter}", "a\U0001f9845é"])
    assert here is None and other is not None
    same(TRAINED, f"a{letter}b 1{letter} {letter}! {letter}")


def test_threads_encode_at_once():
    texts = [prose(seed, 20_000) for seed in range(4)]
    for _ in range(4):
        together = Barrier(4)
        bulk = equal_encoding(TRAINED.description)

        def encoded(text: str, bulk=bulk, together=together) -> list[int]:
            together.wait()
            return [ids.tolist() for ids in bulk.encode([text] * 3)]

        with ThreadPoolExecutor(4) as pool:
            assert [*pool.map(encoded, texts)] == [[ids] * 3 for ids in TRAINED.encode_batch(texts)]


def test_a_word_that_ends_documents_is_spelled_in_a_text():
    tokenizer = train_tokenizer([prose(1, 400)], 400, end="eos")
    assert tokenizer.bulk is not None
    same(tokenizer, "eos eoseos eos")
    assert tokenizer.end_of_text not in tokenizer.encode_arrays(["eos eos"])[0]


@pytest.mark.parametrize(
    "text",
    ["\n" * 1_000_000 + "x", " " * 300_000, "ab" * 60_000, "é" * 60_000, END_OF_TEXT * 5_000, "'" * 60_000],
    ids=["line ends", "blanks", "letters", "accents", "end marks", "quotes"],
)
def test_long_runs_have_equal_ids(text):
    same(TRAINED, text)
    assert TRAINED.end_of_text not in TRAINED.encode_arrays([text])[0]


def changed(**changes):
    """Return the trained tokenizer with other settings."""
    tree = json.loads(TRAINED.description)
    for path, value in changes.items():
        *names, last = path.split("__")
        at = tree
        for name in names:
            at = at[name]
        at[last] = value
    return json.dumps(tree)


NOT_SPECIAL = {"id": 0, "content": END_OF_TEXT, "special": False}


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "NFC"}},
        {"pre_tokenizer__add_prefix_space": True},
        {"pre_tokenizer__use_regex": False},
        {"pre_tokenizer": None},
        {"model__dropout": 0.1},
        {"model__ignore_merges": True},
        {"model__byte_fallback": True},
        {"model__end_of_word_suffix": "</w>"},
        {"added_tokens": [NOT_SPECIAL]},
        {"added_tokens": []},
    ],
    ids=str,
)
def test_other_tokenizers_are_not_encoded_in_bulk(change):
    assert equal_encoding(TRAINED.description) is not None
    assert equal_encoding(changed(**change)) is None


def test_merges_out_of_id_order_are_rejected():
    words = {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5}
    assert merges_alone_decide([("a", "b"), ("b", "c"), ("ab", "c")], words)
    assert not merges_alone_decide([("b", "c"), ("a", "b"), ("a", "bc")], words)  # ids decrease
    # "abc" would be joined as ab + c, but its merge joins a + bc
    assert not merges_alone_decide([("a", "b"), ("b", "c"), ("a", "bc")], words)
    assert not merges_alone_decide([("a", "b"), ("b", "c"), ("ab", "d")], words)  # there is no such token
    assert not merges_alone_decide([("a", "b"), ("a", "b")], words)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.text("ab", max_size=60))
def test_accepted_random_merges_agree(seed, text):
    """Most random merges could not result from training. The check ensures that both encoders agree."""
    generator = np.random.default_rng(seed)
    words = {letter: number for number, letter in enumerate(BYTE_OF)}
    merges, parts = [], ["a", "b"]
    for _ in range(generator.integers(1, 6)):
        pair = tuple(str(generator.choice(parts)) for _ in range(2))
        if "".join(pair) not in words:
            words["".join(pair)] = len(words)
            merges.append(pair)
            parts.append("".join(pair))
    library = tokenizers.Tokenizer(tokenizers.models.BPE(words, merges))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.add_special_tokens([END_OF_TEXT])
    tokenizer = Tokenizer(library.to_str())
    assert (tokenizer.bulk is not None) == merges_alone_decide(merges, words)
    same(tokenizer, text)


def test_a_new_encoder_is_made_before_the_cache_of_words_grows_without_bound(monkeypatch):
    monkeypatch.setattr(bulk, "_MAX_IDS", 1000)
    encoder, used = equal_encoding(TRAINED.description), []
    for n in range(20):
        text = " ".join(f"{n}{k}" for k in range(60))
        (ids,) = encoder.encode([text])
        assert ids.tolist() == TRAINED.encode(text)
        used.append((encoder._own.encoder, len(ids)))
    read = {}
    for one, ids in used:
        read[id(one)] = read.get(id(one), 0) + ids
    assert len(read) > 2
    assert max(read.values()) < 1000 + max(ids for _, ids in used)
