"""Groups of duplicates, the document of each group that survives, and the keys by which exact duplicates are found."""

from collections.abc import Sequence
from hashlib import blake2b
from urllib.parse import parse_qsl, urlencode, urlsplit

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from trivium.corpus.document import Document
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.kernels.words import text_keys

SAME_TEXT = "same text as another document"  # a reason
_TRACKING = ("utm_", "fbclid", "gclid", "msclkid", "mc_cid", "mc_eid", "igshid", "ref_src", "sessionid", "phpsessid")
_PORTS = {"http": 80, "https": 443}


def canonical_url(url: str) -> str:
    """Remove everything that does not change the page: scheme, case of the host, standard port, `www.`, fragment,
    tracking parameters, order of parameters, trailing slash. Return "" if `url` is not an address.
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
    """Return 16 bytes that are equal for documents of one address; b"" for a document without one."""
    url = canonical_url(str(document.metadata.get("url", "")))
    return blake2b(url.encode("utf-8", "replace"), digest_size=16).digest() if url else b""


def keys_of_texts(texts: Sequence[str]) -> list[bytes]:
    """Return 16 bytes for each text. They are equal for texts with the same words in the same order, and for equal
    texts without words."""
    return [key.tobytes() for key in text_keys(texts_of(texts))]


def ranks_of(sources: Sequence[str], *, priority: Sequence[str]) -> NDArray[np.int64]:
    """Return the index of each source in `priority`; sources that are not listed come last."""
    rank = {source: place for place, source in enumerate(priority)}
    return np.array([rank.get(source, len(rank)) for source in sources], dtype=np.int64)


def groups_of(
    pairs: NDArray[np.int64], similarity: NDArray[np.float64], ranks: NDArray[np.int64], quality: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return, for each document, the survivor of its group and its largest similarity to another document.

    pairs: similar documents, [pairs, 2]. similarity: of each pair. ranks, quality: of each document.
    """
    closest = np.zeros(len(ranks))
    for column in (0, 1):
        np.maximum.at(closest, pairs[:, column], similarity)
    return survivors(components(pairs, documents=len(ranks)), ranks, quality), closest


def components(pairs: ArrayLike, *, documents: int) -> NDArray[np.int32]:
    """Return the group number of each document, [documents]. Documents linked by `pairs` [pairs, 2] share one."""
    edges = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    ones = np.ones(len(edges), dtype=np.int8)
    graph = coo_array((ones, (edges[:, 0], edges[:, 1])), shape=(documents, documents))
    _, labels = connected_components(graph, directed=False)
    return np.asarray(labels, dtype=np.int32)


def survivors(labels: ArrayLike, ranks: ArrayLike, quality: ArrayLike | None = None) -> NDArray[np.int64]:
    """Return, for each document, the index of the document that survives for its group.

    It is the document of the lowest rank (MT-NLG's rule: of the best source), then of the highest quality, then the
    first one.
    """
    groups, places = np.asarray(labels), np.asarray(ranks)
    figures = np.zeros(len(groups)) if quality is None else np.asarray(quality, dtype=np.float64)
    order = np.lexsort((np.arange(len(groups)), -figures, places, groups))
    first = np.ones(len(order), dtype=bool)
    first[1:] = groups[order][1:] != groups[order][:-1]
    result = np.empty(len(order), dtype=np.int64)
    result[order] = order[first][np.cumsum(first) - 1]
    return result
