"""Properties of every kind of tokenizer used by published models."""

import json
from pathlib import Path

import pytest
import tokenizers

from evaluation.scorers import passages
from tokens.encode_test import run
from tokens.foreign import folder_of
from tokens.kinds import KINDS, kind
from trivium.corpus.document import Document
from trivium.evaluation.requests import Request
from trivium.evaluation.windows import encode_all
from trivium.tokens.config import TokensConfig
from trivium.tokens.for_text import for_text, without_randomness
from trivium.tokens.manifest import open_shards
from trivium.tokens.marks import Marks
from trivium.tokens.tokenizer import Tokenizer, given_tokenizer, load_tokenizer

PLAIN = [
    "The people of the Government, by the people; it's 1,234.",
    "New York  is left of the right word,\n\nnot    elsewhere ",
    "Über naïve cafés, 文字 and \U0001f600! e\u0301 fi",
    "a",
    *[p["text"] for p in passages(3)],
]
SPECIAL = [
    "it ends </s> here<|endoftext|> and <s>begins [SEP] or [CLS]x[SEP]",
    "<|end|></s><unk>",
    "the bytes <0x0A>, <0x41> and <<0x41>>",
    "<|begin|> <eos> [EOS] [UNK] <pad> <|pad|> </s>\n",
]
PAIRS = [  # all ways in which a continuation may touch its context
    ("The peo", "ple"),
    ("The Government of the", "re"),
    ("citizen", "s of"),
    ("under", "stand"),
    ("They do", "n't"),
    ("it", "'s"),
    ("The people", " of"),
    ("The people ", "of the"),
    ("one\n\n", "The"),
    ("The people", "."),
    ("1,2", "34"),
    ("naïve caf", "és"),
    ("", "The people"),
    ("cafe", "\u0301s"),
    ("The peo", "ple </s> of"),
]


def words_of(name: str, folder: Path) -> Tokenizer:
    made = kind(name)
    return given_tokenizer(str(folder_of(folder, made.description, tokenizer_config=made.config)))


def names_of(words: Tokenizer, ids: list[int]) -> set[str]:
    return {token for token, number in words.words.items() if number in ids}


@pytest.mark.parametrize("name", KINDS)
def test_text_round_trips_with_ids_of_the_library(name: str, tmp_path: Path) -> None:
    words = words_of(name, tmp_path / "words")
    library = tokenizers.Tokenizer.from_str(kind(name).description)
    for text in PLAIN:
        ids = words.encode(text)
        assert ids == words.encode_batch([text])[0] == words.encode_arrays([text])[0].tolist()
        assert ids == library.encode(text, add_special_tokens=False).ids
        assert words.decode(ids) == text or not kind(name).lossless


@pytest.mark.parametrize("name", KINDS)
def test_ids_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Both plain texts and exported tokenizers with an opening are compared."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    words = words_of(name, tmp_path / "words")
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(str(tmp_path / "words"))
    exported = folder_of(tmp_path / "out", words.for_others, tokenizer_config=kind(name).config)
    asked = transformers.PreTrainedTokenizerFast.from_pretrained(str(exported))
    for text in PLAIN:
        assert words.encode(text) == theirs.encode(text, add_special_tokens=False)
        assert words.encode_prompts([text])[0] == asked.encode(text)


@pytest.mark.parametrize("name", KINDS)
def test_letters_of_special_tokens_stay_text(name: str, tmp_path: Path) -> None:
    words = words_of(name, tmp_path / "words")
    allowed = {words.unknown}
    for text in [*SPECIAL, *(f"x{token}y {token} {token}" for token in words.special)]:
        ids = words.encode(text)
        assert ids == words.encode_batch([text])[0] == words.encode_arrays([text])[0].tolist()
        assert not names_of(words, ids) & (set(words.special) - allowed)
        (prompt,) = words.encode_prompts([text])
        assert prompt == words.opening + ids
        assert words.decode(ids) == text or not kind(name).lossless
        assert words.decode(ids) == text or name != "Unigram, bytes" or "  " in text


@pytest.mark.parametrize("name", KINDS)
def test_documents_end_once_and_are_encoded_as_text(name: str, tmp_path: Path) -> None:
    words = words_of(name, tmp_path / "words")
    texts = [*PLAIN, *SPECIAL] * 3
    docs = [Document(str(n), text, "web") for n, text in enumerate(texts)]
    place = str(tmp_path / "words")
    config = TokensConfig(vocabulary=words.vocabulary, tokenizer=place, validation_fraction=0.1)
    manifest, out = run(tmp_path, docs, {"web": 1.0}, config)
    shards = [open_shards(out, split)["web"] for split in ("train", "validation")]
    found = [shard[n].tolist() for shard in shards for n in range(len(shard))]
    expected = [[*words.opening, *words.encode(text), words.end_of_text] for text in texts]
    assert sorted(found) == sorted(expected) and manifest["end_of_text"] == words.end_of_text
    assert load_tokenizer(out / "tokenizer.json").identity == words.identity


