"""Exact duplicates: equal texts once case, punctuation and blanks are set aside; equal ids; equal addresses."""

from collections.abc import Sequence
from typing import NamedTuple

from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.kernels.words import text_keys

SAME_TEXT, SAME_ID = "same text as another document", "same id as another document"
SAME_ADDRESS = "same address as another document"


def text_key(text: str) -> bytes:
    """16 bytes that are equal for texts with the same words in the same order, or without words and equal."""
    (key,) = keys_of_texts([text])
    return key


def keys_of_texts(texts: Sequence[str]) -> list[bytes]:
    """The text_key of each."""
    return [key.tobytes() for key in text_keys(texts_of(texts))]


class Repeats(NamedTuple):
    """Why a document is dropped, and the number of the one that stays instead."""

    reason: str
    number: int


class FirstOnly:
    """Asked about documents in order, keeps the first of equal texts, of one id, and of one address.

    The ids of a harvest differ; those of files that somebody else put together may not, and a store needs that.
    """

    def __init__(self) -> None:
        self._texts: dict[bytes, int] = {}  # of each that stays, its number
        self._ids: dict[str, int] = {}
        self._addresses: dict[bytes, int] = {}

    def repeats(self, number: int, key: bytes, identity: str, address: bytes = b"") -> Repeats | None:
        """What the document of this number repeats; None when it stays.

        `key`: its words (kernels.words.text_keys). `address`: its URL's (urls.url_key); empty if none is compared.
        """
        if key in self._texts:
            return Repeats(SAME_TEXT, self._texts[key])
        if identity in self._ids:
            return Repeats(SAME_ID, self._ids[identity])
        if address and address in self._addresses:
            return Repeats(SAME_ADDRESS, self._addresses[address])
        self._texts[key] = self._ids[identity] = self._addresses[address] = number
        return None
