"""A small tokenizer of each kind used by published models, as Hugging Face folders."""

import json
import string
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tokens.curated import prose

TEXTS = [prose(n, 300) for n in range(6)] + [
    "The people of the Government of the people, by the people; it's 1,234 °C.\n\n"
    "Über naïve cafés, 文字 and \U0001f600!",
    "Citizens of the peo ple's re public: there, therein, thereof. Do n't they understand?",
]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_SPACES = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)


class Kind(NamedTuple):
    """A tokenizer.json and its tokenizer_config.json. lossless: whether every text round-trips. spells: whether it
    encodes parts of words."""

    description: str
    config: Mapping[str, Any]
    lossless: bool = True
    spells: bool = True


def _library(model: Any, normalizer: Any, before: Any, decoder: Any) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(model)
    for name, part in (("normalizer", normalizer), ("pre_tokenizer", before), ("decoder", decoder)):
        if part is not None:
            setattr(library, name, part)
    return library


def _learned(library: tokenizers.Tokenizer, special: list[str], size: int = 600, **more: Any) -> None:
    trainer = {
        "BPE": trainers.BpeTrainer,
        "Unigram": trainers.UnigramTrainer,
        "WordPiece": trainers.WordPieceTrainer,
        "WordLevel": trainers.WordLevelTrainer,
    }[type(library.model).__name__]
    library.train_from_iterator(TEXTS, trainer(vocab_size=size, special_tokens=special, show_progress=False, **more))


def _opened(library: tokenizers.Tokenizer, begin: str) -> None:
    library.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A {begin} $B", special_tokens=[(begin, library.token_to_id(begin))]
    )


