"""Tokenizer files of others cannot make encoding slow or large without an error."""

import re

import pytest
import tokenizers

from trivium.errors import ConfigError, DataError
from trivium.tokens.tokenizer import _BLANKS, given_tokenizer, load_tokenizer, train_tokenizer

WORDS = "The quick brown fox that is in the house was seen and heard by the dog, and to be of use. "


def test_long_run_of_one_letter_gives_no_long_token():
    text = WORDS * 50 + "a" * 50_000 + " " + WORDS
    tokenizer = train_tokenizer([text, "-" * 20_000, " " * 20_000, "é" * 20_000], 700)
    assert max(map(len, tokenizer.words)) <= 128
    assert tokenizer.bulk is not None
    (ids,) = tokenizer.encode_arrays([text])
    assert tokenizer.decode(ids.tolist()) == text
    assert ids.tolist() == tokenizer.encode(text)


def test_wordpiece_with_unbounded_words_is_refused(tmp_path):
    library = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(
            {"[UNK]": 0, "a": 1, "##a": 2, "<|endoftext|>": 3}, unk_token="[UNK]", max_input_chars_per_word=1_000_000
        )
    )
    library.add_special_tokens(["<|endoftext|>"])
    path = tmp_path / "tokenizer.json"
    library.save(str(path))
    with pytest.raises(ConfigError, match="max_input_chars_per_word = 1000000.*set it to 1024 or less"):
        given_tokenizer(str(path))
    path.write_text(path.read_text().replace("1000000", "1024"))
    assert given_tokenizer(str(path)).encode("aa") == [1, 2]


def test_words_end_at_the_blanks_of_the_library():
    """Else a text of others is one long word for the trainer, which takes quadratic time in it."""
    library = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"\s"), "removed")
    for code in (*range(0x3100), 0xFEFF):
        text = "a" + chr(code) + "b"
        ends = library.pre_tokenize_str(text)[0][0] == "a"
        assert ends == bool(re.search(f"[{_BLANKS}]", text)), hex(code)


def tokenizer_with(tmp_path, **parts):
    """A tokenizer file of two letters, with other steps."""
    library = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "<|endoftext|>": 2}, []))
    library.add_special_tokens(["<|endoftext|>"])
    for name, part in parts.items():
        setattr(library, name, part)
    library.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "tokenizer.json")


# A pattern of DeepSeek-V2's tokenizer and one that groups digits from the right: both take time quadratic in a run.
PUBLISHED = [r"\s+$", r"(?=(\d{3})+(?!\d))"]


@pytest.mark.parametrize("pattern", PUBLISHED)
def test_patterns_of_published_tokenizers_are_accepted(tmp_path, pattern):
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    assert given_tokenizer(tokenizer_with(tmp_path, pre_tokenizer=split)).encode("a")


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)+b", r"(\w+)*z", r"(\s|[ ])+x", "(1*)*2", "(é|éé)+b", "(x+x+)+y"])
@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer"])
def test_tokenizer_with_backtracking_patterns_is_refused(tmp_path, part, pattern):
    regex = tokenizers.Regex(pattern)
    step = {
        "normalizer": lambda: tokenizers.normalizers.Replace(regex, "a"),
        "pre_tokenizer": lambda: tokenizers.pre_tokenizers.Split(regex, "isolated"),
    }[part]()
    path = tokenizer_with(tmp_path, **{part: step})
    with pytest.raises(ConfigError, match=r"tokens.tokenizer: .*tokenizer.json: \d+ times '.'.*as a\+\+ in place"):
        given_tokenizer(path)
    with pytest.raises(ConfigError, match=r"tokenizer.json: \d+ times '.'"):
        load_tokenizer(path)


@pytest.mark.parametrize(
    "steps",
    [
        [tokenizers.normalizers.Replace("a", "aa")] * 40,
        [tokenizers.normalizers.Replace("a", "a" * 100_000)],
        [tokenizers.normalizers.Replace(tokenizers.Regex(""), "a" * 40)] * 3,
        [tokenizers.normalizers.Prepend("a" * 1000)],
        [tokenizers.normalizers.ByteLevel()] * 40,
        [tokenizers.normalizers.Sequence([tokenizers.normalizers.Replace("a", "aaaa")] * 2)] * 3,
        [tokenizers.normalizers.NFC()] * 1000,
    ],
)
def test_tokenizer_whose_steps_multiply_a_text_is_refused(tmp_path, steps):
    path = tokenizer_with(tmp_path, normalizer=tokenizers.normalizers.Sequence(steps))
    with pytest.raises(ConfigError, match="normalizer (may make|has 1000 steps).*; the limit is 64: remove"):
        given_tokenizer(path)


def test_steps_of_published_tokenizers_are_within_the_bounds(tmp_path):
    n, p = tokenizers.normalizers, tokenizers.pre_tokenizers
    normalizers = [
        n.Sequence([n.Prepend("▁"), n.Replace(" ", "▁")]),
        n.Sequence([n.Replace("``", '"'), n.Replace("''", '"'), n.NFKD(), n.StripAccents(), n.Lowercase()]),
        n.Sequence([n.Nmt(), n.NFKC(), n.Replace(tokenizers.Regex(" {2,}"), " ")]),
        n.BertNormalizer(),
        n.ByteLevel(),
    ]
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    words += r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    splits = [p.Sequence([p.Split(tokenizers.Regex(words), "isolated"), p.ByteLevel(use_regex=False)])]
    splits += [p.ByteLevel(), p.Metaspace(), p.BertPreTokenizer(), p.Sequence([p.Digits(), p.Punctuation()])]
    for normalizer in normalizers:
        for split in splits:
            path = tokenizer_with(tmp_path, normalizer=normalizer, pre_tokenizer=split)
            assert given_tokenizer(path).vocabulary == 3


def test_panic_of_the_library_is_an_error_with_a_remedy(tmp_path):
    regex = tokenizers.Regex(r"ab(?:ab|a|b)+(?:ab|ba)+c")  # no run of one letter is slow
    path = tokenizer_with(tmp_path, pre_tokenizer=tokenizers.pre_tokenizers.Split(regex, "isolated"))
    tokenizer = given_tokenizer(path)
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_batch([text])):
        with pytest.raises(DataError, match=r"cannot encode a text \(.*retry-limit.*; write the patterns"):
            encode("ab" * 5000)
