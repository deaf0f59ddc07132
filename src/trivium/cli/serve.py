"""`trivium serve`: a checkpoint answers over HTTP."""

import math
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from trivium.cli.benchmarks import refuse_layout
from trivium.cli.ending import ended_by_request, ignore_signals
from trivium.cli.model_argument import asked_model
from trivium.cli.options import DEFAULT_OUT, AskedAdapter, AskedModel, Out, Preset, Reads, Sets, open_asked
from trivium.cli.settings import App, shows
from trivium.cli.show import say
from trivium.errors import ConfigError, MachineError
from trivium.hub import name_of
from trivium.serving.config import ServeConfig

app = App()
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@app.command()
@shows("seed", "serve")
def serve(
    target: AskedModel = None,
    out: Out = DEFAULT_OUT,
    adapter: AskedAdapter = None,
    preset: Preset = None,
    sets: Sets = None,
) -> None:
    """Answer /v1/completions and /v1/chat/completions as OpenAI's do, and show a playground; on this machine alone
    unless told otherwise. --tp N splits the model over N processes.

    --set serve.texts=4, and so hosts, max_tokens, queue, deadline_seconds, together.
    """
    Reads("serve", ("serve",)).check(sets)
    target = None if target is None else asked_model(target)
    run = open_asked(target, out, preset, sets)
    config = run.config.serve
    if config.host not in LOOPBACK and config.keys is None:
        raise ConfigError(
            f"serve.host is {config.host}, where others reach it, and serve.keys is not given; give a file of API "
            "keys, one per line, or serve at 127.0.0.1"
        )
    uvicorn = _library()
    from trivium.evaluation.answer import NativeScorer
    from trivium.interchange.target import opened
    from trivium.plan.layout import Layout
    from trivium.serving.app import create_app
    from trivium.serving.chat import Chat
    from trivium.serving.guard import read_keys
    from trivium.serving.ranks import LeadingRows
    from trivium.serving.worker import Worker
    from trivium.serving.writer import Writer

    keys = read_keys(Path(config.keys)) if config.keys else None
    with (
        _listener(config) as place,  # first, so that a port in use is reported before a model is read
        opened(target or out, adapter=adapter) as found,
    ):
        name = name_of((found.run or target or out).resolve())

        def answer(scorer: Any, others: Sequence[Connection]) -> None:
            """Serve with this process, which is the first rank or the only one."""
            writer = Writer(scorer, together=config.together)
            chat = Chat(found.tokenizer.parent, writer.tokenizer)
            rows = LeadingRows(writer.model, others)
            worker = Worker(writer, config, rows, on_failure=lambda: setattr(server, "should_exit", True))
            application = create_app(worker, name=name, chat=chat, keys=keys, seed=run.config.seed)
            server = uvicorn.Server(uvicorn.Config(application, **uvicorn_options(config)))
            say(f"serving {name} ({found.newest.name}) at {_address(place)}")
            if writer.tokenizer.opening:
                begin = writer.tokenizer.decode(writer.tokenizer.opening)
                say(f"  prompts of text begin with {begin}, token ids are taken as given; lm_eval: add_bos_token=True")
            try:
                with suppress(KeyboardInterrupt):  # Ctrl-C ends the server
                    server.run(sockets=[place])
            finally:  # uvicorn raises the signal that ended it again
                worker.close()

        refuse_layout(found.newest, Layout(tensor=config.tensor))
        if config.tensor == 1:
            answer(NativeScorer.open(found.newest, found.tokenizer), ())
        else:
            _answer_by_ranks(answer, place, found.newest, found.tokenizer, Layout(tensor=config.tensor))


def _answer_by_ranks(
    answer: Callable[[Any, Sequence[Connection]], None],
    listener: socket.socket,
    checkpoint: Path,
    tokenizer: Path,
    layout: Any,
) -> None:
    """Fork the ranks, of which the first one answers, and wait for them.

    Only the first rank keeps the listener: while it finishes its last requests, nothing else may accept connections.
    """
    from trivium.comms.launch import connected, start_ranks
    from trivium.comms.mesh import Mesh
    from trivium.evaluation.answer import NativeScorer
    from trivium.model.rows import Rows
    from trivium.serving.ranks import follow

    pipes = [get_context("fork").Pipe(duplex=False) for _ in range(layout.world_size - 1)]

    def on_rank(place: Any) -> None:
        ignore_signals()  # the first rank ends at the launcher's request, and the others when it has ended
        if place.rank > 0:
            listener.close()
        with connected(place):
            mesh = Mesh.connect(layout, place.rank, place.world_size, place.device)
            scorer = NativeScorer.open(checkpoint, tokenizer, mesh=mesh)
            if place.rank == 0:
                answer(scorer, [sender for _, sender in pipes])
            else:
                follow(Rows(scorer.model), pipes[place.rank - 1][0])

    sys.stdout.flush()
    ranks = start_ranks(on_rank, layout.world_size)
    listener.close()
    with ended_by_request(ranks.signal):
        ranks.wait()


def uvicorn_options(config: ServeConfig) -> dict[str, Any]:
    """Return the options of uvicorn: a connection waits 5 seconds for the head of a request, and headers do not
    identify clients. A client that does not read its answer is awaited for the deadline of a request, at the end, too.
    """
    from trivium.serving.connection import Connection as HttpConnection

    return {
        "http": HttpConnection,
        "log_level": "warning",
        "proxy_headers": False,
        "server_header": False,
        "timeout_keep_alive": 5,
        "timeout_graceful_shutdown": math.ceil(config.deadline_seconds),
    }


def _listener(config: ServeConfig) -> socket.socket:
    """Return a socket that listens at the configured address. Raises MachineError if it cannot listen there."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    place = socket.socket(family, socket.SOCK_STREAM)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        place.bind((config.host, config.port))
        place.listen()  # listening takes an address; binding alone does not
    except OSError as error:
        place.close()
        raise MachineError(
            f"serve.host {config.host}, serve.port {config.port}: this machine cannot listen there ({error.strerror}); "
            "--set serve.port=0 takes a free port"
        ) from None
    return place


def _address(place: socket.socket) -> str:
    host, port = place.getsockname()[:2]
    return f"http://{f'[{host}]' if place.family == socket.AF_INET6 else host}:{port}/"


def _library() -> Any:
    try:
        import fastapi  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise MachineError(
            f"`trivium serve` needs fastapi and uvicorn ({error}); install them with `pip install -e '.[serve]'`"
        ) from None
    return uvicorn