def test_unigram_ignores_special_tokens_in_text(tmp_path: Path) -> None:
    """SentencePiece never matches its control pieces either."""
    words = words_of("Unigram", tmp_path / "words")
    tree = json.loads(kind("Unigram").description)
    tree["added_tokens"] = []
    for token in words.special:
        tree["model"]["vocab"][words.words[token]][0] = ""
    without = tokenizers.Tokenizer.from_str(json.dumps(tree))
    assert [words.encode(t) for t in SPECIAL] == [without.encode(t, add_special_tokens=False).ids for t in SPECIAL]
    matched = tokenizers.Tokenizer.from_str(kind("Unigram").description)
    matched.encode_special_tokens = True
    assert 1 in matched.encode("a </s>", add_special_tokens=False).ids  # the library's default behaviour


def test_special_tokens_spelled_by_merges_are_not_matched() -> None:
    """The tokens are built by merges, or looked up as full words."""
    letters = [*"<end>~ab"]
    merges = [["<", "e"], ["n", "d"], ["<e", "nd"], ["<end", ">"], ["a", "b"]]
    vocab = {token: n for n, token in enumerate([*letters, *("".join(m) for m in merges)])}
    added = [
        {"id": vocab[one], "content": one, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for one in ("<end>", "~")
    ]
    for whole in (False, True):
        model = {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": whole, "unk_token": None}
        model |= dict.fromkeys(("dropout", "continuing_subword_prefix", "end_of_word_suffix"))
        tree = {"version": "1.0", "model": model | {"fuse_unk": False, "byte_fallback": False}}
        tree |= dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor"))
        words = Tokenizer(json.dumps(tree | {"decoder": {"type": "Fuse"}, "added_tokens": added}), Marks("<end>"))
        assert words.encode("<end>") == [vocab["<end"], vocab[">"]]
        assert words.encode("ab~") == [vocab["ab"]]
        assert words.decode([vocab["<end>"], vocab["~"]]) == "<end>~"


@pytest.mark.parametrize("name", [k for k in KINDS if '"BPE"' in kind(k).description])
def test_bpe_dropout_is_disabled(name: str, tmp_path: Path) -> None:
    made, plain = kind(name), words_of(name, tmp_path / "plain")
    tree = json.loads(made.description)
    tree["model"]["dropout"] = 0.5
    tree["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    tree["padding"] = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_id": 0, "pad_type_id": 0,
                       "pad_token": "x", "pad_to_multiple_of": None}  # fmt: skip
    place = folder_of(tmp_path / "words", json.dumps(tree), tokenizer_config=made.config)
    for words in (given_tokenizer(str(place)), load_tokenizer(place / "tokenizer.json")):
        assert (words.bulk is None) == (plain.bulk is None)
        for text in PLAIN:
            assert words.encode(text) == plain.encode(text) == words.encode_batch([text])[0]
            assert words.encode_arrays([text])[0].tolist() == plain.encode(text)
        assert words.opening == plain.opening
        others = [tokenizers.Tokenizer.from_str(words.for_others) for _ in range(2)]
        assert others[0].model.dropout is None
        assert words.description == json.dumps(tree)  # the file is unchanged, because its hash identifies it


def test_unigram_sampling_is_disabled() -> None:
    tree = json.loads(kind("Unigram").description)
    tree["model"] |= {"alpha": 0.1, "nbest_size": 64}
    for description in (without_randomness(json.dumps(tree)), for_text(json.dumps(tree), ["</s>"])):
        model = json.loads(description)["model"]
        assert model["alpha"] is model["nbest_size"] is None


@pytest.mark.parametrize("name", KINDS)
def test_ids_of_a_request_spell_its_text(name: str, tmp_path: Path) -> None:
    words = words_of(name, tmp_path / "words")
    for pair, encoded in zip(PAIRS, encode_all([Request(*p) for p in PAIRS], words), strict=True):
        context, continuation = pair
        assert encoded.context and encoded.continuation
        if not context:
            assert encoded == ([words.before_text], words.encode(continuation))
            continue
        (whole,) = words.encode_prompts([context + continuation])
        (before,) = words.encode_prompts([context.rstrip()])
        given = [] if encoded.context == [words.before_text] else encoded.context
        assert words.decode([*given, *encoded.continuation]) == words.decode(whole)
        if whole[: len(before)] == before and len(whole) > len(before):  # the harness's own rule
            assert encoded == (before, whole[len(before) :])
        elif kind(name).spells and pair != ("cafe", "\u0301s"):  # NFC composes two characters into one
            assert encoded.context == before
            if kind(name).lossless:
                assert words.decode_after(before, encoded.continuation) == (
                    context[len(context.rstrip()) :] + continuation
                )


def test_word_level_continuation_follows_shared_prefix(tmp_path: Path) -> None:
    words = words_of("WordLevel", tmp_path / "words")
    (encoded,) = encode_all([Request("The peo", "ple")], words)
    assert encoded == (words.encode("The"), words.encode("people"))
    (encoded,) = encode_all([Request("qx", "zq")], words)  # one unknown word, whatever its letters are
    assert encoded == ([words.before_text], words.encode("qxzq"))
