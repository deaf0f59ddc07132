"""Which addresses are the same page, so that later snapshots of a crawl bring only new ones."""

from hashlib import blake2b
from urllib.parse import parse_qsl, urlencode, urlsplit

from trivium.corpus.document import Document

_TRACKING = (
    "utm_",
    "fbclid",
    "gclid",
    "msclkid",
    "mc_cid",
    "mc_eid",
    "igshid",
    "ref_src",
    "sessionid",
    "phpsessid",
)
_PORTS = {"http": 80, "https": 443}


def canonical_url(url: str) -> str:
    """An address without what does not change the page: scheme, case of the host, standard port, `www.`, fragment,
    tracking parameters, order of parameters, slash at the end. Empty for what is no address.
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
    """16 bytes that are equal for documents of one address; empty for a document without one."""
    url = canonical_url(str(document.metadata.get("url", "")))
    return blake2b(url.encode("utf-8", "replace"), digest_size=16).digest() if url else b""
