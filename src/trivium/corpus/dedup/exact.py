"""Exact duplicates: equal texts once case, punctuation and blanks are set aside; equal ids; equal addresses."""

from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.kernels.words import text_keys

SAME_TEXT, SAME_ID = "same text as another document", "same id as another document"
SAME_ADDRESS = "same address as another document"


def text_key(text: str) -> bytes:
    """16 bytes that are equal for texts with the same words in the same order, or without words and equal."""
    return text_keys(texts_of([text])).tobytes()


class FirstOnly:
    """Asked about documents in order, keeps the first of equal texts, of one id, and of one address.

    The ids of a harvest differ; those of files that somebody else put together may not, and a store needs that.
    """

    def __init__(self) -> None:
        self._texts: set[bytes] = set()
        self._ids: set[str] = set()
        self._addresses: set[bytes] = set()

    def reason(self, key: bytes, identity: str, address: bytes = b"") -> str:
        """Why the document is dropped; nothing when it stays.

        `key`: its words (kernels.words.text_keys). `address`: its URL's (urls.url_key); empty if none is compared.
        """
        if key in self._texts:
            return SAME_TEXT
        if identity in self._ids:
            return SAME_ID
        if address and address in self._addresses:
            return SAME_ADDRESS
        self._addresses.add(address)
        self._texts.add(key)
        self._ids.add(identity)
        return ""
