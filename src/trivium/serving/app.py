"""The server: `/v1/completions`, `/v1/chat/completions`, `/v1/models`, `/health`, and a playground."""

import asyncio
import base64
import hashlib
import itertools
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from trivium.finite import dumps
from trivium.seeds import seed_for
from trivium.serving.answer import Form, MessageForm, Piece, Placed, TextForm, TokenAligner, placed_in
from trivium.serving.ask import Asked, ChatCompletion, Completion, Refused, Task, parse, task_of
from trivium.serving.chat import Chat
from trivium.serving.config import ServeConfig
from trivium.serving.guard import Guard, TooLarge, refusal
from trivium.serving.worker import Event, Job, Worker
from trivium.serving.writer import Token, Writer

OWN_NAMES = ("localhost", "127.0.0.1", "[::1]")
DISCONNECT_POLL_SECONDS = 0.1
DISCONNECTED = "the client disconnected"
ENDPOINTS = (
    "there are POST /v1/completions, POST /v1/chat/completions, GET /v1/models, GET /health, and a playground at /"
)


@dataclass
class Server:
    """State shared by the handlers. seed: used for requests without a seed."""

    worker: Worker
    chat: Chat
    name: str
    seed: int
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def writer(self) -> Writer:
        return self.worker.writer

    @property
    def limits(self) -> ServeConfig:
        return self.worker.limits

    def refuse_other_model(self, wanted: str) -> None:
        """Raise Refused with 404 for another model's name."""
        if wanted != self.name:
            raise Refused(404, f"model: {wanted[:60]!r} is not served; {self.name!r} is", "model", "model_not_found")


def create_app(
    worker: Worker, *, name: str, chat: Chat | None = None, keys: list[str] | None = None, seed: int = 0
) -> Any:
    """Create the ASGI application of a model; `name` is its id in `/v1/models`. chat: None selects the default
    template."""
    limits = worker.limits
    server = Server(worker, chat or Chat(None, worker.writer.tokenizer), name, seed)
    page = (resources.files("trivium.serving") / "playground.html").read_text(encoding="utf-8")
    about = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "trivium"}
    handlers: Any = {Refused: _refuse, HTTPException: _not_there}
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, exception_handlers=handlers)
    app.state.server = server

    @app.get("/")
    async def playground() -> Response:
        return HTMLResponse(page, headers={"content-security-policy": page_policy(page)})

    @app.get("/health")
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [about]})

    @app.get("/v1/models/{wanted:path}")
    async def model(wanted: str) -> Response:
        server.refuse_other_model(wanted)
        return JSONResponse(about)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await _complete(server, request, Completion)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await _complete(server, request, ChatCompletion)

    return Guard(
        app,
        body_bytes=limits.body_bytes,
        open_requests=4 * limits.queue + 16,  # most of them wait for their bodies, or for the client to read
        hosts=[*OWN_NAMES, limits.host, *limits.hosts],
        keys=keys or [],
    )


async def _refuse(request: Request, refused: Refused) -> Response:
    return refusal(refused.status, refused.message, refused.field, refused.code)


async def _not_there(request: Request, error: HTTPException) -> Response:
    """Respond to an unknown path or method."""
    asked = f"{request.method} {request.url.path[:60]}"
    found = refusal(error.status_code, f"{asked}: {str(error.detail).lower()}; {ENDPOINTS}")
    found.headers.update(error.headers or {})  # the Allow header lists the supported methods
    return found


async def _complete(server: Server, request: Request, kind: type[Asked]) -> Response:
    try:
        body = await asyncio.wait_for(request.body(), server.limits.deadline_seconds)
    except TooLarge as error:
        raise Refused(413, str(error)) from None
    except TimeoutError:
        raise Refused(408, "the deadline passed before the full body arrived; send it faster") from None
    except ClientDisconnect:  # Nobody receives this response, but an exception would be logged.
        raise Refused(499, DISCONNECTED) from None
    # Tokenizing 1 MB takes about a second, so run it outside of the event loop.
    asked, task = await asyncio.to_thread(_parsed, server, body, kind)
    answer = _Answer(server, asked, task)
    if asked.stream:
        return StreamingResponse(answer.stream(), media_type="text/event-stream")
    return JSONResponse(await answer.complete(request))


