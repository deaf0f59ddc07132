"""The same tokenizer in tiktoken, several times as fast, where its ids are certain to be the same.

tiktoken knows no list of merges: it joins the two neighbours whose bytes together are the token of the lowest id.
That is what a byte-level BPE does when ids rise in the order of the merges and the bytes of every token, merged by
the earlier merges alone, end as the two parts that its own merge joins. Both are checked here, merge by merge.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import tiktoken

# The pattern of GPT-2 with possessive repeats, which match the same pieces and never go back (tiktoken's r50k_base).
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
Merges = Sequence[tuple[str, str]]


def equal_encoding(description: str) -> tiktoken.Encoding | None:
    """The encoding whose `encode_to_numpy` gives the ids of this tokenizer for every text; None if none is certain.

    description: the JSON text of the Hugging Face tokenizers library, read with `encode_special_tokens`.
    """
    tree: Mapping[str, Any] = json.loads(description)
    if not _is_byte_level_bpe(tree):
        return None
    words: Mapping[str, int] = tree["model"]["vocab"]
    merges = [pair_of(merge) for merge in tree["model"]["merges"]]
    if not all(letter in words for letter in BYTE_OF) or not merges_alone_decide(merges, words):
        return None
    tokens = [*BYTE_OF, *(a + b for a, b in merges)]
    ranks = {bytes(BYTE_OF[letter] for letter in token): words[token] for token in tokens}
    # tiktoken looks for special tokens in a text, and finds an empty list of them everywhere.
    special = {one["content"]: one["id"] for one in tree["added_tokens"]}
    return tiktoken.Encoding("trivium", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)


# Bytes of a token. The check takes quadratic time in them; the longest tokens of published vocabularies have 256.
_LONGEST_CHECKED = 512


def merges_alone_decide(merges: Merges, words: Mapping[str, int]) -> bool:
    """Whether ids rise with the merges and every token's own bytes come together by its own merge."""
    if not all(a in words and b in words and a + b in words for a, b in merges):
        return False
    if any(len(a) + len(b) > _LONGEST_CHECKED for a, b in merges):
        return False
    ids = [words[a + b] for a, b in merges]
    if any(one >= next_ for one, next_ in pairwise(ids)):
        return False
    places = {pair: place for place, pair in enumerate(merges)}
    return all(_parts(a + b, places, before=place) == [a, b] for place, (a, b) in enumerate(merges))


def _parts(token: str, places: Mapping[tuple[str, str], int], *, before: int) -> list[str]:
    """What is left of a token's bytes when only the merges before one of them are done, lowest first."""
    parts = list(token)
    while len(parts) > 1:
        place, at = min((places.get(pair, before), n) for n, pair in enumerate(pairwise(parts)))
        if place >= before:
            break
        parts[at : at + 2] = ["".join(parts[at : at + 2])]
    return parts


def _is_byte_level_bpe(tree: Mapping[str, Any]) -> bool:
    model, before = tree.get("model") or {}, tree.get("pre_tokenizer") or {}
    added = tree.get("added_tokens") or []
    return (
        model.get("type") == "BPE"
        and not any(model.get(name) for name in _OTHERWISE)
        and tree.get("normalizer") is None
        and before.get("type") == "ByteLevel"
        and not before.get("add_prefix_space", True)
        and bool(before.get("use_regex", True))
        and bool(added)
        and all(one["special"] for one in added)  # others are found in a text
    )


# settings of a model that change what merges alone would give
_OTHERWISE = (
    "dropout",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "byte_fallback",
    "ignore_merges",
)


def pair_of(merge: str | Sequence[str]) -> tuple[str, str]:
    """The two parts of a merge, which older files write as one text with a space between them."""
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second


def _byte_of_letter() -> dict[str, int]:
    """The letter that stands for each byte in a byte-level vocabulary (GPT-2, `bytes_to_unicode`)."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTE_OF: Mapping[str, int] = _byte_of_letter()
