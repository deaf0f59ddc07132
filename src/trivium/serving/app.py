"""The server: `/v1/completions`, `/v1/models`, `/health`, and a playground."""

import asyncio
import base64
import hashlib
import itertools
import json
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from trivium.finite import dumps
from trivium.seeds import seed_for
from trivium.serving.answer import Placed, Telling, choice, envelope, logprobs_of, placed_in
from trivium.serving.ask import Completion, Refused, parse, prompts_of
from trivium.serving.config import ServeConfig
from trivium.serving.guard import Guard, TooLarge
from trivium.serving.worker import Event, Job, Worker
from trivium.serving.write import Draft, Token
from trivium.serving.writer import Writer

OWN_NAMES = ("localhost", "127.0.0.1", "[::1]")
DISCONNECT_POLL_SECONDS = 0.1
DISCONNECTED = "the client disconnected"
ENDPOINTS = "there are POST /v1/completions, GET /v1/models, GET /health, and a playground at /"


@dataclass
class Server:
    """State shared by the handlers. seed: used for requests without a seed."""

    writer: Writer
    worker: Worker
    limits: ServeConfig
    name: str
    seed: int
    numbers: Iterator[int] = field(default_factory=itertools.count)


@dataclass
class _Answering:
    """A request in progress and its events."""

    asked: Completion
    prompts: list[list[int]]
    number: int
    created: int
    job: Job
    events: asyncio.Queue[Event]


def create_app(writer: Writer, limits: ServeConfig, *, name: str, keys: list[str] | None = None, seed: int = 0) -> Any:
    """Create the ASGI application of a model; `name` is its id in `/v1/models`."""
    server = Server(writer, Worker(writer, limits), limits, name, seed)
    page = (resources.files("trivium.serving") / "playground.html").read_text(encoding="utf-8")
    app = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        exception_handlers={Refused: _refuse, HTTPException: _not_there},
    )
    app.state.server = server

    @app.get("/")
    async def playground() -> Response:
        return HTMLResponse(page, headers={"content-security-policy": page_policy(page)})

    @app.get("/health")
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    _add_models(app, name)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await _complete(server, request)

    return Guard(app, body_bytes=limits.body_bytes, hosts=[*OWN_NAMES, limits.host, *limits.hosts], keys=keys or [])


def _add_models(app: FastAPI, name: str) -> None:
    about = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "trivium"}

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [about]})

    @app.get("/v1/models/{wanted:path}")
    async def model(wanted: str) -> Response:
        _refuse_other_model(wanted, name)
        return JSONResponse(about)


async def _refuse(request: Request, refused: Any) -> Response:
    return _refusal(refused)


async def _not_there(request: Request, error: Any) -> Response:
    """Respond to an unknown path or method."""
    asked = f"{request.method} {request.url.path[:60]}"
    found = _refusal(Refused(error.status_code, f"{asked}: {str(error.detail).lower()}; {ENDPOINTS}"))
    found.headers.update(error.headers or {})  # the Allow header lists the supported methods
    return found


def _refuse_other_model(wanted: str, name: str) -> None:
    if wanted != name:
        raise Refused(404, f"model: {wanted[:60]!r} is not served; {name!r} is", "model")


async def _complete(server: Server, request: Request) -> Response:
    try:
        body = await asyncio.wait_for(request.body(), server.limits.deadline_seconds)
    except TooLarge as error:
        raise Refused(413, str(error)) from None
    except TimeoutError:
        raise Refused(408, "the deadline passed before the full body arrived; send it faster") from None
    except ClientDisconnect:  # Nobody receives this response, but an exception would be logged.
        raise Refused(499, DISCONNECTED) from None
    # Tokenizing 1 MB takes about a second, so run it outside of the event loop.
    asked, prompts = await asyncio.to_thread(_understood, server, body)
    answering = _begin(server, asked, prompts)
    if asked.stream:
        return StreamingResponse(_stream(server, answering), media_type="text/event-stream")
    await _finished(request, answering)
    return JSONResponse(
        envelope(answering.number, server.name, answering.created, _choices(server, answering))
        | {"usage": _usage(answering)}
    )


def _understood(server: Server, body: bytes) -> tuple[Completion, list[list[int]]]:
    asked = parse(body, server.limits)
    if asked.model is not None:
        _refuse_other_model(asked.model, server.name)
    return asked, prompts_of(asked, server.writer.tokenizer, server.limits, server.writer.scorer.sequence)


def _begin(server: Server, asked: Completion, prompts: list[list[int]]) -> _Answering:
    number = next(server.numbers)
    seed = seed_for(server.seed, "request", number) if asked.seed is None else asked.seed
    loop, events = asyncio.get_running_loop(), asyncio.Queue[Event]()
    job = Job([], _teller(loop, events), time.monotonic() + server.limits.deadline_seconds)
    settings = asked.drawing()
    texts = [ids for ids in prompts for _ in range(asked.n)] if asked.max_tokens else []
    for index, ids in enumerate(texts):
        draft = server.writer.draft(ids, settings, seed=seed_for(seed, "prompt", index), alternatives=asked.logprobs)
        draft.heard = _listener(job, index)
        job.drafts.append(draft)
    if asked.echo and asked.logprobs is not None:
        job.read, job.alternatives = prompts, asked.logprobs
    if not server.worker.submit(job):
        raise Refused(429, f"{server.limits.queue} requests wait already; come back later")
    return _Answering(asked, prompts, number, int(time.time()), job, events)


def _teller(loop: asyncio.AbstractEventLoop, events: asyncio.Queue[Event]) -> Any:
    def tell(event: Event) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(events.put_nowait, event)

    return tell


def _listener(job: Job, index: int) -> Any:
    def heard(token: Token) -> bool:
        job.tell(Event("token", index, token))
        return job.goes_on

    return heard


