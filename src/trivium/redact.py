"""Remove secrets from URLs, so that user names, passwords, tokens and signatures are neither stored nor shown.

Displayed text passes through `units.plain`, which calls `redact`; stamps use `redacted`. A config that contains a
secret is rejected (`secrets_in`), because it is stored with every output.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

HIDDEN = "***"
# The authority of a URL up to its last "@"; Path makes one slash of two. A password may hold what should be encoded.
_USER = re.compile(
    r"""(?P<scheme>[a-z][a-z0-9+.-]{1,30}:/{1,2})
        (?: [^\s/?\#"'<>]{0,2048} | [^\s/?\#@:]{0,256}:(?!\d+(?:[/?\#\s]|$))[^\s"<>]{0,512} )@""",
    re.IGNORECASE | re.VERBOSE,
)
_SECRET_NAMES = r"""
    [\w.-]{0,64}(?:token|secret|passw(?:or)?d|pwd|api[-_]?key|access[-_]?key|private[-_]?key|signature|credential
                 |authori[sz]ation|session|jwt)[\w.-]{0,64}
    | x-(?:amz|goog|oss|ms)-[\w-]{1,64} | sig | auth | key | pass | user(?:name)?"""
_PARAMETER = re.compile(
    rf"""(?P<name>[?&;\#](?:{_SECRET_NAMES})(?:=|%3D))[^&;\#\s"'<>]{{1,4096}}""", re.IGNORECASE | re.VERBOSE
)
_URL = re.compile(r"""[a-z][a-z0-9+.-]{1,30}:/[^\s"<>]{1,16384}""", re.IGNORECASE)


def redact(text: str) -> str:
    """Return the text with *** in place of user names, passwords and tokens in URLs."""
    if ":/" not in text:
        return text
    text = _USER.sub(rf"\g<scheme>{HIDDEN}@", text)
    return _URL.sub(lambda url: _PARAMETER.sub(rf"\g<name>{HIDDEN}", url[0]), text)


def redacted(value: Any) -> Any:
    """Return plain data with all texts redacted, including keys."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {redacted(key): redacted(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [redacted(inner) for inner in value]
    return value


def secrets_in(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path, redacted text) of every text in a tree that contains a secret."""
    if isinstance(value, str) and redact(value) != value:
        yield path, redact(value)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from secrets_in(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from secrets_in(inner, f"{path}.{number}")
