"""The server: `/v1/completions`, `/v1/models`, `/health`, and a playground."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse

from trivium.seeds import seed_for
from trivium.serving.answer import choice, envelope, logprobs_of
from trivium.serving.ask import Completion, Refused, parse, prompts_of
from trivium.serving.config import ServeConfig
from trivium.serving.guard import Guard, TooLarge
from trivium.serving.page import page_policy
from trivium.serving.unfold import Unfolding
from trivium.serving.worker import Event, Job, Worker
from trivium.serving.write import Draft, Token
from trivium.serving.writer import Writer

OWN_NAMES = ("localhost", "127.0.0.1", "[::1]", "testserver")
LEFT_SECONDS = 0.1  # between two looks whether the client is still there


@dataclass
class Server:
    """What the handlers share. seed: of requests that name none."""

    writer: Writer
    worker: Worker
    limits: ServeConfig
    name: str
    seed: int
    numbers: Iterator[int] = field(default_factory=itertools.count)


@dataclass
class _Answering:
    """A request at work, and what is heard of it."""

    asked: Completion
    prompts: list[list[int]]
    number: int
    created: int
    job: Job
    events: asyncio.Queue[Event]


def create_app(
    writer: Writer, limits: ServeConfig, *, name: str, keys: list[str] | None = None, seed: int = 0
) -> Any:
    """An ASGI application over a model; `name` is what `/v1/models` calls it."""
    server = Server(writer, Worker(writer, limits), limits, name, seed)
    page = (resources.files("trivium.serving") / "playground.html").read_text(encoding="utf-8")
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.state.server = server

    @app.get("/")
    async def playground() -> Response:
        return HTMLResponse(page, headers={"content-security-policy": page_policy(page)})

    @app.get("/health")
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse(
            {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "trivium"}]}
        )

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        try:
            return await _complete(server, request)
        except Refused as refused:
            return _refusal(refused)

    return Guard(
        app,
        body_bytes=limits.body_bytes,
        hosts=[*OWN_NAMES, limits.host, *limits.hosts],
        keys=keys or [],
    )


async def _complete(server: Server, request: Request) -> Response:
    try:
        body = await request.body()
    except TooLarge as error:
        raise Refused(413, str(error)) from None
    asked = parse(body)
    if asked.model not in (None, server.name):
        raise Refused(404, f"model: {str(asked.model)[:60]!r} is not served; {server.name!r} is", "model")
    prompts = prompts_of(asked, server.writer.tokenizer, server.limits, server.writer.scorer.sequence)
    answering = _begin(server, asked, prompts)
    if asked.stream:
        return StreamingResponse(_stream(server, answering), media_type="text/event-stream")
    await _finished(request, answering)
    return JSONResponse(
        envelope(answering.number, server.name, answering.created, _choices(server, answering))
        | {"usage": _usage(answering)}
    )


def _begin(server: Server, asked: Completion, prompts: list[list[int]]) -> _Answering:
    number = next(server.numbers)
    seed = seed_for(server.seed, "request", number) if asked.seed is None else asked.seed
    loop, events = asyncio.get_running_loop(), asyncio.Queue[Event]()
    job = Job([], _teller(loop, events), time.monotonic() + server.limits.deadline_seconds)
    settings = asked.drawing()
    texts = [ids for ids in prompts for _ in range(asked.n)] if asked.max_tokens else []
    for index, ids in enumerate(texts):
        draft = server.writer.draft(
            ids, settings, seed=seed_for(seed, "prompt", index), alternatives=asked.logprobs
        )
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


async def _finished(request: Request, answering: _Answering) -> None:
    """Wait for the end; when the client leaves before, the job is given up."""
    try:
        while True:
            try:
                event = await asyncio.wait_for(answering.events.get(), LEFT_SECONDS)
            except TimeoutError:
                if await request.is_disconnected():
                    raise Refused(499, "the client left") from None
                continue
            if event.kind != "token":
                return _raise_unless_done(event)
    finally:
        answering.job.cancelled.set()


def _raise_unless_done(event: Event) -> None:
    if event.kind == "late":
        raise Refused(504, "the deadline passed before the text was complete; ask for fewer tokens")
    if event.kind == "failed":
        raise Refused(503, "the model could not answer this request")


def _choices(server: Server, answering: _Answering) -> list[dict[str, Any]]:
    asked, tokenizer = answering.asked, server.writer.tokenizer
    found = []
    for index in range(len(answering.prompts) * asked.n):
        draft = answering.job.drafts[index] if asked.max_tokens else None
        written = server.writer.written(draft) if draft else None
        head = _head(server, answering, index)
        logprobs = None
        if asked.logprobs is not None:
            read = answering.job.echoed[index // asked.n] if asked.echo else []
            logprobs = logprobs_of([*read, *(draft.tokens if draft else [])], tokenizer)
        found.append(
            choice(
                index,
                head + (written.text if written else ""),
                logprobs,
                written.finish if written else "length",
            )
        )
    return found


def _head(server: Server, answering: _Answering, index: int) -> str:
    """The prompt, where it is to be repeated."""
    if not answering.asked.echo:
        return ""
    prompt = answering.asked.prompt
    ids = answering.prompts[index // answering.asked.n]
    return prompt if isinstance(prompt, str) else server.writer.tokenizer.decode(ids)


async def _stream(server: Server, answering: _Answering) -> AsyncIterator[bytes]:
    """Parts as server-sent events; leaving the loop, for whatever reason, gives the job up."""
    asked, tokenizer = answering.asked, server.writer.tokenizer
    number = len(answering.prompts) * asked.n
    before = [answering.prompts[index // asked.n] for index in range(number)]
    unfolding = [Unfolding(tokenizer, asked.stops, ids) for ids in before]

    def part(index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None = None) -> bytes:
        made = choice(index, text, logprobs, finish)
        return _event(envelope(answering.number, server.name, answering.created, [made]))

    try:
        told = not asked.echo
        while True:
            event = await answering.events.get()
            if not told:  # prompts are read before the first token is written
                told = True
                for index in range(number):
                    read = answering.job.echoed
                    logprobs = logprobs_of(read[index // asked.n], tokenizer) if read else None
                    yield part(index, _head(server, answering, index), logprobs)
            if event.kind != "token" or event.token is None:
                break
            is_end = event.token.id == tokenizer.end_of_text
            text = "" if is_end else unfolding[event.number].push(event.token.id)
            logprobs = None if asked.logprobs is None else logprobs_of([event.token], tokenizer)
            if text or logprobs:
                yield part(event.number, text, logprobs)
        if event.kind == "done":
            drafts: list[Draft | None] = [*answering.job.drafts] if asked.max_tokens else [None] * number
            for index, draft in enumerate(drafts):
                yield part(index, unfolding[index].close(), None, draft.finish if draft else "length")
        else:
            yield _event(
                {"error": {"message": f"the text is not complete: {event.kind}", "type": "server_error"}}
            )
        yield b"data: [DONE]\n\n"
    finally:
        answering.job.cancelled.set()


def _event(tree: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(tree, allow_nan=False).encode() + b"\n\n"


def _usage(answering: _Answering) -> dict[str, int]:
    read = sum(map(len, answering.prompts))
    written = sum(len(d.tokens) for d in answering.job.drafts)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _refusal(refused: Refused) -> JSONResponse:
    kind = "invalid_request_error" if refused.status < 500 else "server_error"
    tree = {"error": {"message": refused.message, "type": kind, "param": refused.field}}
    headers = {"retry-after": "1"} if refused.status == 429 else None
    # What a client sent may be repeated here: half characters and the like must not break the answer.
    return JSONResponse(json.loads(json.dumps(tree).encode("ascii", "replace")), refused.status, headers)
