"""Encode with gigatoken, which is about twenty times as fast, if it certainly gives the same ids.

It may join the bytes of a word in another order than the list of merges says. Any order gives the same ids if ids rise
in the order of the merges, and if the bytes of every token, merged by earlier merges alone, become the two parts that
its own merge joins. Both are checked here for every merge.
"""

import json
import re
import threading
from collections.abc import Mapping, Sequence
from itertools import compress, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import gigatoken

# GPT-2's pattern with possessive repeats, which match the same pieces without backtracking (tiktoken's r50k_base).
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
Merges = Sequence[tuple[str, str]]
# Lone surrogates, which gigatoken refuses, and letters and digits of Unicode 17, which gigatoken 0.10 separates as
# such, and the tokenizers library as signs. A few ranges come first, because most texts have no character in them.
_ENCODED_OTHERWISE = re.compile(
    "[\u088f\u0c5c\u0cdc\ua7ce-\ua7f1\ud800-\udfff\U00010940-\U00033479]"
    "(?<=[\u088f\u0c5c\u0cdc\ua7ce\ua7cf\ua7d2\ua7d4\ua7f1\ud800-\udfff\U00010940-\U00010959\U00010ec5-\U00010ec7"
    "\U00011db0-\U00011ddb\U00011de0-\U00011de9\U00016ea0-\U00016eb8\U00016ebb-\U00016ed3"
    "\U00016ff2-\U00016ff6\U000187f8-\U000187ff\U00018d09-\U00018d1e\U00018d80-\U00018df2"
    "\U0001e6c0-\U0001e6de\U0001e6e0-\U0001e6e2\U0001e6e4\U0001e6e5\U0001e6e7-\U0001e6ed"
    "\U0001e6f0-\U0001e6f4\U0001e6fe\U0001e6ff\U0002b73a-\U0002b73f\U0002cea2-\U0002cead"
    "\U000323b0-\U00033479])"
)


# Number of ids after which a thread makes a new encoder, because an encoder caches every word that it reads and frees
# none. A word outside the vocabulary has two ids or more, so this bounds the words too. With GPT-2's vocabulary and
# words that are all distinct, the cache grew to 0.6 GB. A new encoder takes 0.14 s of CPU time, and encoding as much
# prose takes 1 s.
_MAX_IDS = 1 << 25


class BulkEncoder:
    """Encodes texts on the calling thread, without holding the GIL.

    Each thread has a gigatoken encoder of its own, since one serves a single call at a time. It takes about 50 MB, and
    its cache of words up to 0.6 GB more.
    """

    def __init__(self, description: str) -> None:
        self._description = description
        self._own = threading.local()

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.uint32] | None]:
        """Return the ids of each text, or None where equal ids are not certain."""
        certain = [text.isascii() or not _ENCODED_OTHERWISE.search(text) for text in texts]
        found = self._encoder().encode_batch([*compress(texts, certain)], parallel=False).layout
        self._own.ids += len(found.content.data)
        ids = iter(np.split(found.content.data, found.offsets.data[1:-1]))
        return [next(ids) if alike else None for alike in certain]

    def _encoder(self) -> "gigatoken.Tokenizer":
        """Return the encoder of this thread, a new one after _MAX_IDS ids."""
        if getattr(self._own, "ids", _MAX_IDS) >= _MAX_IDS:
            from gigatoken import Tokenizer

            self._own.encoder, self._own.ids = Tokenizer.from_json(self._description), 0
        encoder: gigatoken.Tokenizer = self._own.encoder
        return encoder


def equal_encoding(description: str) -> BulkEncoder | None:
    """Return an encoder that gives this tokenizer's ids, or None if that is uncertain."""
    tree: Mapping[str, Any] = json.loads(description)
    if not _is_byte_level_bpe(tree):
        return None
    words: Mapping[str, int] = tree["model"]["vocab"]
    merges = [pair_of(merge) for merge in tree["model"]["merges"]]
    if not all(letter in words for letter in BYTE_OF) or not merges_alone_decide(merges, words):
        return None
    # No text can contain the other words, which are special tokens.
    reached = {token: words[token] for token in (*BYTE_OF, *(a + b for a, b in merges))}
    plain = {**tree, "model": {**tree["model"], "vocab": reached}, "added_tokens": [], "post_processor": None}
    return BulkEncoder(json.dumps(plain))


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
