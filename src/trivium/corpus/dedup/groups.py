"""Exact duplicates (equal words, ids or addresses), groups of duplicates, and which document of a group survives."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from trivium.corpus.document import Document
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.kernels.words import text_keys

_TRACKING = ("utm_", "fbclid", "gclid", "msclkid", "mc_cid", "mc_eid", "igshid", "ref_src", "sessionid", "phpsessid")
_PORTS = {"http": 80, "https": 443}


def canonical_url(url: str) -> str:
    """Remove what does not change the page: scheme, case of the host, standard port, `www.`, fragment, tracking
    parameters, order of parameters, trailing slash. Return an empty text for what is no address.
    """
    try:
        parts = urlsplit(url.strip())
        host, port = (parts.hostname or "").removeprefix("www."), parts.port
    except ValueError:
        return ""
    if not host:
        return ""
    if port and port != _PORTS.get(parts.scheme):
        host = f"{host}:{port}"
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    query = urlencode(sorted(pair for pair in pairs if not pair[0].lower().startswith(_TRACKING)))
    return host + parts.path.rstrip("/") + (f"?{query}" if query else "")


def url_key(document: Document) -> bytes:
    """Return 16 bytes that are equal for documents of one address; empty for a document without one."""
    url = canonical_url(str(document.metadata.get("url", "")))
    return blake2b(url.encode("utf-8", "replace"), digest_size=16).digest() if url else b""


def components(pairs: ArrayLike, *, documents: int) -> NDArray[np.int32]:
    """Return the group number of each document, [documents]. Documents linked by `pairs` [pairs, 2] share one."""
    edges = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    ones = np.ones(len(edges), dtype=np.int8)
    graph = coo_array((ones, (edges[:, 0], edges[:, 1])), shape=(documents, documents))
    _, labels = connected_components(graph, directed=False)
    return np.asarray(labels, dtype=np.int32)


def ranks_of(sources: Sequence[str], *, priority: Sequence[str]) -> NDArray[np.int64]:
    """Return the place of each source in `priority`; all sources that are not listed come last."""
    rank = {source: place for place, source in enumerate(priority)}
    return np.array([rank.get(source, len(rank)) for source in sources], dtype=np.int64)


def survivors(labels: ArrayLike, ranks: ArrayLike, quality: ArrayLike | None = None) -> NDArray[np.int64]:
    """Return, for each document, the index of the document that survives for its group.

    That is the one of the lowest rank (MT-NLG's rule: of the best source), then of the highest quality if
    that is given, then the first.
    """
    groups, places = np.asarray(labels), np.asarray(ranks)
    figures = np.zeros(len(groups)) if quality is None else np.asarray(quality, dtype=np.float64)
    order = np.lexsort((np.arange(len(groups)), -figures, places, groups))
    first = np.ones(len(order), dtype=bool)
    first[1:] = groups[order][1:] != groups[order][:-1]
    found = np.empty(len(order), dtype=np.int64)
    found[order] = order[first][np.cumsum(first) - 1]
    return found


SAME_TEXT, SAME_ID = "same text as another document", "same id as another document"
SAME_ADDRESS = "same address as another document"


def text_key(text: str) -> bytes:
    """Return 16 bytes that are equal for texts with the same words in the same order, or equal and without words."""
    (key,) = keys_of_texts([text])
    return key


def keys_of_texts(texts: Sequence[str]) -> list[bytes]:
    """Return the `text_key` of each text."""
    return [key.tobytes() for key in text_keys(texts_of(texts))]


class Repeats(NamedTuple):
    """Why a document is dropped, and the number of the document that it repeats."""

    reason: str
    number: int


class FirstOnly:
    """Keeps the first of documents with equal texts, ids or addresses.

    A store needs unique ids, and those of files that others put together may repeat.
    """

    def __init__(self) -> None:
        self._texts: dict[bytes, int] = {}  # of each that stays, its number
        self._ids: dict[str, int] = {}
        self._addresses: dict[bytes, int] = {}

    def repeats(self, number: int, key: bytes, identity: str, address: bytes = b"") -> Repeats | None:
        """Return what the document of this number repeats; None if it stays.

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
