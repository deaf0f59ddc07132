"""A client of endpoints with OpenAI's `/chat/completions`: bounded in size and time, with retries."""

import http.client
import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit

from trivium.errors import ConfigError, DataError, MachineError
from trivium.evaluation.judges.asking import Answer, Question
from trivium.evaluation.judges.config import JudgeConfig
from trivium.redact import HIDDEN, redact
from trivium.units import counted, shown
from trivium.untrusted import parse_json

MAX_ANSWER_BYTES = 4 << 20
MAX_TOKENS = 1 << 53  # a larger count is not one
BLOCK_BYTES = 1 << 16
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
WORTH_REPEATING = (408, 409, 425, 429, 500, 502, 503, 504, 529)
REFUSED_KEY = (401, 403)
_AT_HOME = ("localhost", "127.0.0.1", "::1")


class _Failed(Exception):
    """A request that may succeed when it is repeated. pause: seconds that the endpoint asked to wait."""

    def __init__(self, reason: str, pause: float = 0.0) -> None:
        super().__init__(reason)
        self.pause = pause


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Treat a redirect as an error: following it would send the key to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return no request to follow."""


def checked_url(url: str, *, has_key: bool) -> str:
    """Return the address of chat completions below an endpoint. Raises ConfigError for an address that contains a
    secret, or would carry the key unencrypted to another machine."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--endpoint {shown(url)} is no http or https address; write http://HOST:PORT/v1")
    if redact(url) != url or parts.query:
        raise ConfigError(
            f"--endpoint {shown(redact(url))} contains a secret or a query; give the address alone, and the key as "
            f"--key-variable NAME"
        )
    if has_key and parts.scheme == "http" and parts.hostname not in _AT_HOME:
        raise ConfigError(f"--endpoint {shown(url)} would carry the key unencrypted; write https, or give no key")
    base = url.rstrip("/")
    return base if base.endswith("/chat/completions") else f"{base}/chat/completions"


class Endpoint:
    """Answers questions over HTTP. key: sent as a bearer token, and never stored or shown."""

    def __init__(self, url: str, model: str, config: JudgeConfig, key: str | None = None) -> None:
        self._url, self._model, self._config, self._key = checked_url(url, has_key=key is not None), model, config, key
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._stop = Event()
        self._wait: Callable[[float], bool] = self._stop.wait

    def answer(self, questions: Sequence[Question]) -> Iterator[tuple[Question, Answer]]:
        """Yield each question with its answer as soon as it is there, in any order.

        After a failure nothing more is sent, and the answers to requests in flight are still yielded before it is
        raised. The threads are daemons, so that an interrupted command ends at once.
        """
        todo: SimpleQueue[Question] = SimpleQueue()
        answered: SimpleQueue[tuple[Question, Answer] | Exception | None] = SimpleQueue()
        for question in questions:
            todo.put(question)
        working = min(self._config.requests, len(questions))
        for _ in range(working):
            Thread(target=self._work, args=(todo, answered), daemon=True).start()
        failure: Exception | None = None
        try:
            while working:
                found = answered.get()
                if found is None:
                    working -= 1
                elif isinstance(found, Exception):
                    failure = failure or found
                else:
                    yield found
        finally:
            self._stop.set()
        self._stop.clear()
        if failure is not None:
            raise failure

    def _work(
        self, todo: "SimpleQueue[Question]", answered: "SimpleQueue[tuple[Question, Answer] | Exception | None]"
    ) -> None:
        """Answer questions until there are none or one has failed; the last thing in the queue of answers is None."""
        try:
            while not self._stop.is_set():
                question = todo.get_nowait()
                answered.put((question, self._ask(question)))
        except Empty:
            pass
        except Exception as error:
            self._stop.set()
            answered.put(error)
        finally:
            answered.put(None)

    def _ask(self, question: Question) -> Answer:
        messages = [message._asdict() for message in question.messages]
        data = json.dumps({"model": self._model, "messages": messages, **question.settings}).encode()
        for attempt in range(self._config.retries + 1):
            try:
                return self._request(data, question)
            except _Failed as failed:
                # Hidden before it is shortened, which could leave a part of the key.
                reason, wanted = shown(self._hidden(str(failed)), 500), failed.pause
            pause = FIRST_PAUSE_SECONDS * 2**attempt * random.uniform(0.5, 1.0)
            if attempt == self._config.retries or self._wait(min(max(pause, wanted), LONGEST_PAUSE_SECONDS)):
                break
        raise MachineError(
            f"--endpoint {self._url}: {reason}, asked {counted(attempt + 1, 'time')} about {question.about}; run the "
            f"same command again to continue with the answers that are recorded"
        )

    def _request(self, data: bytes, question: Question) -> Answer:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        deadline = time.monotonic() + self._config.timeout_seconds
        request = urllib.request.Request(self._url, data, headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._config.timeout_seconds) as response:
                return _answer_in(self._read(response, deadline))
        except urllib.error.HTTPError as error:
            raise self._refusal(error, question) from None
        except TimeoutError:
            raise _Failed(f"no answer in {self._config.timeout_seconds:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise _Failed(f"{type(reason).__name__}: {reason}") from None

    def _read(self, response: Any, deadline: float) -> bytes:
        content = b""
        while block := response.read1(BLOCK_BYTES):
            content += block
            if len(content) > MAX_ANSWER_BYTES:
                raise DataError(f"--endpoint {self._url} sent more than {MAX_ANSWER_BYTES:,} bytes for one answer")
            if time.monotonic() > deadline:
                raise TimeoutError(f"after {self._config.timeout_seconds:g} s")
        return content

    def _refusal(self, error: urllib.error.HTTPError, question: Question) -> Exception:
        try:
            said = self._hidden(error.read1(BLOCK_BYTES).decode("utf-8", "replace"))
        except (OSError, http.client.HTTPException):
            said = ""
        if error.code in WORTH_REPEATING:
            after = error.headers.get("Retry-After", "")
            return _Failed(f"HTTP {error.code}: {said}", float(after) if after.isdecimal() else 0.0)
        if error.code in REFUSED_KEY:
            remedy = "name the variable that contains the key as --key-variable" if self._key is None else "give a key"
            return ConfigError(f"--endpoint {self._url} refused the key (HTTP {error.code}: {shown(said)}); {remedy}")
        return ConfigError(
            f"--endpoint {self._url} refused the request about {question.about} (HTTP {error.code}: "
            f"{shown(said, 500)}); correct the address, --model-name or the settings, or leave out this row"
        )

    def _hidden(self, text: str) -> str:
        return text.replace(self._key, HIDDEN) if self._key else text


def _answer_in(content: bytes) -> Answer:
    """Return the answer of a response. One without text is an empty answer, which cannot be parsed."""
    try:
        tree: Any = parse_json(content)
        choice = tree["choices"][0]
        usage = tree.get("usage") or {}
        details = usage.get("completion_tokens_details") or {}
        return Answer(
            _text_of(choice["message"].get("content")),
            _count(usage.get("prompt_tokens")),
            _count(usage.get("completion_tokens")),
            _count(details.get("reasoning_tokens")),
            cut=choice.get("finish_reason") == "length",
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise _Failed(f"the response is no chat completion: {content.decode('utf-8', 'replace')}") from None


def _text_of(content: Any) -> str:
    """Return the text of a message, which reasoning models send as a list of parts next to their thoughts."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = (part.get("text") for part in parts if part.get("type") == "text")
    return "".join(text for text in texts if isinstance(text, str))


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else None