def _parsed(server: Server, body: bytes, kind: type[Asked]) -> tuple[Asked, Task]:
    asked = parse(body, server.limits, kind)
    if asked.model is not None:
        server.refuse_other_model(asked.model)
    return asked, task_of(asked, server.chat, server.limits, server.writer.scorer.sequence)


class _Answer:
    """The answer to a request. Its texts are generated by the worker, which reports events."""

    def __init__(self, server: Server, asked: Asked, task: Task) -> None:
        """Queue the request. Raises Refused with 429 if the queue is full."""
        self.asked, self.task, self.writer, self.model = asked, task, server.writer, server.name
        tokenizer = server.writer.tokenizer
        is_chat = isinstance(asked, ChatCompletion)
        self.form: Form = MessageForm(tokenizer, task.ends) if is_chat else TextForm(tokenizer)
        self.number, self.created = next(server.numbers), int(time.time())
        self.count = len(task.prompts) * asked.n  # of texts
        loop, self.events = asyncio.get_running_loop(), asyncio.Queue[Event]()

        def report(event: Event) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self.events.put_nowait, event)

        self.job = Job([], report, time.monotonic() + server.limits.deadline_seconds)
        seed = seed_for(server.seed, "request", self.number) if asked.seed is None else asked.seed
        for index in range(self.count) if task.max_tokens else ():
            ids, own = task.prompts[index // asked.n], seed_for(seed, "prompt", index)
            draft = self.writer.draft(
                ids, task.settings, seed=own, alternatives=asked.alternatives, ends=task.ends, bias=asked.biases()
            )
            draft.on_token = self._listener(index)
            self.job.drafts.append(draft)
        if asked.echoes and asked.alternatives is not None:
            self.job.read, self.job.alternatives = task.prompts, asked.alternatives
        if not server.worker.submit(self.job):
            raise Refused(429, f"{server.limits.queue} requests wait already; come back later")

    def _listener(self, index: int) -> Callable[[Token], bool]:
        def on_token(token: Token) -> bool:
            self.job.report(Event("token", index, token))
            return self.job.goes_on

        return on_token

    async def _next(self) -> Event | None:
        """Return the next event; None if there was none within the poll interval. A queued request can be late too."""
        try:
            return await asyncio.wait_for(self.events.get(), DISCONNECT_POLL_SECONDS)
        except TimeoutError:
            return Event("late") if self.job.late else None

    async def complete(self, request: Request) -> dict[str, Any]:
        """Wait for the end of the job and return all of it. Cancels the job if the client disconnects."""
        try:
            await self._finish(request)
        finally:
            self.job.cancelled.set()
        choices = []
        for index in range(self.count):
            draft = self.job.drafts[index] if self.task.max_tokens else None
            written = self.writer.written(draft) if draft else None
            text = self._head(index) + (written.text if written else "")
            placed = self._echoed(index)
            if draft and self.asked.alternatives is not None:
                aligner = self._aligner(index)
                for _, ready in [*map(aligner.push, draft.tokens), aligner.close()]:
                    placed += ready
            finish = written.finish if written else "length"
            choices.append(self.form.choice(self._piece(index, text, placed, finish)))
        return self._envelope(self.form.whole, choices) | {"usage": self._usage()}

    async def _finish(self, request: Request) -> None:
        looked = time.monotonic()
        while (event := await self._next()) is None or event.kind == "token":
            if time.monotonic() - looked >= DISCONNECT_POLL_SECONDS:
                looked = time.monotonic()
                if await request.is_disconnected():
                    raise Refused(499, DISCONNECTED)
        if event.kind == "late":
            raise Refused(504, "the deadline passed before the text was complete; ask for fewer tokens")
        if event.kind == "failed":
            raise Refused(503, "the model could not answer this request")

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield server-sent events. The job is cancelled when the generator is left for any reason."""
        aligners = [self._aligner(index) for index in range(self.count)]
        is_head_sent = not (self.asked.echoes or self.form.greets)
        try:
            while True:
                event = await self._next()
                if event is None:
                    continue
                if not is_head_sent and event.kind in ("token", "done"):  # the prompts have been read
                    is_head_sent = True
                    for index in range(self.count):
                        yield self._part(index, self._head(index), self._echoed(index), is_first=True)
                if event.kind != "token" or event.token is None:
                    break
                text, placed = aligners[event.number].push(event.token)
                if text or (placed and self.asked.alternatives is not None):
                    yield self._part(event.number, text, placed)
            if event.kind == "done":
                for index in range(self.count):
                    finish = self.job.drafts[index].finish if self.task.max_tokens else "length"
                    yield self._part(index, *aligners[index].close(), finish)
                if self.asked.tells_usage:
                    yield _sse(self._envelope(self.form.part, []) | {"usage": self._usage()})
            else:
                why = f"the text is not complete: {event.kind}"
                yield _sse({"error": {"message": why, "type": "server_error", "param": None, "code": None}})
            yield b"data: [DONE]\n\n"
        finally:
            self.job.cancelled.set()

    def _part(
        self, index: int, text: str, placed: Sequence[Placed], finish: str | None = None, *, is_first: bool = False
    ) -> bytes:
        delta = self.form.delta(self._piece(index, text, placed, finish), is_first=is_first)
        return _sse(self._envelope(self.form.part, [delta]) | ({"usage": None} if self.asked.tells_usage else {}))

    def _piece(self, index: int, text: str, placed: Sequence[Placed], finish: str | None) -> Piece:
        return Piece(index, text, None if self.asked.alternatives is None else placed, finish)

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        about = {"id": f"{self.form.prefix}-{self.number}", "object": kind, "created": self.created}
        return about | {"model": self.model, "choices": choices}

    def _head(self, index: int) -> str:
        """Return the prompt if it is to be echoed, else ""."""
        if not self.asked.echoes:
            return ""
        number = index // self.asked.n
        text = self.asked.text_of(number)
        return self.writer.tokenizer.decode(self.task.prompts[number]) if text is None else text

    def _echoed(self, index: int) -> list[Placed]:
        """Return the tokens of an echoed prompt, if their log-probabilities are requested."""
        if not self.job.echoed:
            return []
        number, tokenizer = index // self.asked.n, self.writer.tokenizer
        # Tokens that the tokenizer puts before a text are not part of it; given ids are all echoed.
        silent = () if self.asked.text_of(number) is None else (tokenizer.before_text,)
        return placed_in(self.job.echoed[number], tokenizer, silent=silent)

    def _aligner(self, index: int) -> TokenAligner:
        prompt, stops = self.task.prompts[index // self.asked.n], self.task.settings.stop
        return TokenAligner(self.writer.tokenizer, stops, prompt, len(self._head(index)), self.task.ends)

    def _usage(self) -> dict[str, int]:
        read = sum(map(len, self.task.prompts))
        written = sum(len(d.tokens) for d in self.job.drafts)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _sse(tree: dict[str, Any]) -> bytes:
    return b"data: " + dumps(tree).encode() + b"\n\n"


def page_policy(page: str) -> str:
    """Return the content security policy of a page with inline scripts and styles."""
    scripts, styles = (" ".join(_hashes(page, element)) for element in ("script", "style"))
    return (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )


def _hashes(page: str, element: str) -> list[str]:
    found = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
    return [f"'sha256-{base64.b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in found]
