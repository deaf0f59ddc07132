"""Tokenizers by name give the ids of their publishers, and names that cannot be used are reported with a remedy."""

import hashlib
import json
import lzma
import os
from pathlib import Path

import pytest
import tiktoken
import tiktoken_ext.openai_public as published
from hypothesis import given, settings
from hypothesis import strategies as st

from tokens.curated import prose
from trivium.config import shipped
from trivium.errors import DataError, MachineError
from trivium.tokens import by_name
from trivium.tokens.bulk import BYTE_OF, PATTERN
from trivium.tokens.tokenizer import Tokenizer, given_tokenizer, train_tokenizer

DATA = Path(os.environ.get("TRIVIUM_DATA", "/nonexistent"))
TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.text(st.sampled_from("\r\n\t \u00a0\u0085\u2028aZéÉǅ1٣'’_/!.🦄\u0301sLl中")),
    st.lists(st.sampled_from(["<|endoftext|>", "'ll", "I'LL", " ve", "  ", "\n\n", "12345", "Wörter", " a"])).map(
        "".join
    ),
)


def test_shipped_merges_are_those_that_tiktoken_requires():
    content = lzma.decompress(shipped("tokens/gpt2.bpe.xz").read_bytes())
    wanted = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
    assert hashlib.sha256(content).hexdigest() == wanted
    assert wanted in Path(published.__file__).read_text()


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    return given_tokenizer("gpt2")


def test_gpt2_has_the_published_ids(gpt2):
    assert (gpt2.vocabulary, gpt2.end_of_text, gpt2.opening) == (50257, 50256, [])
    assert gpt2.encode("Hello world, it's 2024!") == [15496, 995, 11, 340, 338, 48609, 0]
    assert gpt2.decode([15496, 995]) == "Hello world"
    assert 50256 not in gpt2.encode("<|endoftext|>")


def test_gpt2_is_the_tokenizer_of_hugging_face(gpt2):
    path = DATA / "tokenizer" / "gpt2" / "tokenizer.json"
    if not path.is_file():
        pytest.skip("TRIVIUM_DATA/tokenizer/gpt2 is not there: it holds GPT-2's tokenizer.json")
    theirs, ours = (json.loads(text)["model"] for text in (path.read_text(), gpt2.description))
    assert ours["vocab"] == theirs["vocab"]
    assert [" ".join(merge) for merge in ours["merges"]] == theirs["merges"] or ours["merges"] == theirs["merges"]


def small(name: str) -> tiktoken.Encoding:
    """An encoding with the pattern and special tokens of a published one, and a few hundred ranks of its own."""
    words = json.loads(
        train_tokenizer([prose(n, 400) for n in range(5)] + ["  \n\n Wörter 12 345"] * 9, 700).description
    )
    pieces = [word for word in words["model"]["vocab"] if word != "<|endoftext|>"]
    ranks = {bytes(BYTE_OF[letter] for letter in word): number for number, word in enumerate(pieces)}
    pattern, special = PATTERN, {"<|endoftext|>": 900, "<|endofprompt|>": 920}
    if name != "p50k_base":
        real = published.load_tiktoken_bpe
        published.load_tiktoken_bpe = lambda *_, **__: {}
        pattern = published.ENCODING_CONSTRUCTORS[name]()["pat_str"]
        published.load_tiktoken_bpe = real
    return tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)


SMALL = {name: small(name) for name in by_name._DOWNLOADED}
OURS = {name: Tokenizer(by_name._described(encoding)) for name, encoding in SMALL.items()}


@settings(max_examples=150, deadline=None)
@given(TEXT, st.sampled_from(sorted(SMALL)))
def test_ids_equal_those_of_tiktoken(text, name):
    assert OURS[name].encode(text) == SMALL[name].encode(text, disallowed_special=())


def test_a_downloaded_encoding_keeps_the_ids_of_its_special_tokens(monkeypatch):
    by_name.description_of.cache_clear()
    monkeypatch.setattr(tiktoken, "get_encoding", SMALL.__getitem__)
    found = given_tokenizer("cl100k_base")
    assert (found.vocabulary, found.end_of_text) == (921, 900)
    by_name.description_of.cache_clear()


def test_without_a_network_the_remedies_are_named(monkeypatch):
    def get_encoding(name):
        raise ConnectionError("no route")

    by_name.description_of.cache_clear()
    monkeypatch.setattr(tiktoken, "get_encoding", get_encoding)
    with pytest.raises(
        MachineError, match=r"cannot download o200k_base \(ConnectionError: no route\); .*TIKTOKEN_CACHE"
    ):
        given_tokenizer("o200k_base")


@pytest.mark.parametrize("wrong, right", [("gpt-2", "gpt2"), ("cl100k", "cl100k_base"), ("o200k_bse", "o200k_base")])
def test_a_name_that_does_not_exist_suggests_the_nearest(wrong, right):
    with pytest.raises(DataError, match=f"tokens.tokenizer: {wrong} does not exist; .*did you mean '{right}'"):
        given_tokenizer(wrong)