def _byte_level(*, prefix_space: bool = False, **model: Any) -> Kind:
    before = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    library = _library(models.BPE(**model), None, before, decoders.ByteLevel())
    _learned(library, ["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    return Kind(library.to_str(), {"eos_token": "<|endoftext|>"}, lossless=not prefix_space)


def _split_bytes(end: str, begin: str | None, pattern: str, normalizer: Any = None, **model: Any) -> Kind:
    """Build a byte-level tokenizer with its own pattern; special tokens are not pieces of the model."""
    before = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library = _library(models.BPE(**model), normalizer, before, decoders.ByteLevel())
    _learned(library, [], initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    library.add_special_tokens([AddedToken(token, special=True) for token in (begin, end) if token])
    if begin is not None:
        _opened(library, begin)
    marks = {"eos_token": end} | ({} if begin is None else {"bos_token": begin})
    return Kind(library.to_str(), marks, lossless=normalizer is None)


def _sentencepiece(model: Any, before: Any, normalizer: Any = None, *, opens: bool = True) -> Kind:
    """Build a SentencePiece-like BPE: <unk>, <s> and </s> are pieces, and unknown characters are bytes."""
    library = _library(model, None, pre_tokenizers.Metaspace(prepend_scheme="always"), _SPACES)
    # pieces within words, as SentencePiece learns them
    _learned(library, ["<unk>", "<s>", "</s>", *BYTES], 900)
    library.pre_tokenizer, library.normalizer = before, normalizer
    if opens:
        _opened(library, "<s>")
    tree = json.loads(library.to_str())
    tree["added_tokens"] = tree["added_tokens"][:3]  # bytes are not special
    marks = {"eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}
    return Kind(json.dumps(tree), marks)


def _bpe() -> Any:
    return models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True)


def _unigram(*, scheme: str = "always", closes: bool = False, bytes_too: bool = False) -> Kind:
    """Build a T5-like Unigram tokenizer, some pieces of which are the special tokens."""
    space = {"replacement": "▁", "prepend_scheme": scheme}
    decoder: Any = decoders.Metaspace(**space)
    if bytes_too:
        decoder = _SPACES
    library = _library(models.Unigram(), normalizers.NFKC(), pre_tokenizers.Metaspace(**space), decoder)
    special = ["<pad>", "</s>", "<unk>", *(BYTES if bytes_too else ())]
    _learned(library, special, unk_token="<unk>")
    if closes:
        library.post_processor = processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
        )
    tree = json.loads(library.to_str())
    tree["added_tokens"] = tree["added_tokens"][:3]
    tree["model"]["byte_fallback"] = bytes_too
    return Kind(json.dumps(tree), {"eos_token": "</s>", "unk_token": "<unk>"}, lossless=False)


def _word_piece(before: Any) -> Kind:
    library = _library(
        models.WordPiece(unk_token="[UNK]"), normalizers.BertNormalizer(), before, decoders.WordPiece(cleanup=False)
    )
    _learned(library, ["[PAD]", "[UNK]", "[CLS]", "[SEP]"], 700)
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return Kind(library.to_str(), {"eos_token": "[SEP]", "unk_token": "[UNK]"}, lossless=False)


def _word_level() -> Kind:
    library = _library(models.WordLevel(unk_token="[UNK]"), None, pre_tokenizers.WhitespaceSplit(), None)
    _learned(library, ["[UNK]", "[EOS]"], 700)
    return Kind(library.to_str(), {"eos_token": "[EOS]", "unk_token": "[UNK]"}, lossless=False, spells=False)


def _characters() -> Kind:
    """Build a tokenizer with one id per character, as in small teaching models."""
    letters = sorted({*"".join(TEXTS), *string.printable, "\u0301"})
    words = {token: number for number, token in enumerate(["<eos>", "<unk>", *letters])}
    library = _library(models.BPE(words, [], unk_token="<unk>"), None, None, decoders.Fuse())
    library.add_special_tokens(["<eos>", "<unk>"])
    return Kind(library.to_str(), {"eos_token": "<eos>", "unk_token": "<unk>"})


def _added() -> Kind:
    """Build a byte-level tokenizer whose added tokens contain spaces or strip adjacent ones."""
    library = tokenizers.Tokenizer.from_str(_byte_level().description)
    library.add_tokens(
        [
            AddedToken("New York", normalized=False),
            AddedToken("left", lstrip=True, normalized=False),
            AddedToken("right", rstrip=True, normalized=False),
            AddedToken("word", single_word=True, normalized=False),
            AddedToken("    ", normalized=False),
        ]
    )
    library.add_special_tokens([AddedToken("<|pad|>", lstrip=True, rstrip=True)])
    return Kind(library.to_str(), {"eos_token": "<|endoftext|>"}, lossless=False)


def _gemma() -> Kind:
    """Build a Gemma-like tokenizer: spaces are letters, and there is no pre-tokenizer."""
    made = _sentencepiece(_bpe(), pre_tokenizers.Split(" ", "merged_with_previous"), normalizers.Replace(" ", "▁"))
    tree = json.loads(made.description)
    tree["decoder"]["decoders"] = tree["decoder"]["decoders"][:-1]  # no space was put before the text
    return made._replace(description=json.dumps(tree))


_MAKE: Mapping[str, Callable[[], Kind]] = {
    "byte-level": _byte_level,
    "byte-level, prefix space": lambda: _byte_level(prefix_space=True),
    "byte-level, added tokens": _added,
    "Llama 3": lambda: _split_bytes("<|end|>", "<|begin|>", LLAMA3, ignore_merges=True),
    "Qwen": lambda: _split_bytes("<|endoftext|>", None, LLAMA3, normalizers.NFC()),
    "Metaspace first": lambda: _sentencepiece(_bpe(), pre_tokenizers.Metaspace(prepend_scheme="first")),
    "Metaspace always": lambda: _sentencepiece(_bpe(), pre_tokenizers.Metaspace(prepend_scheme="always"), opens=False),
    "Metaspace never": lambda: _never(),
    "SentencePiece BPE": lambda: _sentencepiece(
        _bpe(), None, normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    ),
    "Gemma": _gemma,
    "Unigram": _unigram,
    "Unigram, T5": lambda: _unigram(closes=True),
    "Unigram, bytes": lambda: _unigram(scheme="first", bytes_too=True),
    "WordPiece": lambda: _word_piece(pre_tokenizers.BertPreTokenizer()),
    "WordPiece, whole words": lambda: _word_piece(pre_tokenizers.WhitespaceSplit()),
    "WordLevel": _word_level,
    "characters": _characters,
}
KINDS = tuple(_MAKE)


def _never() -> Kind:
    made = _sentencepiece(_bpe(), pre_tokenizers.Metaspace(prepend_scheme="never"))
    tree = json.loads(made.description)
    tree["decoder"]["decoders"] = tree["decoder"]["decoders"][:-1]
    return made._replace(description=json.dumps(tree))


@cache
def kind(name: str) -> Kind:
    """Return the tokenizer of a kind, built once."""
    return _MAKE[name]()
