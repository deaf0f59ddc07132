"""ASGI middleware that checks the host name, the body size and the API key of every request, and limits how many are
open at once."""

import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from starlette.responses import Response

from trivium.errors import DataError
from trivium.jsonlines import text_lines
from trivium.untrusted import read_text

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

MIN_KEY_CHARACTERS = 16
# These need no key, because they reveal nothing about the model, and are never refused for lack of room.
OPEN_PATHS = ("/", "/health")
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)


def refusal(status: int, message: str, field: str | None = None, code: str | None = None) -> Response:
    """Return an error in the form of OpenAI's API."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    tree = {"error": {"message": message, "type": kind, "param": field, "code": code}}
    # The message may quote the client's text: lone surrogates must not break the encoding.
    body = json.dumps(tree, ensure_ascii=False).encode("utf-8", "replace")
    headers = {"retry-after": "1"} if status == 429 else None
    return Response(body, status, headers, media_type="application/json")


class TooLarge(Exception):
    """The body exceeds the limit. Raised where the body is read."""


class Guard:
    """Rejects requests with 400, 401, 413, 415 or 429, and adds security headers to all responses.

    open_requests: the most requests that are answered at once.
    """

    def __init__(
        self, app: App, *, body_bytes: int, open_requests: int, hosts: Sequence[str], keys: Sequence[str]
    ) -> None:
        self.app, self.body_bytes, self.hosts = app, body_bytes, frozenset(map(_in_header, hosts))
        self.open, self.open_requests = 0, open_requests
        self.keys = tuple(k.encode() for k in keys)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {k.lower(): v for k, v in scope["headers"]}
        read_bytes = 0

        async def counted() -> Message:
            nonlocal read_bytes
            message = await receive()
            read_bytes += len(message.get("body", b""))
            if read_bytes > self.body_bytes:
                raise TooLarge(f"the body is larger than {self.body_bytes} bytes")
            return message

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        problem = self._problem(scope, headers)
        answer = self.app if problem is None else refusal(*problem)
        self.open += 1
        try:
            await answer(scope, counted, secured)
        finally:
            self.open -= 1

    def _problem(self, scope: Message, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        # Reject other host names, so that a foreign page whose name resolves to this machine cannot use the server
        # (DNS rebinding).
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if name not in self.hosts:
            return 400, f"this server is not called {name[:60]!r}; name it with --set serve.hosts"
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            return 400, "content-length is no number"
        if len(length) > 18 or int(length) > self.body_bytes:
            return 413, f"the body is larger than {self.body_bytes} bytes"
        if scope["method"] == "POST":
            kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
            if kind != b"application/json":
                return 415, "send application/json"
        if scope["path"] in OPEN_PATHS:
            return None
        if self.keys and not self._known(headers):
            return 401, "a key is needed: Authorization: Bearer KEY"
        if self.open >= self.open_requests:
            return 429, f"{self.open} requests are open already; come back later"
        return None

    def _known(self, headers: dict[bytes, bytes]) -> bool:
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        found = [hmac.compare_digest(key, given.strip()) for key in self.keys]
        return scheme.lower() == b"bearer" and any(found)


def read_keys(path: Path) -> list[str]:
    """Read API keys, one per line. Raises DataError for a file without keys, or with one that is short enough to
    guess."""
    try:
        lines = text_lines(read_text(path))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"serve.keys: {path} cannot be read ({error}); give a file of keys") from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    short = [n for n, key in enumerate(keys, 1) if len(key) < MIN_KEY_CHARACTERS]
    if not keys or short:
        raise DataError(
            f"serve.keys: {path} has {len(keys)} keys, {len(short)} of them shorter than {MIN_KEY_CHARACTERS} "
            "characters; give one or more, one per line, as `openssl rand -hex 24` makes them"
        )
    return keys


def _in_header(name: str) -> str:
    """Format a name or address as in a Host header, with IPv6 addresses in brackets (RFC 3986, 3.2.2)."""
    return f"[{name}]".lower() if ":" in name and not name.startswith("[") else name.lower()
