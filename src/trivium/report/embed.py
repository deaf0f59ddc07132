"""Scripts and data inside a page: nothing can leave its element, and nothing is asked of the network."""

import base64
import hashlib
from typing import Any

from jinja2 import Environment, PackageLoader

from trivium.finite import dumps
from trivium.units import plain


def embedded_json(value: Any) -> str:
    """Plain data as JSON in which nothing can close a script element."""
    text = dumps(value, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def policy(*scripts: str, functions_from_text: bool = False) -> str:
    """A content security policy: these scripts by their hashes, no others, and nothing from anywhere."""
    hashes = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts)
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    more = " 'unsafe-eval'" if functions_from_text else ""
    return (
        f"default-src 'none'; script-src {allowed}{more}; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )


def environment_of_pages() -> Environment:
    """Templates of this package. Data comes into them as text: escaped, and without what a terminal obeys, because
    pages are also searched on terminals."""
    return Environment(
        loader=PackageLoader("trivium.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: plain(value) if type(value) is str else value,
    )
