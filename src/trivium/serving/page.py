"""Content security policy of the playground: only its own script and style, and connections to its own server."""

import base64
import hashlib
import re


def page_policy(page: str) -> str:
    """Return the content security policy of a page with inline scripts and styles."""
    scripts = " ".join(_hashes(page, "script"))
    styles = " ".join(_hashes(page, "style"))
    return (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )


def _hashes(page: str, element: str) -> list[str]:
    found = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
    return [f"'sha256-{base64.b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in found]
