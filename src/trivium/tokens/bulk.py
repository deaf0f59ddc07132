"""Encode with tiktoken, which is several times as fast, if it certainly gives the same ids.

tiktoken has no list of merges. It joins the two neighbours whose concatenation is the token with the lowest id. A
byte-level BPE does the same if ids rise in the order of the merges, and if the bytes of every token, merged by
earlier merges alone, become the two parts that its own merge joins. Both are checked here for every merge.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import tiktoken

# GPT-2's pattern with possessive repeats, which match the same pieces without backtracking (tiktoken's r50k_base).
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
Merges = Sequence[tuple[str, str]]


def equal_encoding(description: str) -> tiktoken.Encoding | None:
    """Return the encoding whose `encode_to_numpy` gives this tokenizer's ids for every text, or None if uncertain."""
    tree: Mapping[str, Any] = json.loads(description)
    if not _is_byte_level_bpe(tree):
        return None
    words: Mapping[str, int] = tree["model"]["vocab"]
    merges = [pair_of(merge) for merge in tree["model"]["merges"]]
    if not all(letter in words for letter in BYTE_OF) or not merges_alone_decide(merges, words):
        return None
    tokens = [*BYTE_OF, *(a + b for a, b in merges)]
    ranks = {bytes(BYTE_OF[letter] for letter in token): words[token] for token in tokens}
    # An empty list of special tokens would make tiktoken match everywhere.
    special = {one["content"]: one["id"] for one in tree["added_tokens"]}
    return tiktoken.Encoding("trivium", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)


# Limits the bytes of a token, because the check is quadratic in them. Published vocabularies have at most 256.
_MAX_TOKEN_BYTES = 512


def merges_alone_decide(merges: Merges, words: Mapping[str, int]) -> bool:
    """Whether ids rise with the merges, and every token's bytes are joined last by its own merge."""
    if not all(a in words and b in words and a + b in words for a, b in merges):
        return False
    if any(len(a) + len(b) > _MAX_TOKEN_BYTES for a, b in merges):
        return False
    ids = [words[a + b] for a, b in merges]
    if any(one >= next_ for one, next_ in pairwise(ids)):
        return False
    places = {pair: place for place, pair in enumerate(merges)}
    return all(_parts(a + b, places, before=place) == [a, b] for place, (a, b) in enumerate(merges))


def _parts(token: str, places: Mapping[tuple[str, str], int], *, before: int) -> list[str]:
    """Merge the bytes of a token with the merges before `before`, lowest first, and return the remaining parts."""
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
        and all(one["special"] for one in added)  # other added tokens are matched in text
    )


# Settings of a model that change the result of the merges.
_OTHERWISE = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")


def pair_of(merge: str | Sequence[str]) -> tuple[str, str]:
    """Return both parts of a merge, which older files store as one string with a space."""
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second


def _byte_of_letter() -> dict[str, int]:
    """Return the letter of each byte in a byte-level vocabulary (GPT-2, `bytes_to_unicode`)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTE_OF: Mapping[str, int] = _byte_of_letter()
