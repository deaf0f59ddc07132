"""Tokenizers by name: GPT-2's, whose merges are shipped (gpt2.md), and tiktoken's, which tiktoken downloads."""

import json
import lzma
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import tiktoken

from trivium.config import shipped
from trivium.errors import MachineError
from trivium.tokens.bulk import BYTE_OF, PATTERN
from trivium.tokens.marks import END_OF_TEXT
from trivium.untrusted import read_bytes

_SHIPPED = ("gpt2", "r50k_base")  # two names of one encoding
_DOWNLOADED = ("p50k_base", "cl100k_base", "o200k_base")
NAMES = (*_SHIPPED, *_DOWNLOADED)
_LETTER_OF = {byte: letter for letter, byte in BYTE_OF.items()}
# tiktoken's patterns in the syntax of the tokenizers library, in which `$` also matches before a line feed, and `+`
# behind a counted repeat repeats it. Without possessive repeats these patterns match the same pieces.
_SYNTAX = (("s++$", r"s+\z"), ("}+", "}"), ("?+", "?"), ("*+", "*"), ("++", "+"))


@lru_cache(maxsize=2)
def description_of(name: str) -> str:
    """Return the description, as in a `tokenizer.json`, of the tokenizer that NAMES lists under this name.

    Raises MachineError if it must be downloaded and cannot be.
    """
    if name in _SHIPPED:
        return _gpt2()
    try:
        return _described(tiktoken.get_encoding(name))
    except Exception as error:  # errors of requests, which only tiktoken needs, OSError, or ValueError for a wrong hash
        raise MachineError(
            f"tokens.tokenizer: tiktoken cannot download {name} ({type(error).__name__}: {error}); connect to a "
            f"network, set TIKTOKEN_CACHE_DIR to a folder that has it, or take gpt2, which is part of Trivium"
        ) from None


def _gpt2() -> str:
    """GPT-2's ids are those of the bytes, of the merges in their order, and of the end of text."""
    text = lzma.decompress(read_bytes(shipped("tokens/gpt2.bpe.xz"))).decode("utf-8")
    merges = [line.split(" ") for line in text.splitlines()[1:]]
    tokens = [*BYTE_OF, *(first + second for first, second in merges)]
    model = {"vocab": {token: number for number, token in enumerate(tokens)}, "merges": merges}
    return _tree(model, {END_OF_TEXT: len(tokens)}, None)


def _described(encoding: tiktoken.Encoding) -> str:
    """Return the description of a tiktoken encoding.

    tiktoken joins the neighbours whose concatenation has the lowest rank, so every division of a token into two others
    is a merge, in the order of the tokens' ranks. A piece of text that is a token is never divided.
    """
    ranks: Mapping[bytes, int] = encoding._mergeable_ranks
    merges: list[tuple[str, str]] = []
    for token, _ in sorted(ranks.items(), key=lambda item: item[1]):
        parts = [(token[:at], token[at:]) for at in range(1, len(token))]
        known = [pair for pair in parts if pair[0] in ranks and pair[1] in ranks]
        merges += [
            (_letters(first), _letters(second))
            for first, second in sorted(known, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        ]
    model = {"vocab": {_letters(token): rank for token, rank in ranks.items()}, "merges": merges, "ignore_merges": True}
    pattern = None if encoding._pat_str == PATTERN else encoding._pat_str
    return _tree(model, encoding._special_tokens, pattern)


def _letters(token: bytes) -> str:
    return "".join(_LETTER_OF[byte] for byte in token)


def _tree(model: Mapping[str, Any], special: Mapping[str, int], pattern: str | None) -> str:
    """Return the JSON of a byte-level BPE. pattern: of the pieces of a text, in tiktoken's syntax; None: GPT-2's."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": pattern is None}
    before: dict[str, Any] = level
    if pattern is not None:
        for theirs, ours in _SYNTAX:
            pattern = pattern.replace(theirs, ours)
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        before = {"type": "Sequence", "pretokenizers": [split, level]}
    # The library numbers special tokens after the vocabulary, unless they are in it.
    model = {"type": "BPE", **model, "vocab": {**model["vocab"], **special}}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [{"id": number, "content": token, **flags} for token, number in special.items()],
            "normalizer": None,
            "pre_tokenizer": before,
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": model,
        },
        ensure_ascii=False,
    )