async def _next(answering: _Answering) -> Event | None:
    """Return the next event; None if there was none within the poll interval. A queued request can be late as well."""
    try:
        return await asyncio.wait_for(answering.events.get(), DISCONNECT_POLL_SECONDS)
    except TimeoutError:
        return Event("late") if answering.job.late else None


async def _finished(request: Request, answering: _Answering) -> None:
    """Wait for the end of the job. Cancel it if the client disconnects."""
    looked = time.monotonic()
    try:
        while True:
            event = await _next(answering)
            if event is not None and event.kind != "token":
                return _raise_unless_done(event)
            if time.monotonic() - looked >= DISCONNECT_POLL_SECONDS:
                looked = time.monotonic()
                if await request.is_disconnected():
                    raise Refused(499, DISCONNECTED)
    finally:
        answering.job.cancelled.set()


def _raise_unless_done(event: Event) -> None:
    if event.kind == "late":
        raise Refused(504, "the deadline passed before the text was complete; ask for fewer tokens")
    if event.kind == "failed":
        raise Refused(503, "the model could not answer this request")


def _choices(server: Server, answering: _Answering) -> list[dict[str, Any]]:
    asked = answering.asked
    found = []
    for index in range(len(answering.prompts) * asked.n):
        draft = answering.job.drafts[index] if asked.max_tokens else None
        written = server.writer.written(draft) if draft else None
        text = _head(server, answering, index) + (written.text if written else "")
        placed = _echoed(server, answering, index)
        if draft and asked.logprobs is not None:
            telling = _telling(server, answering, index)
            for _, ready in [*map(telling.push, draft.tokens), telling.close()]:
                placed += ready
        finish = written.finish if written else "length"
        found.append(choice(index, text, _logprobs(server, answering, placed), finish))
    return found


def _head(server: Server, answering: _Answering, index: int) -> str:
    """Return the prompt if it is to be echoed, else ""."""
    if not answering.asked.echo:
        return ""
    number = index // answering.asked.n
    text = answering.asked.text_of(number)
    return server.writer.tokenizer.decode(answering.prompts[number]) if text is None else text


def _echoed(server: Server, answering: _Answering, index: int) -> list[Placed]:
    """Return the tokens of an echoed prompt, if their log-probabilities are requested."""
    if not answering.job.echoed:
        return []
    number, tokenizer = index // answering.asked.n, server.writer.tokenizer
    # Tokens that the tokenizer puts before a text are not part of it; given ids are all echoed.
    silent = () if answering.asked.text_of(number) is None else (tokenizer.before_text,)
    return placed_in(answering.job.echoed[number], tokenizer, silent=silent)


def _telling(server: Server, answering: _Answering, index: int) -> Telling:
    prompt = answering.prompts[index // answering.asked.n]
    offset = len(_head(server, answering, index))
    return Telling(server.writer.tokenizer, answering.asked.stops, prompt, offset)


def _logprobs(server: Server, answering: _Answering, placed: Sequence[Placed]) -> dict[str, Any] | None:
    return None if answering.asked.logprobs is None else logprobs_of(placed, server.writer.tokenizer)


async def _stream(server: Server, answering: _Answering) -> AsyncIterator[bytes]:
    """Yield server-sent events. The job is cancelled when the generator is left for any reason."""
    asked = answering.asked
    number = len(answering.prompts) * asked.n
    telling = [_telling(server, answering, index) for index in range(number)]

    def part(index: int, text: str, placed: Sequence[Placed], finish: str | None = None) -> bytes:
        made = choice(index, text, _logprobs(server, answering, placed) if placed else None, finish)
        return event([made], None)

    def event(choices: list[dict[str, Any]], usage: dict[str, int] | None) -> bytes:
        tree = envelope(answering.number, server.name, answering.created, choices)
        return _event(tree | ({"usage": usage} if asked.tells_usage else {}))

    try:
        told = not asked.echo
        while True:
            heard = await _next(answering)
            if heard is None:
                continue
            if not told and heard.kind in ("token", "done"):  # the prompts have been read
                told = True
                for index in range(number):
                    yield part(index, _head(server, answering, index), _echoed(server, answering, index))
            if heard.kind != "token" or heard.token is None:
                break
            text, placed = telling[heard.number].push(heard.token)
            if text or (placed and asked.logprobs is not None):
                yield part(heard.number, text, placed)
        if heard.kind == "done":
            drafts: list[Draft | None] = [*answering.job.drafts] if asked.max_tokens else [None] * number
            for index, draft in enumerate(drafts):
                yield part(index, *telling[index].close(), draft.finish if draft else "length")
            if asked.tells_usage:
                yield event([], _usage(answering))
        else:
            yield _event({"error": {"message": f"the text is not complete: {heard.kind}", "type": "server_error"}})
        yield b"data: [DONE]\n\n"
    finally:
        answering.job.cancelled.set()


def _event(tree: dict[str, Any]) -> bytes:
    return b"data: " + dumps(tree).encode() + b"\n\n"


def _usage(answering: _Answering) -> dict[str, int]:
    read = sum(map(len, answering.prompts))
    written = sum(len(d.tokens) for d in answering.job.drafts)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _refusal(refused: Refused) -> JSONResponse:
    kind = "invalid_request_error" if refused.status < 500 else "server_error"
    tree = {"error": {"message": refused.message, "type": kind, "param": refused.field}}
    headers = {"retry-after": "1"} if refused.status == 429 else None
    # The message may quote the client's text: lone surrogates must not break the encoding.
    return JSONResponse(
        json.loads(json.dumps(tree, ensure_ascii=False).encode("utf-8", "replace")), refused.status, headers
    )


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
